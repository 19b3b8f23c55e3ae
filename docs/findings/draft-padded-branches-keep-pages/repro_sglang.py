"""draft_decode_set_expand_metadata: segment of a padded row

EAGLE draft on FlashAttention 3 with topk > 1 on pages: all draft slots of padding are on page 0, which fills one column of a branch's row (draft_decode_set_expand_metadata); the next ones hold an earlier batch's pages, and the row's length reaches them. 2 steps with 2 then 1 request on bucket 2.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 10 of 10 runs on sglang 0.5.23 without a GPU; passes in 10 of 10 runs on
sglang 0.5.23 with the candidate patch of draft-padded-branches-keep-pages without a GPU."""
import contextlib, importlib.machinery, os, platform, shutil, sys, types  # noqa: E401 - a script for reports is short
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(3))
CPU = "--cpu" in sys.argv or shutil.which("nvidia-smi") is None
DEVICE = "cpu" if CPU else "cuda"
os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
if CPU:  # read when torch, triton and sglang are imported
    os.environ |= {"TRITON_INTERPRET": "1", "SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""}
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
    for name in ("sgl_kernel", "sgl_kernel.kvcacheio", "xgrammar"):
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
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
