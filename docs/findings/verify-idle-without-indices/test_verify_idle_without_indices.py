"""TritonAttnBackend.init_forward_metadata: raised AttributeError in eager

EAGLE verify on Triton of a rank without requests, beside a rank that no graph holds:
MLP synchronisation pads the idle batch, whose metadata is made as a decode's, and
EagleVerifyInput has no kv_indptr (triton_backend.py, init_forward_metadata). 2 steps
with 0 then 1 request on bucket 1.

The scheduler of the idle rank dies with an AttributeError, and the server with it: with
`enable_dp_attention`, EAGLE and `attention_backend` triton, when a rank has no request
while another verifies more than the largest graph holds, or with graphs disabled. MLP
synchronisation pads the idle batch, and `init_forward_metadata` (triton_backend.py,
0.5.23:891) plans it as a decode, by `spec_info.kv_indptr`. `EagleVerifyInput`
(eagle_info.py) has no such field; #28221 gave it to draft-extend's input, and
flashinfer asks by `getattr`.
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


class TestInitForwardMetadata(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_raised_AttributeError_in_eager(self):
        from unittest.mock import MagicMock

        # before anything of sglang.srt.layers
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.speculative.eagle_info import EagleVerifyInput

        EXPECTED, wrong = (
            "a rank without requests plans the batch that MLP synchronisation pads for it",
            [],
        )
        # requests of the busy rank, tokens of each that are verified
        ROWS, TOKENS = 2, 4
        # What the backend reads of itself; its tensors are on DEVICE.
        backend = MagicMock(
            device=DEVICE,
            dllm_attention=None,
            dcp_size=1,
            max_context_len=64,
            num_head=1,
            max_kv_splits=1,
            v_head_dim=16,
            swa_v_head_dim=None,
            sliding_window_size=None,
            use_sliding_window_kv_pool=False,
            lean_total_programs=1,
            lean_block_m=16,
        )
        # as prepare_mlp_sync_batch leaves it: ROWS rows of one token, of request slot 0
        batch = MagicMock(
            forward_mode=ForwardMode.IDLE,
            batch_size=ROWS,
            seq_lens=torch.ones(ROWS, dtype=torch.int64, device=DEVICE),
            seq_lens_sum=ROWS,
            req_pool_indices=torch.zeros(ROWS, dtype=torch.int64, device=DEVICE),
            spec_info=EagleVerifyInput.create_idle_input(
                topk=1, spec_steps=TOKENS - 1, num_verify_tokens=TOKENS, device=DEVICE
            ),
        )
        try:
            TritonAttnBackend.init_forward_metadata(backend, batch)
        except AttributeError as error:
            wrong.append(f"AttributeError: {error}")
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
