"""A guard for a change of sglang, without a GPU, within minutes."""
