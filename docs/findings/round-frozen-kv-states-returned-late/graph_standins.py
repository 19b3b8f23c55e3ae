"""Stand-ins with which graph runners are driven on CPU tensors, in Triton's interpreter.

A graph then computes nothing: tests look at what it is given.
"""

import contextlib

import torch

from sglang.test.test_utils import maybe_stub_sgl_kernel


def without_gpu(graph):
    """Have torch use `graph`, a class, in place of CUDA graphs. Called before anything of sglang.srt is imported."""
    maybe_stub_sgl_kernel()
    graph.pool = graph.reset = lambda self: None
    for module in (torch.cuda, torch.cpu):
        module.CUDAGraph, module.graph = (
            graph,
            lambda *args, **more: contextlib.nullcontext(),
        )
        module.graph_pool_handle, module.is_current_stream_capturing = (
            object,
            lambda: False,
        )
        module.synchronize, module.empty_cache = (lambda *args: None), (lambda: None)
