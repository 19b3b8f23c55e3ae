"""Two engines compared on the same cases."""
