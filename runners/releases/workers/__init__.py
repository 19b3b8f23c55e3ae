"""Construction of target and draft workers, for each generation of sglang."""
