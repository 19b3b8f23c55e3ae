"""FrozenKVMTPDraftWorker.draft: hidden states that were returned

a draft leaves the batch's wish for hidden states as it is. 2 steps with 4 then 1 request on buckets 1, 4.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 3 of 3 runs on sglang 0.5.23 without a GPU; passes in 3 of 3 runs on sglang
0.5.23 with the candidate patch of round-frozen-kv-states-returned-late without a GPU."""
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
from sglang.srt import server_args  # noqa: F401 - before anything of sglang.srt.speculative
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.speculative import frozen_kv_mtp_worker_v2 as module

EXPECTED, wrong = "the scheduler copies the hidden states of a round to the host before the next round overwrites them", []
for name in ("ForwardBatch", "build_tree_kernel_efficient", "FrozenKVMTPVerifyInput"):
    setattr(module, name, MagicMock())  # the draft's own forward, which is not looked at here
module.ForwardBatch.init_new.return_value.capture_hidden_mode = module.CaptureHiddenMode.LAST
module.build_tree_kernel_efficient.return_value = [None] * 6
worker = MagicMock(topk=1)
worker.cuda_graph_runner.execute.return_value = None, None, None
# A batch with a request that asks for hidden states.
batch = MagicMock(return_hidden_states=True, seq_lens=torch.tensor([5], device=DEVICE))
batch.spec_info = MagicMock(spec=module.FrozenKVMTPDraftInput, bonus_tokens=torch.tensor([1], device=DEVICE))
batch.forward_mode.is_idle.return_value = False
module.FrozenKVMTPDraftWorker.draft(worker, batch)  # then the target verifies the drafts, and the scheduler copies the result
result = MagicMock()
Scheduler._copy_result_to_cpu(MagicMock(enable_async_d2h_copy=False), result, batch)
if not result.copy_to_cpu.call_args.kwargs["return_hidden_states"]:
    wrong.append("it copies none, and reads the verify graph's memory one round later")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
