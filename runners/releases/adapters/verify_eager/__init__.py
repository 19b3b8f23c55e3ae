"""How each generation of sglang verifies a tree of drafts where no CUDA graph is captured."""
