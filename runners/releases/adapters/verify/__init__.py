"""The target's CUDA-graph runner over the trees of a real draft: the runner of `decode`, in target-verify mode."""
