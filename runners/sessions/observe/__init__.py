"""What a session sees of its calls: one observation a file, listed in catalogue.py."""
