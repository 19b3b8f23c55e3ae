"""MambaAttnBackendBase._forward_metadata: load outside retrieve_parent_token_ptr in
fused_sigmoid_gating_delta_rule_update_kernel

EAGLE verify of Qwen3-Next without a graph, of a rank without requests beside a busy
one: MLP synchronisation pads the idle batch as a verify's (prepare_mlp_sync_batch,
forward_batch_info.py), and the trees of its input have no rows
(MambaAttnBackendBase._forward_metadata, hybrid_linear_attn_backend.py): the kernels of
convolution and delta rule read, and write parents, behind them. 2 steps with 0 then 1
request on bucket 1.

The scheduler of the idle rank dies of an illegal memory access, and the server with it:
a model with recurrent layers, `enable_dp_attention` and `speculative_eagle_topk` above
1, when a rank has no request while another verifies more than the largest graph holds,
or with graphs disabled. `prepare_mlp_sync_batch` (forward_batch_info.py, 0.5.23:1867)
turns the idle batch into a verify of padded requests, and
`MambaAttnBackendBase._forward_metadata` (hybrid_linear_attn_backend.py, 0.5.23:299)
takes the trees of `spec_info`, which have a row for each real request, here none. The
kernels of the convolution and of the delta rule read links of trees, and write parents,
outside.
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


class TestForwardMetadata(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_load_outside_retrieve_parent_token_ptr_in_fused_sigmoid_gating_delta_rule_update_kernel(
        self,
    ):
        from unittest.mock import MagicMock

        # before anything of sglang.srt.layers
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.layers.attention.hybrid_linear_attn_backend import (
            MambaAttnBackendBase,
        )
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.speculative.eagle_info import EagleVerifyInput

        EXPECTED, wrong = (
            "each request that a verify goes over has a row of the trees, also those that MLP synchronisation adds on an idle rank",
            [],
        )
        # requests of the busy rank, tokens of each that are verified, branches
        ROWS, TOKENS, TOPK = 2, 3, 2
        mode = ForwardMode.TARGET_VERIFY
        # as prepare_mlp_sync_batch leaves an idle rank's: ROWS requests of slot 0
        batch = MagicMock(
            forward_mode=mode,
            logical_forward_mode=mode,
            batch_size=ROWS,
            mamba_track_mask=None,
            mamba_track_indices=None,
            input_ids=torch.zeros(ROWS * TOKENS, dtype=torch.int64, device=DEVICE),
            req_pool_indices=torch.zeros(ROWS, dtype=torch.int64, device=DEVICE),
            spec_info=EagleVerifyInput.create_idle_input(
                topk=TOPK,
                spec_steps=TOKENS - 1,
                num_verify_tokens=TOKENS,
                device=DEVICE,
            ),
        )
        # what the backend reads of itself
        backend = MagicMock(device=DEVICE, topk=TOPK)
        backend._has_cpu_prefill_track_metadata.return_value = False
        made = MambaAttnBackendBase._forward_metadata(backend, batch)
        requests = made.query_start_loc.numel() - 1
        for name in (
            "retrieve_next_token",
            "retrieve_next_sibling",
            "retrieve_parent_token",
        ):
            rows = getattr(made, name).shape[0]
            if rows < requests:
                wrong.append(
                    f"the kernels go over {requests} requests, and {name} has {rows} rows"
                )
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
