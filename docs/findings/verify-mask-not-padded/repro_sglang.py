"""TritonAttnBackend.init_forward_metadata: load outside mask_ptr in _fwd_kernel

EAGLE verify on Triton without a graph: custom_mask is as long as the requests before MLP synchronisation pads the batch (triton_backend.py, init_forward_metadata); the rows of padding read behind it. flashinfer's way pads it (generate_attn_arg_prefill). 1 step with 1 request on bucket 2.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 4 of 4 runs on sglang 0.5.23 without a GPU; passes in 4 of 4 runs on sglang
0.5.23 with the candidate patch of verify-mask-not-padded without a GPU."""
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
    for name in ("sgl_kernel", "sgl_kernel.kvcacheio", "xgrammar", "xgrammar.structural_tag"):
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
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.model_executor.forward_batch_info import ForwardMode

EXPECTED, wrong = "the mask that verify is given is as long as its mask_indptr says, for requests of padding, too", []
TOKENS, PREFIX = 2, 1
# One request verifies two tokens; MLP synchronisation has padded the batch with another one, of length 1.
lengths = torch.tensor([PREFIX, 1], device=DEVICE)
mask = torch.ones(TOKENS * (PREFIX + TOKENS), dtype=torch.bool, device=DEVICE)
verified = types.SimpleNamespace(custom_mask=mask, draft_token_num=TOKENS, num_tokens_per_req=TOKENS, topk=1)
batch = types.SimpleNamespace(
    batch_size=2, forward_mode=ForwardMode.TARGET_VERIFY, spec_info=verified, seq_lens=lengths, seq_lens_cpu=lengths.cpu(),
    seq_lens_sum=int(lengths.sum()), req_pool_indices=torch.tensor([1, 0], device=DEVICE), out_cache_loc=None, encoder_lens=None,
    kv_loc_plan=None, extend_prefix_lens=None)
backend = TritonAttnBackend.__new__(TritonAttnBackend)
vars(backend).update(
    device=DEVICE, num_draft_tokens=TOKENS, speculative_num_steps=TOKENS - 1, max_context_len=8, sliding_window_size=None,
    window_kv_indptr=None, use_sliding_window_kv_pool=False, dllm_attention=None, dcp_size=1, skip_prefill=False,
    req_to_token=torch.zeros(3, 16, dtype=torch.int32, device=DEVICE), token_to_kv_pool=None, kv_index_translator=None,
    **{name: torch.zeros(3, dtype=torch.int64, device=DEVICE) for name in ("kv_indptr", "qo_indptr", "mask_indptr")})
backend._fill_kv_indptr_and_indices = lambda *given: backend.kv_indptr  # where keys lie plays no part
backend.init_forward_metadata(batch)
made = backend.forward_metadata
if made.mask_indptr[-1] > made.custom_mask.numel():
    wrong.append(f"mask_indptr ends at {int(made.mask_indptr[-1])}, the mask has {made.custom_mask.numel()} entries")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
