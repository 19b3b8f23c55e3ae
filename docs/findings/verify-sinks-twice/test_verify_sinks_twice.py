"""FlashAttentionBackend.forward_extend: wrong values, window

verify of a tree over FlashAttention 3 attends in two calls whose results are merged, to
the prefix and to the tree's own drafts; both are given a model's attention sinks
(flashattention_backend.py, 0.5.23:1598, 1737 and 1863), so that the sink takes part
twice. 1 step with 1 request on bucket 1.

gpt-oss and other models with sinks, with `speculative_eagle_topk` above 1: full layers
give less weight to all tokens than the model does, so that logits are others and tokens
are accepted that it would not choose. Sliding layers, chains and Triton are right.
`forward_extend` (flashattention_backend.py) puts `sinks` into `kwargs` (0.5.23:1598),
which both calls of the cascade are given: the one over the prefix (0.5.23:1804) and the
one over the tree's drafts (0.5.23:1863). Their results are merged as if each had seen
other keys.
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

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class TestForwardExtend(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_wrong_values_window(self):
        from unittest.mock import MagicMock

        # before anything of sglang.srt.layers
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.layers.attention import flashattention_backend as module
        from sglang.srt.layers.radix_attention import AttentionType
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        EXPECTED, wrong = (
            "of the two calls over prefix and tree, whose results are merged, one is given the sinks",
            [],
        )
        TOKENS, HEADS, SIZE = 4, 1, 8
        CALLS = []

        def attend(*, q, sinks=None, **more):
            """A stand-in for the kernel: it keeps whether it is given sinks, of which each adds a key to what a query sees."""
            CALLS.append(sinks is not None)
            return torch.zeros_like(q), torch.zeros(HEADS, TOKENS, device=DEVICE), None

        module.flash_attn_with_kvcache, module.is_cp_active = (
            attend,
            lambda batch: False,
        )
        module.merge_state_v2_wrapper, module.paged_view = (
            (lambda *states: (states[0], None)),
            lambda cache, size: cache,
        )
        cache, q = (
            torch.zeros(16, HEADS, SIZE, device=DEVICE),
            torch.zeros(TOKENS, HEADS * SIZE, device=DEVICE),
        )
        backend = MagicMock(
            use_mla=False,
            topk=2,
            fa_impl_ver=3,
            local_attn_builder=None,
            fa_skip_kv_cache=False,
            num_splits=0,
        )
        backend.prepare_paged_mha_query.return_value = (q, None, None, None, None)
        (
            backend.get_paged_mha_kv_cache.return_value,
            backend._mxfp8_sf_kwargs.return_value,
        ) = (cache, cache), {}
        backend.forward_metadata.image_token_ranges = None
        layer = MagicMock(  # a full layer: a sliding one verifies a tree in one call
            sliding_window_size=-1,
            is_cross_attention=False,
            attn_type=AttentionType.DECODER,
            tp_q_head_num=HEADS,
            tp_k_head_num=HEADS,
            tp_v_head_num=HEADS,
            head_dim=SIZE,
            v_head_dim=SIZE,
            scaling=1.0,
            logit_cap=0.0,
        )
        batch = MagicMock(forward_mode=ForwardMode.TARGET_VERIFY, _attn_output=None)
        batch.spec_algorithm.is_uno.return_value = False
        module.FlashAttentionBackend.forward_extend(
            backend,
            q,
            None,
            None,
            layer,
            batch,
            sinks=torch.zeros(HEADS, device=DEVICE),
        )
        if CALLS.count(True) != 1:
            wrong.append(
                f"{CALLS.count(True)} of {len(CALLS)} calls are given the sinks"
            )
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
