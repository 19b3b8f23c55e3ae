"""FlashAttentionBackend.init_forward_metadata: raised RuntimeError in eager

verify of a tree over FlashAttention 3 on pages, on a rank without requests beside a
busy one: init_forward_metadata expands the branches of a backend that has no draft
steps (flashattention_backend.py, 0.5.14:733, 0.5.23:1333); the block above it leaves
them out. 2 steps with 0 then 1 request on bucket 1.

The scheduler of the idle rank dies with an AttributeError or a RuntimeError, and the
server with it: with `enable_dp_attention`, `speculative_eagle_topk` above 1 and pages,
when a rank has no request while another has more than the largest graph holds, or with
graphs disabled. MLP synchronization pads the idle batch, which `init_forward_metadata`
plans as a decode. A backend without draft steps gets plain metadata, but on pages a
later block still expands branches: `out_cache_loc.view(-1, 0)`
(flashattention_backend.py, 0.5.14:733, 0.5.23:1333). The draft's own pass fails there
as well (0.5.23:1345), and so does draft-extend's.
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

    def test_raised_RuntimeError_in_eager(self):
        from unittest.mock import MagicMock

        # before anything of sglang.srt.layers
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.layers.attention.flashattention_backend import (
            FlashAttentionBackend,
        )
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        EXPECTED, wrong = (
            "a rank without requests plans the batch that MLP synchronisation pads for it",
            [],
        )
        # requests of the busy rank; tokens of a page; branches of its trees
        ROWS, PAGE, TOPK = 2, 4, 2
        # What the target's backend reads of itself. It drafts nothing: its speculative_num_steps is 0.
        backend = MagicMock(
            device=DEVICE,
            page_size=PAGE,
            topk=TOPK,
            speculative_num_steps=0,
            speculative_step_id=0,
            max_context_len=64,
            _kv_shard_pool=None,
            use_sliding_window_kv_pool=False,
            is_prefill_aware_swa=False,
            has_swa=False,
            attention_chunk_size=None,
            local_attn_builder=None,
        )
        backend.kv_index_translator.is_translating = False
        backend.req_to_token_pool.req_to_token = torch.zeros(
            4, 64, dtype=torch.int32, device=DEVICE
        )
        lengths = torch.ones(ROWS, dtype=torch.int64, device=DEVICE)
        # as prepare_mlp_sync_batch leaves it: ROWS rows of one token, of request slot 0
        batch = MagicMock(
            forward_mode=ForwardMode.IDLE,
            batch_size=ROWS,
            seq_lens=lengths,
            seq_lens_cpu=lengths.cpu(),
            encoder_lens=None,
            req_pool_indices=torch.zeros(ROWS, dtype=torch.int64, device=DEVICE),
            out_cache_loc=torch.zeros(ROWS, dtype=torch.int64, device=DEVICE),
        )
        try:
            FlashAttentionBackend.init_forward_metadata(backend, batch)
        except RuntimeError as error:
            wrong.append(f"RuntimeError: {str(error).splitlines()[0]}")
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
