"""sglang's own scheduler with its own event loop, which drives worker and graphs."""
