"""draft_decode_set_expand_metadata: segment of a padded row

EAGLE draft on FlashAttention 3 with topk > 1 on pages: all draft slots of padding are on page 0, which fills one column of a branch's row (draft_decode_set_expand_metadata); the next ones hold an earlier batch's pages, and the row's length reaches them. 2 steps with 2 then 1 request on bucket 2.
"""
import contextlib
import importlib.machinery
import importlib.util
import os
import sys
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

# ---- stand-ins: used only on a machine without a GPU. A graph then computes nothing: this bug is in what it is given ----
if CPU:
    def named(name):
        """Anything of a module that cannot be imported without a GPU: here sglang only names it."""
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (__import__("pydantic").BaseModel,), {}) if name[0].isupper() else print
    for name in ("sgl_kernel", "sgl_kernel.kvcacheio", "xgrammar", *["datasets"] * (importlib.util.find_spec("datasets") is None)):
        sys.modules[name] = module = types.ModuleType(name)
        module.__spec__, module.__path__, module.__getattr__ = importlib.machinery.ModuleSpec(name, None), [], named
    Graph.pool = Graph.reset = lambda self: None
    for module in (torch.cuda, torch.cpu):
        module.CUDAGraph, module.graph = Graph, lambda *a, **k: contextlib.nullcontext()
        module.graph_pool_handle, module.is_current_stream_capturing = object, lambda: False
        module.synchronize, module.empty_cache = (lambda *a: None), (lambda: None)
    if not hasattr(torch.ops.torchvision, "nms"):  # a torchvision without its own binary lacks these two
        library = torch.library.Library("torchvision", "FRAGMENT")
        [library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor") for name in ("nms", "qnms")]
# ---- end of the stand-ins ----
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=60, suite="base-a-test-cpu")

class TestDraftDecodeSetExpandMetadata(CustomTestCase):
    """Calls sglang's own function as its caller does, and looks at what it leaves."""
    def test_segment_of_a_padded_row(self):
        from sglang.srt.layers.attention.flashattention_backend import draft_decode_set_expand_metadata

        EXPECTED, wrong = "a branch of padding reads page 0 alone, as far as its length goes", []
        TOPK, PAGE, DRAFTS = 2, 2, 2  # the second draft step: two drafts a branch, on pages of two tokens
        # The page table and the lengths of a graph that holds two requests: two rows of branches each. They live as long as the graph.
        lengths = torch.zeros(2 * TOPK, dtype=torch.int32, device=DEVICE)
        table = torch.zeros(2 * TOPK, DRAFTS + 1, dtype=torch.int32, device=DEVICE)
        for requests, drafts in (
            # Two requests, whose prefixes end with one token on a page, so that a branch's drafts lie on two pages.
            (2, [[5, 6], [9, 10], [13, 14], [17, 18]]),
            # One request in the same graph: the other one's rows are padding, of length 1, and its draft slots are 0.
            (1, [[5, 6], [9, 10], [0, 0], [0, 0]]),
        ):
            draft_decode_set_expand_metadata(
                cache_seqlens_int32=lengths, page_table=table, last_page_lens=torch.ones(2, dtype=torch.int32, device=DEVICE),
                decode_length=DRAFTS, cache_loc=torch.tensor(drafts, device=DEVICE), topk=TOPK, page_size=PAGE)
            for row in range(requests * TOPK, 2 * TOPK):
                pages = table[row, : -(-int(lengths[row]) // PAGE)].tolist()
                if any(pages):
                    wrong.append(f"the branch of padding in row {row} has a length of {int(lengths[row])} tokens and reads pages {pages}")
        self.assertEqual(wrong, [], EXPECTED)

if __name__ == "__main__":
    unittest.main()
