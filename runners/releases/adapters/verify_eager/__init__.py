"""The verify of each generation of sglang where no CUDA graph is captured."""
