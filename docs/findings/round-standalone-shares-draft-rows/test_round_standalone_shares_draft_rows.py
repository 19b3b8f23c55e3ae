"""build_kv_cache: rows of the draft

kv_cache_builder.py (0.5.23:401) would have pairs of tokens for keys with STANDALONE,
too. 1 step with 2 requests on buckets 1, 2.

With `speculative_algorithm` STANDALONE and the radix cache, a request that shares a
prefix with another one gets, for the prefix's last token, a draft's KV row that was
made with the other's next token. Fewer drafts are accepted; texts are right. The draft
model is given the next token at each place, as EAGLE's is, so that its KV row of a
token depends on the token behind it. With EAGLE the tree cache has pairs of tokens for
keys; `build_kv_cache` (kv_cache_builder.py, 0.5.23:401) asks `is_eagle()` alone.
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

register_cpu_ci(est_time=9, suite="base-a-test-cpu")


class TestBuildKvCache(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_rows_of_the_draft(self):
        from array import array
        from itertools import takewhile
        from unittest.mock import MagicMock

        # before anything of sglang.srt.mem_cache
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.mem_cache import kv_cache_builder as module
        from sglang.srt.mem_cache.radix_cache import RadixKey
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        EXPECTED, wrong = (
            "a prompt takes no cached row of the draft that was computed from another prompt's next token",
            [],
        )
        # two prompts; the draft's KV row of token 3 comes from 3 and the token behind it
        FIRST, SECOND = [1, 2, 3, 7], [1, 2, 3, 9]

        class Told(Exception):
            """The arguments of the tree cache."""

        def told(**params):
            raise Told(params["is_eagle"])

        module.CacheInitParams = told
        for name in vars(module).copy():
            if name.startswith(("get_", "uses_", "is_", "resolve_")):
                setattr(module, name, MagicMock(return_value=MagicMock()))
        for algorithm in SpeculativeAlgorithm.EAGLE, SpeculativeAlgorithm.STANDALONE:
            worker = MagicMock(is_hybrid_swa=False)
            worker.get_memory_pool.return_value = MagicMock(), MagicMock()
            try:
                module.build_kv_cache(
                    server_args=MagicMock(),
                    model_config=MagicMock(is_multimodal=False),
                    tp_worker=worker,
                    page_size=1,
                    spec_algorithm=algorithm,
                    enable_metrics=False,
                    enable_kv_cache_events=False,
                    enable_hierarchical_cache=False,
                )
            except Told as error:
                in_pairs = error.args[0]
            keys = [
                RadixKey(array("q", prompt)).maybe_to_bigram_view(in_pairs)[0]
                for prompt in (FIRST, SECOND)
            ]
            shared = len(list(takewhile(lambda both: both[0] == both[1], zip(*keys))))
            if shared != 2:
                wrong.append(
                    f"with {algorithm.name} the second prompt takes {shared} cached tokens, not 2"
                )
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
