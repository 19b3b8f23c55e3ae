"""FrozenKVMTPDraftWorker.draft: hidden states that were returned

a draft leaves the batch's wish for hidden states as it is. 2 steps with 4 then 1
request on buckets 1, 4.

With Gemma 4's MTP, the overlap schedule and `enable_return_hidden_states` a request can
get hidden states of a later round, which may be of other requests' tokens.
`FrozenKVMTPDraftWorker.draft` (frozen_kv_mtp_worker_v2.py, 0.5.23:480) sets
`batch.return_hidden_states = False`. `_copy_result_to_cpu` (scheduler.py, 0.5.23:5015)
then copies none, and `_append_decode_hidden_states` (batch_result_processor.py,
0.5.23:700) reads the verify graph's memory one round late.
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


class TestDraft(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_hidden_states_that_were_returned(self):
        from unittest.mock import MagicMock

        # before anything of sglang.srt.speculative
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.managers.scheduler import Scheduler
        from sglang.srt.speculative import frozen_kv_mtp_worker_v2 as module

        EXPECTED, wrong = (
            "the scheduler copies the hidden states of a round to the host before the next round overwrites them",
            [],
        )
        for name in (
            "ForwardBatch",
            "build_tree_kernel_efficient",
            "FrozenKVMTPVerifyInput",
        ):
            # the draft's own forward, which is not looked at here
            setattr(module, name, MagicMock())
        module.ForwardBatch.init_new.return_value.capture_hidden_mode = (
            module.CaptureHiddenMode.LAST
        )
        module.build_tree_kernel_efficient.return_value = [None] * 6
        worker = MagicMock(topk=1)
        worker.cuda_graph_runner.execute.return_value = None, None, None
        # A batch with a request that asks for hidden states.
        batch = MagicMock(
            return_hidden_states=True, seq_lens=torch.tensor([5], device=DEVICE)
        )
        batch.spec_info = MagicMock(
            spec=module.FrozenKVMTPDraftInput,
            bonus_tokens=torch.tensor([1], device=DEVICE),
        )
        batch.forward_mode.is_idle.return_value = False
        # then the target verifies the drafts, and the scheduler copies the result
        module.FrozenKVMTPDraftWorker.draft(worker, batch)
        result = MagicMock()
        Scheduler._copy_result_to_cpu(
            MagicMock(enable_async_d2h_copy=False), result, batch
        )
        if not result.copy_to_cpu.call_args.kwargs["return_hidden_states"]:
            wrong.append(
                "it copies none, and reads the verify graph's memory one round later"
            )
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
