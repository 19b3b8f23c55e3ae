"""EAGLEDraftExtendCudaGraphRunner.execute: raised IndexError in served

EAGLEDraftExtendCudaGraphRunner.execute (eagle_draft_extend_cuda_graph_runner.py,
0.5.23:688) would return no hidden states for STANDALONE, as prefills and passes without
a graph do. 2 steps with 2 then 2 requests on bucket 2.

With `speculative_algorithm` STANDALONE the scheduler, and the server with it, can die
with an IndexError in `filter_batch` when a request ends or is retracted right after
another one arrived. A draft-extend graph captures hidden states for every algorithm,
and `execute` (eagle_draft_extend_cuda_graph_runner.py, 0.5.23:688) hands them on;
prefills and passes without a graph hand on None. `merge_batch` joins only what both
batches have, so that there are states of some requests, which `filter_batch`
(eagle_info.py, 0.5.23:253) indexes by all.
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

register_cpu_ci(est_time=8, suite="base-a-test-cpu")


class TestExecute(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_raised_IndexError_in_served(self):
        from unittest.mock import MagicMock

        # before anything of sglang.srt.speculative
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.speculative import (
            eagle_draft_extend_cuda_graph_runner as module,
        )
        from sglang.srt.speculative.eagle_info import EagleDraftInput
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        EXPECTED, wrong = (
            "with STANDALONE a request that ends behind an arrival is taken out of the batch's drafts",
            [],
        )
        WIDTH = 4  # speculative_num_draft_tokens
        for name in (
            "ForwardBatch",
            "_grouped_foreach_copy_",
            "device_timer_ctx",
            "refresh_track_indices",
            "track_indices",
        ):
            # metadata and copies into the graph's buffers, which are not looked at here
            setattr(module, name, MagicMock())
        runner = MagicMock(
            captured_req_width=WIDTH,
            require_mlp_tp_gather=False,
            extend_seq_lens_cpu=[WIDTH],
        )
        runner.model_runner.spec_algorithm = (
            runner.eagle_worker.speculative_algorithm
        ) = SpeculativeAlgorithm.STANDALONE
        runner._pad_to_bucket.return_value = 1
        # The graph's outputs: one request's row, with the hidden states that it is captured with.
        runner._replay_graph.return_value = types.SimpleNamespace(
            next_token_logits=torch.zeros(1, 8, device=DEVICE),
            hidden_states=torch.zeros(1, 16, device=DEVICE),
        )
        runs = MagicMock(
            batch_size=1, input_ids=torch.zeros(WIDTH, dtype=torch.int64, device=DEVICE)
        )
        states = module.EAGLEDraftExtendCudaGraphRunner.execute(
            runner, runs, torch.zeros(1, dtype=torch.int64, device=DEVICE)
        ).hidden_states

        def drafts(hidden_states):
            """Drafts for one request, as a batch of the scheduler keeps them between rounds."""
            one = torch.zeros(1, 1, device=DEVICE)
            return EagleDraftInput(
                topk_p=one,
                topk_index=one.long(),
                bonus_tokens=one[0].int(),
                hidden_states=hidden_states,
            )

        running = drafts(states)
        # of a request that was just prefilled: a prefill hands on no hidden states
        running.merge_batch(drafts(None))
        try:
            # the first one has ended
            running.filter_batch(torch.tensor([1], device=DEVICE))
        except IndexError as error:
            wrong.append(f"IndexError: {error}")
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
