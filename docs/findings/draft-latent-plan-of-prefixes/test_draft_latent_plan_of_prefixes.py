"""FlashInferMLAAttnBackend._apply_cuda_graph_metadata: length of a real row

a draft step's kernel reads what the host plans, and the plan has the lengths of the
prefixes alone: seq_lens_cpu in a graph (_apply_cuda_graph_metadata,
flashinfer_mla_backend.py, 0.5.23:557), seq_lens without spec_info in an eager pass
(init_forward_metadata, 0.5.23:446). The rows of KV indices have the drafts so far, too.
1 step with 2 requests on bucket 2.

With `attention_backend` flashinfer and DeepSeek-V3 or Kimi-K2, the second and every
later draft is computed without the drafts before it; in a graph with several requests
all but the first also read KV rows of the request before them. Fewer drafts are
accepted. The kernel reads row starts and lengths of the host's plan.
`_apply_cuda_graph_metadata` (flashinfer_mla_backend.py, 0.5.23:557) plans with
`seq_lens_cpu`, the prefixes' lengths, but a row of `spec_info.kv_indices` also has a
draft for each step. `init_forward_metadata` (0.5.23:446) does not pass `spec_info` on,
so an eager pass attends to the prefixes only.
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


class TestApplyCudaGraphMetadata(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_length_of_a_real_row(self):
        from unittest.mock import MagicMock

        # before anything of sglang.srt.layers
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.layers.attention import flashinfer_mla_backend as module
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        EXPECTED, wrong = (
            "a draft step is planned with as many keys of a request as its row of kv_indices has",
            [],
        )
        # tokens in the KV cache of two requests; the step reads as many drafts behind them
        PREFIXES, STEP = [5, 7], 2
        prefixes = torch.tensor(PREFIXES, device=DEVICE)
        starts = torch.tensor(
            [0, 5 + STEP, 5 + STEP + 7 + STEP], dtype=torch.int32, device=DEVICE
        )
        # no context parallelism
        module.update_local_kv_lens_for_dcp = lambda lengths: None
        backend = MagicMock(fast_decode_kwargs={})
        backend.cuda_graph_kv_indptr_cpu = torch.zeros(3, dtype=torch.int32)
        backend.cuda_graph_qo_indptr_cpu = torch.arange(3, dtype=torch.int32)
        module.FlashInferMLAAttnBackend._apply_cuda_graph_metadata(
            backend,
            plan=None,
            bs=2,
            req_pool_indices=torch.tensor([1, 2], device=DEVICE),
            seq_lens=prefixes,
            seq_lens_sum=sum(PREFIXES),
            forward_mode=ForwardMode.DECODE,
            spec_info=types.SimpleNamespace(
                kv_indptr=starts, kv_indices=torch.zeros(32, device=DEVICE)
            ),
            seq_lens_cpu=prefixes.cpu(),
        )
        # the kernel goes by the host's plan
        planned = backend.indices_updater_decode.update.call_args.kwargs[
            "kv_len_arr_cpu"
        ].tolist()
        rows = starts.diff().tolist()
        if planned != rows:
            wrong.append(
                f"requests whose rows have {rows} KV indices are planned with {planned} keys"
            )
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
