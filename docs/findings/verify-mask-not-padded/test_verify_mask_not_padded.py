"""TritonAttnBackend.init_forward_metadata: load outside mask_ptr in _fwd_kernel

EAGLE verify on Triton without a graph: custom_mask is as long as the requests before
MLP synchronisation pads the batch (triton_backend.py, init_forward_metadata); the rows
of padding read behind it. flashinfer's way pads it (generate_attn_arg_prefill). 1 step
with 1 request on bucket 2.

Results of padding are dropped, so that tokens stay right; the read is illegal as soon
as nothing is mapped behind the mask. `init_forward_metadata` takes
`spec_info.custom_mask` as it is, for the requests before padding, and lays
`mask_indptr` out for all of them (triton_backend.py, 0.5.13:682, 0.5.15.post1:817,
0.5.23:1051). flashinfer lengthens the mask (`generate_attn_arg_prefill`, \"temporary
fix for custom mask padding\").
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

register_cpu_ci(est_time=11, suite="base-a-test-cpu")


class TestInitForwardMetadata(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_load_outside_mask_ptr_in__fwd_kernel(self):
        # before anything of sglang.srt.speculative
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        EXPECTED, wrong = (
            "the mask that verify is given is as long as its mask_indptr says, for requests of padding, too",
            [],
        )
        TOKENS, PREFIX = 2, 1
        # One request verifies two tokens; MLP synchronisation has padded the batch with another one, of length 1.
        lengths = torch.tensor([PREFIX, 1], device=DEVICE)
        mask = torch.ones(TOKENS * (PREFIX + TOKENS), dtype=torch.bool, device=DEVICE)
        verified = types.SimpleNamespace(
            custom_mask=mask, draft_token_num=TOKENS, num_tokens_per_req=TOKENS, topk=1
        )
        batch = types.SimpleNamespace(
            batch_size=2,
            forward_mode=ForwardMode.TARGET_VERIFY,
            spec_info=verified,
            seq_lens=lengths,
            seq_lens_cpu=lengths.cpu(),
            seq_lens_sum=int(lengths.sum()),
            req_pool_indices=torch.tensor([1, 0], device=DEVICE),
            out_cache_loc=None,
            encoder_lens=None,
            kv_loc_plan=None,
            extend_prefix_lens=None,
        )
        backend = TritonAttnBackend.__new__(TritonAttnBackend)
        vars(backend).update(
            device=DEVICE,
            num_draft_tokens=TOKENS,
            speculative_num_steps=TOKENS - 1,
            max_context_len=8,
            sliding_window_size=None,
            window_kv_indptr=None,
            use_sliding_window_kv_pool=False,
            dllm_attention=None,
            dcp_size=1,
            skip_prefill=False,
            req_to_token=torch.zeros(3, 16, dtype=torch.int32, device=DEVICE),
            token_to_kv_pool=None,
            kv_index_translator=None,
            **{
                name: torch.zeros(3, dtype=torch.int64, device=DEVICE)
                for name in ("kv_indptr", "qo_indptr", "mask_indptr")
            },
        )
        # where keys lie plays no part
        backend._fill_kv_indptr_and_indices = lambda *given: backend.kv_indptr
        backend.init_forward_metadata(batch)
        made = backend.forward_metadata
        if made.mask_indptr[-1] > made.custom_mask.numel():
            wrong.append(
                f"mask_indptr ends at {int(made.mask_indptr[-1])}, the mask has {made.custom_mask.numel()} entries"
            )
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
