"""FlashAttentionBackend.init_forward_metadata: raised IndexError in verify

EAGLE verify of a tree on FlashAttention 3 without a graph: custom_mask is as long as the requests before MLP synchronisation pads the batch, and init_forward_metadata indexes it for all (flashattention_backend.py). 1 step with 1 request on bucket 2.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 2 of 2 runs on sglang 0.5.23 without a GPU; passes in 2 of 2 runs on sglang
0.5.23 with the candidate patch of verify-tree-indexes-behind-mask without a GPU."""
import contextlib, importlib.machinery, os, platform, shutil, sys, traceback, types  # noqa: E401 - a script for reports is short
sys.excepthook = lambda *error: (os.write(2, "".join(traceback.format_exception(*error)).encode()), os._exit(3))
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
    for name in ("sgl_kernel", "sgl_kernel.flash_attn", "sgl_kernel.kvcacheio", "xgrammar", "xgrammar.structural_tag"):
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
from sglang.srt import server_args  # noqa: F401 - before anything of sglang.srt.speculative
from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend
from sglang.srt.model_executor.forward_batch_info import ForwardMode

EXPECTED, wrong = "metadata is made for a verified tree that MLP synchronisation has padded with another request", []
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
    batch_size=2, forward_mode=ForwardMode.TARGET_VERIFY, seq_lens=lengths, seq_lens_cpu=lengths.cpu(), seq_lens_sum=int(lengths.sum()),
    req_pool_indices=torch.tensor([1, 0], device=DEVICE), encoder_lens=None, out_cache_loc=None, kv_loc_plan=None,
    spec_info=types.SimpleNamespace(custom_mask=mask, draft_token_num=TOKENS, topk=2))
backend = Backend()
vars(backend).update(
    topk=2, speculative_num_draft_tokens=TOKENS, speculative_num_steps=2, page_size=1, max_context_len=16, has_swa=False,
    use_mla=False, is_encoder_decoder=False, device=DEVICE, kv_index_translator=types.SimpleNamespace(is_translating=False),
    req_to_token_pool=types.SimpleNamespace(req_to_token=torch.zeros(3, 32, dtype=torch.int32, device=DEVICE)))
try:
    backend.init_forward_metadata(batch)
except IndexError as error:
    wrong.append(f"IndexError: {error}")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
