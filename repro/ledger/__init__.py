"""Everything that was ever measured, in one SQLite file."""
