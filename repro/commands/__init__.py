"""The command lines of python -m repro."""
