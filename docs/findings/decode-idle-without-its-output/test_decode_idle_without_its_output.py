"""NemotronHAttnLikeDecoderLayer.forward: raised RuntimeError in eager

decode of Nemotron-H without a graph, on a rank without requests beside a busy one: a
layer with a mixer returns an idle batch's normed input past its boundary
(NemotronHAttnLikeDecoderLayer.forward, nemotron_h.py, 0.5.23:616), and the next layer
refuses it. 2 steps with 1 then 0 requests on bucket 1.

The scheduler of the idle rank dies with a RuntimeError, and the server with it:
Nemotron-H with `enable_dp_attention`, when a rank has no request while another decodes
more than the largest graph holds, or with graphs disabled.
`NemotronHAttnLikeDecoderLayer.forward` (nemotron_h.py, 0.5.21:469, 0.5.23:616) returns
an idle batch's normed input right behind `boundary.prepare`, without `boundary.finish`:
the residual stream does not know that output, and the next layer's `check` refuses it.
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

register_cpu_ci(est_time=7, suite="base-a-test-cpu")


class TestForward(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_raised_RuntimeError_in_eager(self):
        from unittest.mock import MagicMock

        # before anything of sglang.srt.models
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.layers.layer_boundary.residual.add_norm import PLAIN_ADD
        from sglang.srt.layers.layer_boundary.residual.stream import ResidualStream
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.models.nemotron_h import NemotronHAttnLikeDecoderLayer

        EXPECTED, wrong = (
            "on an idle rank the second of two layers takes over what the first one returns",
            [],
        )
        HIDDEN = 8
        batch, stream = MagicMock(forward_mode=ForwardMode.IDLE), ResidualStream()

        class Boundary:
            """What a layer's boundary does with the residual stream of one rank, and a norm that changes nothing."""

            def prepare(self, hidden_states, forward_batch):
                hidden_states, residual = stream.input(hidden_states)
                residual = (
                    hidden_states if residual is None else residual + hidden_states
                )
                stream.write(residual)
                return residual.clone()  # normed

            def finish(self, hidden_states, forward_batch):
                return stream.record(hidden_states, PLAIN_ADD, declared_sum=None)

        layer = MagicMock(boundary=Boundary())
        hidden_states = torch.zeros(0, HIDDEN, device=DEVICE)  # a rank without requests
        try:
            for _ in range(2):
                hidden_states = NemotronHAttnLikeDecoderLayer.forward(
                    layer, hidden_states=hidden_states, forward_batch=batch
                )
        except RuntimeError as error:
            wrong.append(f"RuntimeError: {error}")
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
