"""NemotronHAttnLikeDecoderLayer.forward: raised RuntimeError in eager

decode of Nemotron-H without a graph, on a rank without requests beside a busy one: a layer with a mixer returns an idle batch's normed input past its boundary (NemotronHAttnLikeDecoderLayer.forward, nemotron_h.py, 0.5.23:616), and the next layer refuses it. 2 steps with 1 then 0 requests on bucket 1.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 2 of 2 runs on sglang 0.5.23 without a GPU; passes in 2 of 2 runs on sglang
0.5.23 with the candidate patch of decode-idle-without-its-output without a GPU."""
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
from sglang.srt.layers.layer_boundary.residual.add_norm import PLAIN_ADD
from sglang.srt.layers.layer_boundary.residual.stream import ResidualStream
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models.nemotron_h import NemotronHAttnLikeDecoderLayer

EXPECTED, wrong = "on an idle rank the second of two layers takes over what the first one returns", []
HIDDEN = 8
batch, stream = MagicMock(forward_mode=ForwardMode.IDLE), ResidualStream()

class Boundary:
    """What a layer's boundary does with the residual stream of one rank, and a norm that changes nothing."""

    def prepare(self, hidden_states, forward_batch):
        hidden_states, residual = stream.input(hidden_states)
        residual = hidden_states if residual is None else residual + hidden_states
        stream.write(residual)
        return residual.clone()  # normed

    def finish(self, hidden_states, forward_batch):
        return stream.record(hidden_states, PLAIN_ADD, declared_sum=None)

layer = MagicMock(boundary=Boundary())
hidden_states = torch.zeros(0, HIDDEN, device=DEVICE)  # a rank without requests
try:
    for _ in range(2):
        hidden_states = NemotronHAttnLikeDecoderLayer.forward(layer, hidden_states=hidden_states, forward_batch=batch)
except RuntimeError as error:
    wrong.append(f"RuntimeError: {error}")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
