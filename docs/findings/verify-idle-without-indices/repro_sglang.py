"""TritonAttnBackend.init_forward_metadata: raised AttributeError in eager

EAGLE verify on Triton of a rank without requests, beside a rank that no graph holds: MLP synchronisation pads the idle batch, whose metadata is made as a decode's, and EagleVerifyInput has no kv_indptr (triton_backend.py, init_forward_metadata). 2 steps with 0 then 1 request on bucket 1.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 2 of 2 runs on sglang 0.5.23 without a GPU; passes in 2 of 2 runs on sglang
0.5.23 with the candidate patch of verify-idle-without-indices without a GPU."""
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
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput

EXPECTED, wrong = "a rank without requests plans the batch that MLP synchronisation pads for it", []
ROWS, TOKENS = 2, 4  # requests of the busy rank, tokens of each that are verified
# What the backend reads of itself; its tensors are on DEVICE.
backend = MagicMock(
    device=DEVICE, dllm_attention=None, dcp_size=1, max_context_len=64, num_head=1, max_kv_splits=1, v_head_dim=16, swa_v_head_dim=None,
    sliding_window_size=None, use_sliding_window_kv_pool=False, lean_total_programs=1, lean_block_m=16)
batch = MagicMock(  # as prepare_mlp_sync_batch leaves it: ROWS rows of one token, of request slot 0
    forward_mode=ForwardMode.IDLE, batch_size=ROWS, seq_lens=torch.ones(ROWS, dtype=torch.int64, device=DEVICE), seq_lens_sum=ROWS,
    req_pool_indices=torch.zeros(ROWS, dtype=torch.int64, device=DEVICE),
    spec_info=EagleVerifyInput.create_idle_input(topk=1, spec_steps=TOKENS - 1, num_verify_tokens=TOKENS, device=DEVICE))
try:
    TritonAttnBackend.init_forward_metadata(backend, batch)
except AttributeError as error:
    wrong.append(f"AttributeError: {error}")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
