"""The KV moves of each generation of sglang, after a verify step and before a draft."""
