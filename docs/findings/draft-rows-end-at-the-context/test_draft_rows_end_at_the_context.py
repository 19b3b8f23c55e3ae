"""draft_kv_indices_buffer_width: last entry past the end of a kv_indices row

a row of the draft's kv_indices has max_bs * topk * context_len entries
(draft_kv_indices_buffer_width, spec_utils.py, 0.5.23:309), a full batch near the end of
the context needs topk * (its lengths + steps). A server ends a request two tokens
before the context, so that six steps are enough. 1 step with 2 requests on bucket 2.

flashinfer raises an assertion, which ended in SIGABRT on an H200 (0.5.23). On Triton
the last request's entries are lost, and its drafts are wrong. Six draft steps are
enough; with one request at a time, a single long answer. A row has `max_bs * topk *
max_context_len` entries (`draft_kv_indices_buffer_width`, spec_utils.py, 0.5.23:309); a
full bucket at the end of the context needs `topk * (seq_lens_sum + bs * (step + 1))`. A
server ends a request two tokens before the context length.
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


class TestDraftKvIndicesBufferWidth(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_last_entry_past_the_end_of_a_kv_indices_row(self):
        # before anything of sglang.srt.speculative
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.speculative.spec_utils import draft_kv_indices_buffer_width

        EXPECTED, wrong = (
            "a row of the draft's kv_indices has room for all prefixes of a full batch and their drafts",
            [],
        )
        CONTEXT, STEPS, TOPK, REQUESTS = 16, 8, 1, 2
        # A server ends a request two tokens before the context, and the last token is not yet in the KV cache: prefixes of 12.
        width, needed = (
            draft_kv_indices_buffer_width(REQUESTS, TOPK, CONTEXT),
            TOPK * REQUESTS * (CONTEXT - 4 + STEPS - 1),
        )
        if needed > width:
            wrong.append(
                f"the last draft step stores {needed} entries into a row of {width}"
            )
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
