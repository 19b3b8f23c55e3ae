"""_compact_accept_to_front: raised RuntimeError in round_graph

no pull request is known: _compact_accept_to_front (eagle_worker_common.py, 0.5.23:543)
writes num_steps + 1 places into the block of a request, which has num_draft_tokens. 1
step with 1 request on bucket 1.

With `speculative_eagle_topk` above 1 and `speculative_num_draft_tokens` up to
`speculative_num_steps` a server starts, captures its graphs, and dies at the first
verify of the first request. `_compact_accept_to_front` (eagle_worker_common.py,
0.5.23:543; eagle_worker_v2.py, 0.5.13:1475) puts `num_steps + 1` accepted positions in
front of a request's block of `num_draft_tokens`. A path never has more nodes than the
tree, so the positions after that are never accepted.
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

register_cpu_ci(est_time=11, suite="base-a-test-cpu")


class TestCompactAcceptToFront(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_raised_RuntimeError_in_round_graph(self):
        # before anything of sglang.srt.speculative
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.speculative.eagle_worker_common import _compact_accept_to_front

        EXPECTED, wrong = (
            "the accepted path of a tree is moved to the front of its request's tokens",
            [],
        )
        # speculative_num_steps and speculative_num_draft_tokens, which a server takes with topk above 1
        STEPS, TOKENS = 5, 4
        # The root of one request and the token behind it at 2 are accepted. A verify leaves room for num_steps + 1 places, -1 where none is.
        accepted = torch.tensor(
            [[0, 2] + [-1] * (STEPS - 1)], dtype=torch.int32, device=DEVICE
        )
        predicted = torch.arange(10, 10 + TOKENS, dtype=torch.int32, device=DEVICE)
        try:
            front = _compact_accept_to_front(
                predicted, accepted, 1, num_draft_tokens=TOKENS
            )[:2].tolist()
            if front != [10, 12]:
                wrong.append(f"in front are the predictions {front}, not [10, 12]")
        except RuntimeError as error:
            wrong.append(f"RuntimeError: {str(error).splitlines()[0]}")
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
