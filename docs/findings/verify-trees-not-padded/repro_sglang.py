"""MambaAttnBackendBase._forward_metadata: load outside retrieve_parent_token_ptr in fused_sigmoid_gating_delta_rule_update_kernel

EAGLE verify of Qwen3-Next without a graph, of a rank without requests beside a busy one: MLP synchronisation pads the idle batch as a verify's (prepare_mlp_sync_batch, forward_batch_info.py), and the trees of its input have no rows (MambaAttnBackendBase._forward_metadata, hybrid_linear_attn_backend.py): the kernels of convolution and delta rule read, and write parents, behind them. 2 steps with 0 then 1 request on bucket 1.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 2 of 2 runs on sglang 0.5.23 without a GPU; passes in 2 of 2 runs on sglang
0.5.23 with the candidate patch of verify-trees-not-padded without a GPU."""
import contextlib, importlib.machinery, os, platform, shutil, sys, traceback, types, unittest  # noqa: E401 - a script for reports is short
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
from unittest.mock import MagicMock
from sglang.srt import server_args  # noqa: F401 - before anything of sglang.srt.layers
from sglang.srt.layers.attention.hybrid_linear_attn_backend import MambaAttnBackendBase
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput

EXPECTED, wrong = "each request that a verify goes over has a row of the trees, also those that MLP synchronisation adds on an idle rank", []
ROWS, TOKENS, TOPK = 2, 3, 2  # requests of the busy rank, tokens of each that are verified, branches
mode = ForwardMode.TARGET_VERIFY
batch = MagicMock(  # as prepare_mlp_sync_batch leaves an idle rank's: ROWS requests of slot 0
    forward_mode=mode, logical_forward_mode=mode, batch_size=ROWS, mamba_track_mask=None, mamba_track_indices=None,
    input_ids=torch.zeros(ROWS * TOKENS, dtype=torch.int64, device=DEVICE),
    req_pool_indices=torch.zeros(ROWS, dtype=torch.int64, device=DEVICE),
    spec_info=EagleVerifyInput.create_idle_input(topk=TOPK, spec_steps=TOKENS - 1, num_verify_tokens=TOKENS, device=DEVICE))
backend = MagicMock(device=DEVICE, topk=TOPK)  # what the backend reads of itself
backend._has_cpu_prefill_track_metadata.return_value = False
made = MambaAttnBackendBase._forward_metadata(backend, batch)
requests = made.query_start_loc.numel() - 1
for name in ("retrieve_next_token", "retrieve_next_sibling", "retrieve_parent_token"):
    rows = getattr(made, name).shape[0]
    if rows < requests:
        wrong.append(f"the kernels go over {requests} requests, and {name} has {rows} rows")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
