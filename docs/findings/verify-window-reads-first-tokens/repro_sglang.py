"""FlashInferIndicesUpdaterPrefill.update_sliding_window: values of an output, window

verify on flashinfer with a sliding window reads the first tokens of a prefix and not the last: update_sliding_window shortens paged_kernel_lens and works out kv_start_idx, but call_begin_forward gives it to DFlash's verify input alone (0.5.23:2272); EagleVerifyInput.generate_attn_arg_prefill begins at 0 (eagle_info.py, 0.5.23:90; 0.5.15.post1:113) and hands on a mask that is laid out for whole prefixes. A graph's two wrappers also share one custom_mask_buf (_create_prefill_wrappers, 0.5.23:1184), so that the second plan overwrites the first one's mask. 1 step with 2 requests on bucket 2.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 10 of 10 runs on sglang 0.5.23 without a GPU; passes in 10 of 10 runs on
sglang 0.5.23 with the candidate patch of verify-window-reads-first-tokens without a GPU."""
import contextlib, importlib.machinery, os, platform, shutil, sys, types  # noqa: E401 - a script for reports is short
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(3))
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
    for name in ("sgl_kernel", "sgl_kernel.kvcacheio", "xgrammar"):
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
from sglang.srt import server_args  # before anything of sglang.srt.speculative
from sglang.srt.layers.attention.flashinfer_backend import FlashInferIndicesUpdaterPrefill
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput

EXPECTED, wrong = "a layer with a window reads the last tokens of a prefix and the tokens that are verified", []
WINDOW, TOKENS, PREFIXES = 7, 3, [20, 24]  # tokens of a chain that is verified; tokens in the KV cache of two requests
# Row n has the KV slots of request n by position: 100 * n + position, so that a slot says whose token it is and which.
SLOTS = torch.arange(3, device=DEVICE)[:, None] * 100 + torch.arange(64, device=DEVICE)
PLANNED = []

class Translator:
    """A stand-in for sglang's KV index translator: it copies rows of SLOTS from where it is told to begin."""
    reads_are_translated = False
    def pack_read_stream(self, plan, *, req_pool_indices, seq_lens, indptr, out, kv_start_idx=None, **more):
        starts = torch.zeros_like(seq_lens) if kv_start_idx is None else kv_start_idx
        for number, (row, start, length) in enumerate(zip(req_pool_indices, starts, seq_lens)):
            out[indptr[number] : indptr[number] + length] = SLOTS[row, start : start + length].to(out.dtype)

class Wrapper:
    """A stand-in for flashinfer's wrapper of prefill kernels: it keeps what it is planned with."""
    is_cuda_graph_enabled, _custom_mask_buf = False, None
    def begin_forward(self, qo_indptr, kv_indptr, kv_indices, *more, custom_mask=None, **options):
        PLANNED.append((kv_indptr.tolist(), kv_indices, custom_mask))

prefixes = torch.tensor(PREFIXES, device=DEVICE)
verified = EagleVerifyInput(
    draft_token=torch.full((2 * TOKENS,), 7, device=DEVICE), draft_token_num=TOKENS, spec_steps=TOKENS - 1, topk=1,
    custom_mask=torch.ones(int(TOKENS * (prefixes + TOKENS).sum()), dtype=torch.bool, device=DEVICE),
    positions=(prefixes[:, None] + torch.arange(TOKENS, device=DEVICE)).flatten(), capture_hidden_mode=CaptureHiddenMode.FULL,
    retrieve_index=None, retrieve_next_token=None, retrieve_next_sibling=None, retrieve_cum_len=None,
    seq_lens_sum=sum(PREFIXES), seq_lens_cpu=prefixes.cpu())
updater = FlashInferIndicesUpdaterPrefill.__new__(FlashInferIndicesUpdaterPrefill)
vars(updater).update(
    attn_backend=types.SimpleNamespace(kv_index_translator=Translator(), dq_paged_kernel_lens=None), sliding_window_size=WINDOW,
    kv_indptr=[torch.zeros(3, dtype=torch.int32, device=DEVICE) for _ in range(2)], prefill_wrapper_ragged=None, _swa_kv_pool=None,
    qo_indptr=[torch.zeros(3, dtype=torch.int32, device=DEVICE) for _ in range(2)], num_qo_heads=1, num_kv_heads=1, head_dim=64,
    kv_last_page_len=torch.ones(2, dtype=torch.int32, device=DEVICE), q_data_type=torch.float16, data_type=torch.float16)
updater.update_sliding_window(  # as FlashInferAttnBackend.init_forward_metadata calls it for a verify
    torch.tensor([1, 2], device=DEVICE), prefixes, prefixes.cpu(), sum(PREFIXES), prefix_lens=None,
    prefill_wrappers=[Wrapper(), Wrapper()], use_ragged=False, encoder_lens=None, spec_info=verified, plan=None)
starts, slots, _ = PLANNED[0]  # of the first wrapper, which layers with a window use
for row, prefix in enumerate(PREFIXES):
    read = (slots[starts[row] : starts[row + 1]] % 100).tolist()
    if read != list(range(prefix - WINDOW, prefix + TOKENS)):
        wrong.append(f"request {row} has a prefix of {prefix} tokens and a window of {WINDOW}, and reads its tokens {read}")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
