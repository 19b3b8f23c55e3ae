"""FlashAttentionBackend.init_forward_metadata: raised IndexError in verify

EAGLE verify of a tree on FlashAttention 3 without a graph: custom_mask is as long as
the requests before MLP synchronisation pads the batch, and init_forward_metadata
indexes it for all (flashattention_backend.py). 1 step with 1 request on bucket 2.

A device-side assertion on a GPU (seen on an H200, 0.5.23), which ends the process; an
IndexError on a CPU. `init_forward_metadata` (flashattention_backend.py, 0.5.16:873,
0.5.23:1136) indexes `custom_mask` for all requests, but the mask has rows only for the
requests before padding. The graph's path sets those indices to 0.
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


class TestInitForwardMetadata(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_raised_IndexError_in_verify(self):
        # before anything of sglang.srt.speculative
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.layers.attention.flashattention_backend import (
            FlashAttentionBackend,
        )
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        EXPECTED, wrong = (
            "metadata is made for a verified tree that MLP synchronisation has padded with another request",
            [],
        )
        TOKENS, PREFIX = 3, 1

        class Backend(FlashAttentionBackend):
            """Whatever else of it is asked for is None and plays no part."""

            def __init__(self):
                pass

            def __getattr__(self, name):
                return None

        # One request verifies a tree of 3 tokens; the batch has been padded with another one, of length 1.
        lengths = torch.tensor([PREFIX, 1], device=DEVICE)
        mask = torch.ones(TOKENS * (PREFIX + TOKENS), dtype=torch.bool, device=DEVICE)
        batch = types.SimpleNamespace(
            batch_size=2,
            forward_mode=ForwardMode.TARGET_VERIFY,
            seq_lens=lengths,
            seq_lens_cpu=lengths.cpu(),
            seq_lens_sum=int(lengths.sum()),
            req_pool_indices=torch.tensor([1, 0], device=DEVICE),
            encoder_lens=None,
            out_cache_loc=None,
            kv_loc_plan=None,
            spec_info=types.SimpleNamespace(
                custom_mask=mask, draft_token_num=TOKENS, topk=2
            ),
        )
        backend = Backend()
        vars(backend).update(
            topk=2,
            speculative_num_draft_tokens=TOKENS,
            speculative_num_steps=2,
            page_size=1,
            max_context_len=16,
            has_swa=False,
            use_mla=False,
            is_encoder_decoder=False,
            device=DEVICE,
            kv_index_translator=types.SimpleNamespace(is_translating=False),
            req_to_token_pool=types.SimpleNamespace(
                req_to_token=torch.zeros(3, 32, dtype=torch.int32, device=DEVICE)
            ),
        )
        try:
            backend.init_forward_metadata(batch)
        except IndexError as error:
            wrong.append(f"IndexError: {error}")
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
