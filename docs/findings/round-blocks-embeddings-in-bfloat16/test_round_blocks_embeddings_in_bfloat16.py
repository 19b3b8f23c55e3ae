"""ModelRunner._extend_forward_kwargs: raised RuntimeError in round_graph

embeddings that a pass is given have the model's type. 1 step with 2 requests on bucket
1.

With `speculative_algorithm` DFLASH and a dtype other than bfloat16 a server dies when a
decode batch is larger than the largest graph, or has no graph.
`ModelRunner._extend_forward_kwargs` (model_runner.py, 0.5.23:1772) turns `input_embeds`
into bfloat16 whatever the model's dtype is; DFLASH hands its block's embeddings over so
(dflash_worker_v2.py, 0.5.23:2667).
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

register_cpu_ci(est_time=12, suite="base-a-test-cpu")


class TestExtendForwardKwargs(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_raised_RuntimeError_in_round_graph(self):
        from unittest.mock import MagicMock

        # before anything of sglang.srt.model_executor
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.model_executor.model_runner import ModelRunner

        EXPECTED, wrong = (
            "a layer of DFLASH's draft can take the block's embeddings that a pass without a graph hands it",
            [],
        )
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            # as DFLASH's worker embeds the tokens of a block
            block = torch.ones(2, 8, dtype=dtype, device=DEVICE)
            runner, batch = (
                MagicMock(dtype=dtype, is_generation=True),
                MagicMock(input_embeds=block, replace_embeds=None),
            )
            runner._pp_kwargs.return_value = {}
            given = ModelRunner._extend_forward_kwargs(runner, batch, None)[
                "input_embeds"
            ]
            try:
                # each layer's weights have the model's type
                torch.nn.Linear(8, 8, dtype=dtype, device=DEVICE)(given)
            except RuntimeError as error:
                wrong.append(f"a {dtype} layer is given {given.dtype}: {error}")
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
