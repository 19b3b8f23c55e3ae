"""DeepseekSparseAttnMultiStepBackend.init_forward_metadata: length of a real row

DeepseekSparseAttnMultiStepBackend (dsa_backend.py, 0.5.23:4170) would plan each draft
step with the prefix and the drafts up to its own, as other backends do by
speculative_step_id. 1 step with 2 requests on buckets 1, 2.

With sparse attention (DSA) and `speculative_num_steps` above 1, the second and every
later draft is computed from the prefix alone. Fewer drafts are accepted; texts are
right. `DeepseekSparseAttnMultiStepBackend` (dsa_backend.py, 0.5.23:4170) plans every
draft step with `forward_batch.seq_lens`, the prefix's length. `speculative_step_id`, by
which other backends count the drafts so far, is stored (0.5.23:665) and never read.
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


class TestInitForwardMetadata(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_length_of_a_real_row(self):
        import functools
        from unittest.mock import MagicMock

        # before anything of sglang.srt.layers
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.layers.attention import dsa_backend as module
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        EXPECTED, wrong = (
            "each draft step attends to the prefix and to a draft for every step up to its own",
            [],
        )
        # tokens in the KV cache of two requests; speculative_num_steps
        PREFIXES, STEPS = [5, 7], 3
        # no schedule for DeepGEMM, which is not looked at here
        module.is_cuda = lambda: False
        module.pad_dsa_cache_seqlens = lambda batch, lengths: lengths  # of other ranks
        lengths = torch.tensor(PREFIXES, device=DEVICE)
        one_step_each = []
        for step in range(STEPS - 1):
            planner = MagicMock(
                speculative_step_id=step,
                speculative_num_steps=STEPS,
                topk=1,
                dsa_index_topk=2048,
                dsa_index_kpool=0,
                use_mha=False,
                physical_page_size=64,
                real_page_size=64,
                _kv_shard_pool=None,
                dsa_decode_impl="fa3",
                hisparse_coordinator=None,
            )
            planner.req_to_token_pool.req_to_token = planner.req_to_token = (
                torch.arange(4 * 64, dtype=torch.int32, device=DEVICE).view(4, 64)
            )
            planner.get_device_int32_arange = functools.partial(
                torch.arange, dtype=torch.int32, device=DEVICE
            )
            # of prefills alone
            planner._cal_indexer_k_start_end.return_value = None, None
            planner._init_kpool_metadata = lambda metadata, *_, **__: metadata
            planner.init_forward_metadata = functools.partial(
                module.DeepseekSparseAttnBackend.init_forward_metadata, planner
            )
            one_step_each.append(planner)
        batch = MagicMock(
            batch_size=2,
            forward_mode=ForwardMode.DECODE,
            seq_lens=lengths,
            seq_lens_cpu=lengths.cpu(),
        )
        batch.req_pool_indices = torch.tensor([1, 2], device=DEVICE)
        drafts = types.SimpleNamespace(
            speculative_num_steps=STEPS, topk=1, attn_backends=one_step_each
        )
        module.DeepseekSparseAttnMultiStepBackend.init_forward_metadata(drafts, batch)
        for step, planner in enumerate(one_step_each):
            planned = planner.forward_metadata.cache_seqlens_int32.tolist()
            behind = [prefix + step + 1 for prefix in PREFIXES]
            if planned != behind:
                wrong.append(
                    f"draft step {step} is planned with {planned} keys of two requests, not {behind}"
                )
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
