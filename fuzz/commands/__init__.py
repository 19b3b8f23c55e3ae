"""The commands of python -m fuzz, which meet the other packages here and pass their functions on."""
