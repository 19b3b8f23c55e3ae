"""FlashAttentionBackend.forward_extend: a slot is read

verify of a tree over FlashAttention 3 with latent attention reads the tree's own drafts in a second call (cascade), whose page_table names KV slots; the caches that it gets are paged by page_size (flashattention_backend.py, 0.5.23:2034). The call of models without latent attention views them as pages of one slot (0.5.23:1842). 1 step with 3 requests on buckets 1, 2, 3, 4.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 1 of 1 runs on sglang 0.5.23 without a GPU; passes in 1 of 1 runs on sglang
0.5.23 with the candidate patch of verify-latent-drafts-by-page without a GPU."""
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
from sglang.srt.layers.attention import flashattention_backend as module
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.model_executor.forward_batch_info import ForwardMode

EXPECTED, wrong = "the call over a tree's own tokens, whose page table names KV slots, reads pages of one slot", []
TOKENS, LATENT, ROPE, PAGE, SLOTS = 4, 16, 8, 4, 64
SIZES = []

def attend(*, q, k_cache, qv, **more):
    """A stand-in for the kernel: it keeps how many tokens a page has."""
    SIZES.append(k_cache.shape[1])
    return torch.zeros_like(qv), torch.zeros(1, TOKENS, device=DEVICE), None

module.flash_attn_with_kvcache, module.is_cp_active = attend, lambda batch: False
module.merge_state_v2_wrapper = lambda *states: (states[0], None)
q, q_rope = torch.zeros(TOKENS, LATENT, device=DEVICE), torch.zeros(TOKENS, ROPE, device=DEVICE)
backend = MagicMock(use_mla=True, topk=2, fa_impl_ver=3, local_attn_builder=None, fa_skip_kv_cache=False, num_splits=0, page_size=PAGE)
backend.prepare_paged_mha_query.return_value = (q, q_rope, None, None, None)
backend.token_to_kv_pool.get_key_buffer.return_value = torch.zeros(SLOTS, 1, LATENT + ROPE, device=DEVICE)
backend._mxfp8_sf_kwargs.return_value, backend.forward_metadata.image_token_ranges = {}, None
layer = MagicMock(
    sliding_window_size=-1, is_cross_attention=False, attn_type=AttentionType.DECODER, tp_q_head_num=1, tp_k_head_num=1, tp_v_head_num=1,
    head_dim=LATENT + ROPE, v_head_dim=LATENT, scaling=1.0, logit_cap=0.0)
batch = MagicMock(forward_mode=ForwardMode.TARGET_VERIFY, _attn_output=None, attn_attend_prefix_cache=None)
module.FlashAttentionBackend.forward_extend(backend, q, None, None, layer, batch, q_rope=q_rope)
if SIZES[1:] != [1]:
    wrong.append(f"the caches of the second call have pages of {SIZES[1]} slots")
from sglang.version import __version__
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
