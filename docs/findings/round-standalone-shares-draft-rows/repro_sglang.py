"""build_kv_cache: rows of the draft

kv_cache_builder.py (0.5.23:401) would have pairs of tokens for keys with STANDALONE, too. 1 step with 2 requests on buckets 1, 2.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 10 of 10 runs on sglang 0.5.23 without a GPU; passes in 10 of 10 runs on
sglang 0.5.23 with the candidate patch of round-standalone-shares-draft-rows without a GPU."""
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
from array import array
from itertools import takewhile
from unittest.mock import MagicMock
from sglang.srt import server_args  # noqa: F401 - before anything of sglang.srt.mem_cache
from sglang.srt.mem_cache import kv_cache_builder as module
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

EXPECTED, wrong = "a prompt takes no cached row of the draft that was computed from another prompt's next token", []
FIRST, SECOND = [1, 2, 3, 7], [1, 2, 3, 9]  # two prompts; the draft's KV row of token 3 comes from 3 and the token behind it

class Told(Exception):
    """The arguments of the tree cache."""

def told(**params):
    raise Told(params["is_eagle"])

module.CacheInitParams = told
for name in vars(module).copy():
    if name.startswith(("get_", "uses_", "is_", "resolve_")):
        setattr(module, name, MagicMock(return_value=MagicMock()))
for algorithm in SpeculativeAlgorithm.EAGLE, SpeculativeAlgorithm.STANDALONE:
    worker = MagicMock(is_hybrid_swa=False)
    worker.get_memory_pool.return_value = MagicMock(), MagicMock()
    try:
        module.build_kv_cache(
            server_args=MagicMock(), model_config=MagicMock(is_multimodal=False), tp_worker=worker, page_size=1, spec_algorithm=algorithm,
            enable_metrics=False, enable_kv_cache_events=False, enable_hierarchical_cache=False)
    except Told as error:
        in_pairs = error.args[0]
    keys = [RadixKey(array("q", prompt)).maybe_to_bigram_view(in_pairs)[0] for prompt in (FIRST, SECOND)]
    shared = len(list(takewhile(lambda both: both[0] == both[1], zip(*keys))))
    if shared != 2:
        wrong.append(f"with {algorithm.name} the second prompt takes {shared} cached tokens, not 2")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
