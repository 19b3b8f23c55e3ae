"""TritonMultiStepDraftBackend.init_forward_metadata_out_graph: a slot is not read, window

a draft model's window on Triton. Up to 0.5.22 draft steps have no window_kv_indices (init_forward_metadata_out_graph, triton_backend.py, 0.5.13:512, 0.5.22:758); 0.5.23 makes them a token short (generate_draft_decode_window_kv_indices, cache_locs.py:358). A draft model has one by --speculative-draft-window-size with EAGLE3 since 0.5.12.post1, or as MiMo-V2's MTP. 1 step with 2 requests on bucket 2.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 2 of 2 runs on sglang 0.5.23 without a GPU; passes in 2 of 2 runs on sglang
0.5.23 with the candidate patch of draft-window-not-planned without a GPU."""
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
from sglang.srt.layers.attention import triton_backend

EXPECTED, wrong = "a draft reads as many tokens before it as the window has, and itself, as a prefilled token does", []
# In prefill a query reads key k where q <= k + window (extend_attention.py, "q_id <= kv_id + sliding_window_size").
WINDOW, STEPS, CONTEXT, PREFIXES = 7, 3, 64, [20, 4]
# Row n has the KV slots of request n by position: 100 * n + position, so that a slot says whose token it is and which.
slots = torch.arange(3, dtype=torch.int32, device=DEVICE)[:, None] * 100 + torch.arange(CONTEXT, dtype=torch.int32, device=DEVICE)

class Step:
    """A stand-in for the backend of one draft step, which works out no indices of its own."""
    max_context_len, max_kv_splits = CONTEXT, 1
    use_sliding_window_kv_pool, cuda_graph_num_kv_splits = False, torch.zeros(4)
    def __init__(self, *given, **more):
        self.init_cuda_graph_state = self.get_num_kv_splits = lambda *given, **more: None

requests = torch.tensor([1, 2], device=DEVICE)
source = types.SimpleNamespace(
    row_ids=requests, ids=slots, row_stride=slots.stride(0), entry_page_size=1, v2p=None, is_translated=False)
translator = types.SimpleNamespace(window_kv_kind=None, read_source=lambda *given, **more: source)
triton_backend.TritonAttnBackend, triton_backend.resolve_draft_decode_window = Step, lambda runner: (0, 0)
triton_backend.get_parallel = lambda: types.SimpleNamespace(attn_tp_size=1)
triton_backend.get_schedule = lambda: types.SimpleNamespace(page_size=1)
backend = triton_backend.TritonMultiStepDraftBackend(types.SimpleNamespace(
    req_to_token_pool=types.SimpleNamespace(size=2, req_to_token=slots), device=DEVICE, sliding_window_size=WINDOW, token_to_kv_pool=None,
    model_config=types.SimpleNamespace(get_max_num_attention_heads=lambda: 1), kv_index_translator=translator), 1, STEPS)
backend.init_cuda_graph_state(2, 2)
prefixes = torch.tensor(PREFIXES, device=DEVICE)
backend.init_forward_metadata_out_graph(types.SimpleNamespace(
    batch_size=2, seq_lens=prefixes, seq_lens_sum=sum(PREFIXES), positions=prefixes, req_pool_indices=requests, kv_loc_plan=None))
for step in range(STEPS - 1):
    starts, indices = backend.window_kv_indptr[step].tolist(), backend.cuda_graph_window_kv_indices[step]
    for row, prefix in enumerate(PREFIXES):
        own = prefix + step  # the position of the draft that is computed
        read = (indices[starts[row] : starts[row + 1]] % 100).tolist()
        if read != list(range(max(own - WINDOW, 0), own + 1)):
            wrong.append(f"the draft at position {own}, with a window of {WINDOW}, reads positions {read}")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
