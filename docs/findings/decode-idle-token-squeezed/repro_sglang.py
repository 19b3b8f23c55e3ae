"""HybridLinearAttnBackend.forward: raised RuntimeError in eager

HybridLinearAttnBackend.forward gives an idle batch of linear attention an output of [tokens, heads, width] (hybrid_linear_attn_backend.py, 0.5.23:1483), and KimiDeltaAttention.forward squeezes the first dimension, which is the tokens' where MLP synchronisation pads the batch to one (kimi_linear.py:538). 2 steps with 0 then 1 request on bucket 1.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 3 of 3 runs on sglang 0.5.23 without a GPU; passes in 3 of 3 runs on sglang
0.5.23 with the candidate patch of decode-idle-token-squeezed without a GPU."""
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
from sglang.srt import server_args  # noqa: F401 - before anything of sglang.srt.models
from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models.kimi_linear import KimiDeltaAttention

EXPECTED, wrong = "a layer gives an idle batch, padded to one token, back with that token: a row of all heads", []
HEADS, DIM = 2, 4
batch = MagicMock(forward_mode=ForwardMode.IDLE, logical_forward_mode=ForwardMode.IDLE)
backend = MagicMock(_is_full_attn=lambda *args: False)

class Attention:
    num_v_heads, head_v_dim = HEADS, DIM

    def __call__(self, forward_batch, **given):
        return HybridLinearAttnBackend.forward(backend, layer=self, forward_batch=forward_batch, **given)

row = torch.zeros(1, HEADS * DIM, device=DEVICE)  # a rank without requests, beside one with one
layer = MagicMock(do_fuse_qkvbfg=False, head_dim=DIM, attn=Attention())
layer.o_norm, layer.o_proj = lambda out, gate: out, lambda out: (out, None)
layer.forward_qkvbfg = lambda hidden_states: (row.repeat(1, 3), row[:, :HEADS], row, row)
given = KimiDeltaAttention.forward(layer, hidden_states=row, positions=None, forward_batch=batch, zero_allocator=None)
if given.shape != row.shape:
    wrong.append(f"shape {list(given.shape)} instead of {list(row.shape)}")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
