"""FlashAttentionBackend.forward_extend: a slot is read

verify of a tree over FlashAttention 3 with latent attention reads the tree's own drafts
in a second call (cascade), whose page_table names KV slots; the caches that it gets are
paged by page_size (flashattention_backend.py, 0.5.23:2034). The call of models without
latent attention views them as pages of one slot (0.5.23:1842). 1 step with 3 requests
on buckets 1, 2, 3, 4.

DeepSeek-V3, Kimi-K2 and similar models with `speculative_eagle_topk` above 1 and pages
of several tokens: each node attends to whole pages, which may lie outside of the cache,
and wrong tokens are accepted. sglang's table of backends says \"page size 1 only\" for
this case, but the server starts with it. The cascade's second call (`forward_extend`,
flashattention_backend.py, 0.5.23:2034) passes a `page_table` of KV slots with caches in
pages of `page_size`. The same call for other models views the caches as pages of one
slot (0.5.23:1842).
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


class TestForwardExtend(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_a_slot_is_read(self):
        from unittest.mock import MagicMock

        # before anything of sglang.srt.layers
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.layers.attention import flashattention_backend as module
        from sglang.srt.layers.radix_attention import AttentionType
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        EXPECTED, wrong = (
            "the call over a tree's own tokens, whose page table names KV slots, reads pages of one slot",
            [],
        )
        TOKENS, LATENT, ROPE, PAGE, SLOTS = 4, 16, 8, 4, 64
        SIZES = []

        def attend(*, q, k_cache, qv, **more):
            """A stand-in for the kernel: it keeps how many tokens a page has."""
            SIZES.append(k_cache.shape[1])
            return torch.zeros_like(qv), torch.zeros(1, TOKENS, device=DEVICE), None

        module.flash_attn_with_kvcache, module.is_cp_active = (
            attend,
            lambda batch: False,
        )
        module.merge_state_v2_wrapper = lambda *states: (states[0], None)
        q, q_rope = (
            torch.zeros(TOKENS, LATENT, device=DEVICE),
            torch.zeros(TOKENS, ROPE, device=DEVICE),
        )
        backend = MagicMock(
            use_mla=True,
            topk=2,
            fa_impl_ver=3,
            local_attn_builder=None,
            fa_skip_kv_cache=False,
            num_splits=0,
            page_size=PAGE,
        )
        backend.prepare_paged_mha_query.return_value = (q, q_rope, None, None, None)
        backend.token_to_kv_pool.get_key_buffer.return_value = torch.zeros(
            SLOTS, 1, LATENT + ROPE, device=DEVICE
        )
        (
            backend._mxfp8_sf_kwargs.return_value,
            backend.forward_metadata.image_token_ranges,
        ) = {}, None
        layer = MagicMock(
            sliding_window_size=-1,
            is_cross_attention=False,
            attn_type=AttentionType.DECODER,
            tp_q_head_num=1,
            tp_k_head_num=1,
            tp_v_head_num=1,
            head_dim=LATENT + ROPE,
            v_head_dim=LATENT,
            scaling=1.0,
            logit_cap=0.0,
        )
        batch = MagicMock(
            forward_mode=ForwardMode.TARGET_VERIFY,
            _attn_output=None,
            attn_attend_prefix_cache=None,
        )
        module.FlashAttentionBackend.forward_extend(
            backend, q, None, None, layer, batch, q_rope=q_rope
        )
        if SIZES[1:] != [1]:
            wrong.append(
                f"the caches of the second call have pages of {SIZES[1]} slots"
            )
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
