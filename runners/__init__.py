"""Execution: real sglang graph runners driven in worker processes, one per target, and the traces they leave."""
