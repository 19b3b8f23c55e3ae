"""_compact_accept_to_front: raised RuntimeError in round_graph

no pull request is known: _compact_accept_to_front (eagle_worker_common.py, 0.5.23:543) writes num_steps + 1 places into the block of a request, which has num_draft_tokens. 1 step with 1 request on bucket 1.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 2 of 2 runs on sglang 0.5.23 without a GPU; passes in 2 of 2 runs on sglang
0.5.23 with the candidate patch of round-tree-of-few-tokens without a GPU."""
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
from sglang.srt.speculative.eagle_worker_common import _compact_accept_to_front

EXPECTED, wrong = "the accepted path of a tree is moved to the front of its request's tokens", []
STEPS, TOKENS = 5, 4  # speculative_num_steps and speculative_num_draft_tokens, which a server takes with topk above 1
# The root of one request and the token behind it at 2 are accepted. A verify leaves room for num_steps + 1 places, -1 where none is.
accepted = torch.tensor([[0, 2] + [-1] * (STEPS - 1)], dtype=torch.int32, device=DEVICE)
predicted = torch.arange(10, 10 + TOKENS, dtype=torch.int32, device=DEVICE)
try:
    front = _compact_accept_to_front(predicted, accepted, 1, num_draft_tokens=TOKENS)[:2].tolist()
    if front != [10, 12]:
        wrong.append(f"in front are the predictions {front}, not [10, 12]")
except RuntimeError as error:
    wrong.append(f"RuntimeError: {str(error).splitlines()[0]}")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
