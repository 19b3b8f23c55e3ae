"""What a session tells of a run while it is under way."""
