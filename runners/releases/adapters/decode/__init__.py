"""The target's CUDA-graph runner, one token a request: CudaGraphRunner, from 0.5.14 DecodeCudaGraphRunner."""
