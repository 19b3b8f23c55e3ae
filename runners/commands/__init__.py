"""The commands of python -m runners."""
