"""Mutants: small changes of sglang's code, one at a time, and the oracle that notices each."""
