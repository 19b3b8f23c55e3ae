"""DeepseekSparseAttnMultiStepBackend.init_forward_metadata: length of a real row

DeepseekSparseAttnMultiStepBackend (dsa_backend.py, 0.5.23:4170) would plan each draft step with the prefix and the drafts up to its own, as other backends do by speculative_step_id. 1 step with 2 requests on buckets 1, 2.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 10 of 10 runs on sglang 0.5.23 without a GPU; passes in 10 of 10 runs on
sglang 0.5.23 with the candidate patch of round-sparse-drafts-unseen without a GPU."""
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
import functools
from unittest.mock import MagicMock
from sglang.srt import server_args  # noqa: F401 - before anything of sglang.srt.layers
from sglang.srt.layers.attention import dsa_backend as module
from sglang.srt.model_executor.forward_batch_info import ForwardMode

EXPECTED, wrong = "each draft step attends to the prefix and to a draft for every step up to its own", []
PREFIXES, STEPS = [5, 7], 3  # tokens in the KV cache of two requests; speculative_num_steps
module.is_cuda = lambda: False  # no schedule for DeepGEMM, which is not looked at here
module.pad_dsa_cache_seqlens = lambda batch, lengths: lengths  # of other ranks
lengths = torch.tensor(PREFIXES, device=DEVICE)
one_step_each = []
for step in range(STEPS - 1):
    planner = MagicMock(
        speculative_step_id=step, speculative_num_steps=STEPS, topk=1, dsa_index_topk=2048, dsa_index_kpool=0, use_mha=False,
        physical_page_size=64, real_page_size=64, _kv_shard_pool=None, dsa_decode_impl="fa3", hisparse_coordinator=None)
    planner.req_to_token_pool.req_to_token = planner.req_to_token = torch.arange(4 * 64, dtype=torch.int32, device=DEVICE).view(4, 64)
    planner.get_device_int32_arange = functools.partial(torch.arange, dtype=torch.int32, device=DEVICE)
    planner._cal_indexer_k_start_end.return_value = None, None  # of prefills alone
    planner._init_kpool_metadata = lambda metadata, *_, **__: metadata
    planner.init_forward_metadata = functools.partial(module.DeepseekSparseAttnBackend.init_forward_metadata, planner)
    one_step_each.append(planner)
batch = MagicMock(batch_size=2, forward_mode=ForwardMode.DECODE, seq_lens=lengths, seq_lens_cpu=lengths.cpu())
batch.req_pool_indices = torch.tensor([1, 2], device=DEVICE)
drafts = types.SimpleNamespace(speculative_num_steps=STEPS, topk=1, attn_backends=one_step_each)
module.DeepseekSparseAttnMultiStepBackend.init_forward_metadata(drafts, batch)
for step, planner in enumerate(one_step_each):
    planned = planner.forward_metadata.cache_seqlens_int32.tolist()
    behind = [prefix + step + 1 for prefix in PREFIXES]
    if planned != behind:
        wrong.append(f"draft step {step} is planned with {planned} keys of two requests, not {behind}")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
