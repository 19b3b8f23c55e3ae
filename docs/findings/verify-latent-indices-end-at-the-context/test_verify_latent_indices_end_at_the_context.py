"""FlashInferMLAAttnBackend.init_cuda_graph_state: raised RuntimeError in graph

the KV indices of a verify's graph have room for context_len tokens of each request
(init_cuda_graph_state, flashinfer_mla_backend.py, 0.5.23:507), and a verify goes over
the prefix and num_draft_tokens. A server ends a request two tokens before the context,
so that five draft tokens are enough where the largest bucket is full of requests at its
end. 1 step with 2 requests on bucket 2.

The server dies with a RuntimeError once the largest captured batch is full and all its
requests are within a few tokens of the context length. `init_cuda_graph_state`
(flashinfer_mla_backend.py, 0.5.13:434, 0.5.23:507) allocates `max_bs * max_context_len`
KV indices. A verify needs the prefix and `num_draft_tokens` of each request, and a
server ends a request only two tokens before the context (`max_req_len`).
"""

import os
import types
import unittest

CPU = True
DEVICE = "cpu"
os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
if CPU:  # read when torch, triton and sglang are imported
    os.environ |= {"TRITON_INTERPRET": "1", "SGLANG_USE_CPU_ENGINE": "1"}
import torch


class Graph:
    """Here no graph is captured: one function of sglang is called, with what its caller gives it."""


from sglang.test.graph_standins import without_gpu

without_gpu(Graph)
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=7, suite="base-a-test-cpu")


class TestInitCudaGraphState(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_raised_RuntimeError_in_graph(self):
        from unittest.mock import MagicMock

        # before anything of sglang.srt.layers
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.layers.attention import flashinfer_mla_backend as module

        EXPECTED, wrong = (
            "a graph's KV indices have room for all prefixes of a full batch and the tokens that are verified",
            [],
        )
        CONTEXT, TOKENS, REQUESTS = 16, 6, 2
        # The buffer is asked for on "cuda".
        module.torch = types.SimpleNamespace(
            **vars(torch)
            | {
                "zeros": lambda size, dtype, device: torch.zeros(
                    size, dtype=dtype, device=DEVICE
                )
            }
        )
        backend = MagicMock(max_context_len=CONTEXT, device=DEVICE)
        # as sglang makes it
        backend.req_to_token_pool.req_to_token = torch.zeros(
            3, CONTEXT + TOKENS + 4, dtype=torch.int32, device=DEVICE
        )
        module.FlashInferMLAAttnBackend.init_cuda_graph_state(
            backend, REQUESTS, REQUESTS * TOKENS
        )
        # A server ends a request two tokens before the context, and the last token is not yet in the KV cache.
        room, needed = (
            backend.cuda_graph_kv_indices.numel(),
            REQUESTS * (CONTEXT - 3 + TOKENS),
        )
        if needed > room:
            wrong.append(f"a full batch has {needed} KV indices, and the buffer {room}")
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
