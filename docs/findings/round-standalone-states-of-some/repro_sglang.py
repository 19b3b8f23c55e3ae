"""EAGLEDraftExtendCudaGraphRunner.execute: raised IndexError in served

EAGLEDraftExtendCudaGraphRunner.execute (eagle_draft_extend_cuda_graph_runner.py, 0.5.23:688) would return no hidden states for STANDALONE, as prefills and passes without a graph do. 2 steps with 2 then 2 requests on bucket 2.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 10 of 10 runs on sglang 0.5.23 without a GPU; passes in 10 of 10 runs on
sglang 0.5.23 with the candidate patch of round-standalone-states-of-some without a GPU."""
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
from sglang.srt.speculative import eagle_draft_extend_cuda_graph_runner as module
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

EXPECTED, wrong = "with STANDALONE a request that ends behind an arrival is taken out of the batch's drafts", []
WIDTH = 4  # speculative_num_draft_tokens
for name in ("ForwardBatch", "_grouped_foreach_copy_", "device_timer_ctx", "refresh_track_indices", "track_indices"):
    setattr(module, name, MagicMock())  # metadata and copies into the graph's buffers, which are not looked at here
runner = MagicMock(captured_req_width=WIDTH, require_mlp_tp_gather=False, extend_seq_lens_cpu=[WIDTH])
runner.model_runner.spec_algorithm = runner.eagle_worker.speculative_algorithm = SpeculativeAlgorithm.STANDALONE
runner._pad_to_bucket.return_value = 1
# The graph's outputs: one request's row, with the hidden states that it is captured with.
runner._replay_graph.return_value = types.SimpleNamespace(
    next_token_logits=torch.zeros(1, 8, device=DEVICE), hidden_states=torch.zeros(1, 16, device=DEVICE))
runs = MagicMock(batch_size=1, input_ids=torch.zeros(WIDTH, dtype=torch.int64, device=DEVICE))
states = module.EAGLEDraftExtendCudaGraphRunner.execute(runner, runs, torch.zeros(1, dtype=torch.int64, device=DEVICE)).hidden_states

def drafts(hidden_states):
    """Drafts for one request, as a batch of the scheduler keeps them between rounds."""
    one = torch.zeros(1, 1, device=DEVICE)
    return EagleDraftInput(topk_p=one, topk_index=one.long(), bonus_tokens=one[0].int(), hidden_states=hidden_states)

running = drafts(states)
running.merge_batch(drafts(None))  # of a request that was just prefilled: a prefill hands on no hidden states
try:
    running.filter_batch(torch.tensor([1], device=DEVICE))  # the first one has ended
except IndexError as error:
    wrong.append(f"IndexError: {error}")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
