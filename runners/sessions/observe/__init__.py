"""The observations of a session: one a file, listed in catalogue.py."""
