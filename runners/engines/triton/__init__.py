"""Triton kernels without a GPU."""
