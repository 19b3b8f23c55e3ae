"""What was seen, and what oracles concluded from it."""
