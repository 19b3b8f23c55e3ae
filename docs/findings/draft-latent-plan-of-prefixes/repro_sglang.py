"""FlashInferMLAAttnBackend._apply_cuda_graph_metadata: length of a real row

a draft step's kernel reads what the host plans, and the plan has the lengths of the prefixes alone: seq_lens_cpu in a graph (_apply_cuda_graph_metadata, flashinfer_mla_backend.py, 0.5.23:557), seq_lens without spec_info in an eager pass (init_forward_metadata, 0.5.23:446). The rows of KV indices have the drafts so far, too. 1 step with 2 requests on bucket 2.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 2 of 2 runs on sglang 0.5.23 without a GPU; passes in 2 of 2 runs on sglang
0.5.23 with the candidate patch of draft-latent-plan-of-prefixes without a GPU."""
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
from sglang.srt.layers.attention import flashinfer_mla_backend as module
from sglang.srt.model_executor.forward_batch_info import ForwardMode

EXPECTED, wrong = "a draft step is planned with as many keys of a request as its row of kv_indices has", []
PREFIXES, STEP = [5, 7], 2  # tokens in the KV cache of two requests; the step reads as many drafts behind them
prefixes = torch.tensor(PREFIXES, device=DEVICE)
starts = torch.tensor([0, 5 + STEP, 5 + STEP + 7 + STEP], dtype=torch.int32, device=DEVICE)
module.update_local_kv_lens_for_dcp = lambda lengths: None  # no context parallelism
backend = MagicMock(fast_decode_kwargs={})
backend.cuda_graph_kv_indptr_cpu = torch.zeros(3, dtype=torch.int32)
backend.cuda_graph_qo_indptr_cpu = torch.arange(3, dtype=torch.int32)
module.FlashInferMLAAttnBackend._apply_cuda_graph_metadata(
    backend, plan=None, bs=2, req_pool_indices=torch.tensor([1, 2], device=DEVICE), seq_lens=prefixes, seq_lens_sum=sum(PREFIXES),
    forward_mode=ForwardMode.DECODE, spec_info=types.SimpleNamespace(kv_indptr=starts, kv_indices=torch.zeros(32, device=DEVICE)),
    seq_lens_cpu=prefixes.cpu())
planned = backend.indices_updater_decode.update.call_args.kwargs["kv_len_arr_cpu"].tolist()  # the kernel goes by the host's plan
rows = starts.diff().tolist()
if planned != rows:
    wrong.append(f"requests whose rows have {rows} KV indices are planned with {planned} keys")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
