"""TritonMultiStepDraftBackend.init_forward_metadata_out_graph: a slot is not read, window

a draft model's window on Triton. Up to 0.5.22 draft steps have no window_kv_indices
(init_forward_metadata_out_graph, triton_backend.py, 0.5.13:512, 0.5.22:758); 0.5.23
makes them a token short (generate_draft_decode_window_kv_indices, cache_locs.py:358). A
draft model has one by --speculative-draft-window-size with EAGLE3 since 0.5.12.post1,
or as MiMo-V2's MTP. 1 step with 2 requests on bucket 2.

Up to 0.5.22 a server with such a draft model does not start: capture raises
CompilationError. 0.5.23 drafts from one key too few. Up to 0.5.22
`init_forward_metadata_out_graph` sets `window_kv_indices=None` (triton_backend.py,
0.5.13:512, 0.5.22:758). 0.5.23 plans the window
(`generate_draft_decode_window_kv_indices`), a token short as in decode.
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


class TestInitForwardMetadataOutGraph(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""

    def test_a_slot_is_not_read_window(self):
        # before anything of sglang.srt.speculative
        from sglang.srt import server_args  # noqa: F401
        from sglang.srt.layers.attention import triton_backend

        EXPECTED, wrong = (
            "a draft reads as many tokens before it as the window has, and itself, as a prefilled token does",
            [],
        )
        # In prefill a query reads key k where q <= k + window (extend_attention.py, "q_id <= kv_id + sliding_window_size").
        WINDOW, STEPS, CONTEXT, PREFIXES = 7, 3, 64, [20, 4]
        # Row n has the KV slots of request n by position: 100 * n + position, so that a slot says whose token it is and which.
        slots = torch.arange(3, dtype=torch.int32, device=DEVICE)[
            :, None
        ] * 100 + torch.arange(CONTEXT, dtype=torch.int32, device=DEVICE)

        class Step:
            """A stand-in for the backend of one draft step, which works out no indices of its own."""

            max_context_len, max_kv_splits = CONTEXT, 1
            use_sliding_window_kv_pool, cuda_graph_num_kv_splits = False, torch.zeros(4)

            def __init__(self, *given, **more):
                self.init_cuda_graph_state = self.get_num_kv_splits = (
                    lambda *given, **more: None
                )

        requests = torch.tensor([1, 2], device=DEVICE)
        source = types.SimpleNamespace(
            row_ids=requests,
            ids=slots,
            row_stride=slots.stride(0),
            entry_page_size=1,
            v2p=None,
            is_translated=False,
        )
        translator = types.SimpleNamespace(
            window_kv_kind=None, read_source=lambda *given, **more: source
        )
        triton_backend.TritonAttnBackend, triton_backend.resolve_draft_decode_window = (
            Step,
            lambda runner: (0, 0),
        )
        triton_backend.get_parallel = lambda: types.SimpleNamespace(attn_tp_size=1)
        triton_backend.get_schedule = lambda: types.SimpleNamespace(page_size=1)
        backend = triton_backend.TritonMultiStepDraftBackend(
            types.SimpleNamespace(
                req_to_token_pool=types.SimpleNamespace(size=2, req_to_token=slots),
                device=DEVICE,
                sliding_window_size=WINDOW,
                token_to_kv_pool=None,
                model_config=types.SimpleNamespace(
                    get_max_num_attention_heads=lambda: 1
                ),
                kv_index_translator=translator,
            ),
            1,
            STEPS,
        )
        backend.init_cuda_graph_state(2, 2)
        prefixes = torch.tensor(PREFIXES, device=DEVICE)
        backend.init_forward_metadata_out_graph(
            types.SimpleNamespace(
                batch_size=2,
                seq_lens=prefixes,
                seq_lens_sum=sum(PREFIXES),
                positions=prefixes,
                req_pool_indices=requests,
                kv_loc_plan=None,
            )
        )
        for step in range(STEPS - 1):
            starts, indices = (
                backend.window_kv_indptr[step].tolist(),
                backend.cuda_graph_window_kv_indices[step],
            )
            for row, prefix in enumerate(PREFIXES):
                own = prefix + step  # the position of the draft that is computed
                read = (indices[starts[row] : starts[row + 1]] % 100).tolist()
                if read != list(range(max(own - WINDOW, 0), own + 1)):
                    wrong.append(
                        f"the draft at position {own}, with a window of {WINDOW}, reads positions {read}"
                    )
        self.assertEqual(wrong, [], EXPECTED)


if __name__ == "__main__":
    unittest.main()
