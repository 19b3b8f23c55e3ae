"""HybridLinearAttnBackend.forward: raised RuntimeError in eager

HybridLinearAttnBackend.forward gives an idle batch of linear attention an output of
[tokens, heads, width] (hybrid_linear_attn_backend.py, 0.5.23:1483), and
KimiDeltaAttention.forward squeezes the first dimension, which is the tokens' where MLP
synchronisation pads the batch to one (kimi_linear.py:538). 2 steps with 0 then 1
request on bucket 1.

The scheduler of the idle rank dies with a RuntimeError, and the server with it: Kimi-
Linear with `enable_dp_attention`, when a rank has no request, another has one, and no
graph is replayed: with graphs disabled, or none of that size.
`HybridLinearAttnBackend.forward` (hybrid_linear_attn_backend.py, 0.5.23:1483) gives
linear attention of an idle batch an output without its first dimension of 1.
`KimiDeltaAttention.forward` squeezes the first one (kimi_linear.py, 0.5.23:538), which
is the tokens': padded to one token, the batch loses it, and the next layer's
`forward_absorb_core` (forward_mla.py, 0.5.23:786) cannot join keys.
"""

import os
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

register_cpu_ci(est_time=9, suite="base-a-test-cpu")


class TestForward(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_raised_RuntimeError_in_eager(self):
        from unittest.mock import MagicMock

        # before anything of sglang.srt.models
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.layers.attention.hybrid_linear_attn_backend import (
            HybridLinearAttnBackend,
        )
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.models.kimi_linear import KimiDeltaAttention

        EXPECTED, wrong = (
            "a layer gives an idle batch, padded to one token, back with that token: a row of all heads",
            [],
        )
        HEADS, DIM = 2, 4
        batch = MagicMock(
            forward_mode=ForwardMode.IDLE, logical_forward_mode=ForwardMode.IDLE
        )
        backend = MagicMock(_is_full_attn=lambda *args: False)

        class Attention:
            num_v_heads, head_v_dim = HEADS, DIM

            def __call__(self, forward_batch, **given):
                return HybridLinearAttnBackend.forward(
                    backend, layer=self, forward_batch=forward_batch, **given
                )

        # a rank without requests, beside one with one
        row = torch.zeros(1, HEADS * DIM, device=DEVICE)
        layer = MagicMock(do_fuse_qkvbfg=False, head_dim=DIM, attn=Attention())
        layer.o_norm, layer.o_proj = lambda out, gate: out, lambda out: (out, None)
        layer.forward_qkvbfg = lambda hidden_states: (
            row.repeat(1, 3),
            row[:, :HEADS],
            row,
            row,
        )
        given = KimiDeltaAttention.forward(
            layer,
            hidden_states=row,
            positions=None,
            forward_batch=batch,
            zero_allocator=None,
        )
        if given.shape != row.shape:
            wrong.append(f"shape {list(given.shape)} instead of {list(row.shape)}")
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
