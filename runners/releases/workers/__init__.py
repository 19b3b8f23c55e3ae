"""How each generation of sglang constructs its target and draft workers."""
