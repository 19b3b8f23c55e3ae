"""The engines under sglang's graph runners: real CUDA graphs, or their emulation on CPU tensors."""
