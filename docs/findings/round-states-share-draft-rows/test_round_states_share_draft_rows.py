"""UnifiedTreeCore.__init__: rows of the draft

UnifiedTreeCore (unified_tree_core.py, 0.5.23:432) would take pairs of tokens for keys
with recurrent layers, too, as it does without. 1 step with 2 requests on buckets 1, 2.

With Qwen3-Next, its MTP layer and the radix cache, a request that shares a prefix with
another one gets, for the prefix's last token, a draft's KV row that was made with the
other's next token. Fewer drafts are accepted; texts are right. A draft's KV row of a
token depends on the token behind it, so that with EAGLE the tree cache has pairs of
tokens for keys. `UnifiedTreeCore` (unified_tree_core.py, 0.5.23:432) has single tokens
where layers keep a state.
"""

import os
import unittest

CPU = True
DEVICE = "cpu"
os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
if CPU:  # read when torch, triton and sglang are imported
    os.environ |= {"TRITON_INTERPRET": "1", "SGLANG_USE_CPU_ENGINE": "1"}


class Graph:
    """Here no graph is captured: one function of sglang is called, with what its caller gives it."""


from sglang.test.graph_standins import without_gpu

without_gpu(Graph)
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=7, suite="base-a-test-cpu")


class TestInit(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_rows_of_the_draft(self):
        from array import array
        from itertools import takewhile
        from unittest.mock import MagicMock

        # before anything of sglang.srt.mem_cache
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.mem_cache.radix_cache import RadixKey
        from sglang.srt.mem_cache.unified_cache import unified_tree_core as module

        EXPECTED, wrong = (
            "with EAGLE a prompt takes no cached row of the draft that was computed from another prompt's next token",
            [],
        )
        # two prompts; the draft's KV row of token 3 comes from 3 and the token behind it
        FIRST, SECOND = [1, 2, 3, 7], [1, 2, 3, 9]
        params = MagicMock(
            page_size=1,
            token_to_kv_pool_allocator=None,
            is_eagle=True,
            eviction_policy="lru",
            eviction_policy_config=None,
            enable_kv_cache_events=False,
        )
        for kinds in ("FULL",), ("FULL", "MAMBA"):
            tree = module.UnifiedTreeCore(
                params,
                {getattr(module.ComponentType, kind): MagicMock() for kind in kinds},
            )
            keys = [
                RadixKey(array("q", prompt)).maybe_to_bigram_view(tree.is_eagle)[0]
                for prompt in (FIRST, SECOND)
            ]
            shared = len(list(takewhile(lambda both: both[0] == both[1], zip(*keys))))
            if shared != 2:
                wrong.append(
                    f"in a tree of {' and '.join(kinds)} the second prompt takes {shared} cached tokens, not 2"
                )
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
