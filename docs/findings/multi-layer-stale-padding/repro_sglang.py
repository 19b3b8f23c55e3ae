"""MultiLayerEagleDraftExtendCudaGraphRunner: padded rows of req_pool_indices

MultiLayerEagleDraftExtendCudaGraphRunner leaves stale req_pool_indices in padded rows, as four other runners did before #26292. 2 steps with 2 then 1 request on bucket 2.
Needs sglang and torch, and without a GPU triton and numpy below 2.4 besides. Nothing is downloaded. Releases: 0.5.23.
    PYTHONPATH=IMPORT_PATH_OF_SGLANG python THIS_FILE    exit code 1: the bug shows, 0: it does not, 3: no run
Checked before it was handed over: shows the bug in 3 of 3 runs on sglang 0.5.23 without a GPU; passes in 3 of 3 runs on sglang
0.5.23 with the candidate patch of multi-layer-stale-padding without a GPU."""
import contextlib, importlib.machinery, inspect, json, os, pathlib, platform, shutil, sys, tempfile, types  # noqa: E401 - a script for reports is short
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(3))
CPU = "--cpu" in sys.argv or shutil.which("nvidia-smi") is None
DEVICE = "cpu" if CPU else "cuda"
BUCKETS, SLOTS, PAGE, CONTEXT, DTYPE = [2], 3, 1, 8, 'float32'
TOPK, NUM_STEPS, DRAFT_TOKENS, WIDTH = 1, 2, 3, 3
VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 128, 16, 1, 1, 16
# Of each request of each call: its slot, the tokens in its KV cache, the drafts that were accepted before.
CALLS = [[(1, 1, 0), (2, 1, 0)], [(1, 1, 0)]]
BUFFERS = ('req_pool_indices',)
EXPECTED, wrong = 'padded rows of req_pool_indices are 0 when the graph is launched', []
os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
if CPU:  # read when torch, triton and sglang are imported
    os.environ |= {"TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1", "SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""}
import torch

class Graph(object if CPU else torch.cuda.CUDAGraph):
    """A CUDA graph. What it is launched with is looked at first."""
    def replay(self):
        look_at_launch()
        None if CPU else super().replay()

torch.cuda.CUDAGraph = Graph
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
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.version import __version__
from sglang.srt.speculative.multi_layer_eagle_draft_extend_cuda_graph_runner import MultiLayerEagleMultiStepDraftExtendCudaGraphRunner
from sglang.srt.speculative.multi_layer_eagle_worker_v2 import MultiLayerEagleDraftWorker
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput as ExtendInput

def call(function, *given, **more):
    """With those keyword arguments that this release knows."""
    known = inspect.signature(function).parameters
    return function(*given, **{name: value for name, value in more.items() if name in known})

def model(kind, **more):
    """A folder with the configuration of a tiny model; its weights are dummies."""
    config = dict(
        architectures=[kind], model_type="llama", num_hidden_layers=1, hidden_size=HIDDEN, intermediate_size=HIDDEN, hidden_act="silu",
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, vocab_size=VOCAB, rms_norm_eps=1e-5,
        max_position_embeddings=CONTEXT, rope_theta=10000.0, tie_word_embeddings=False, torch_dtype=DTYPE)
    pathlib.Path(folder := tempfile.mkdtemp(), "config.json").write_text(json.dumps(config | more))
    return folder

BS, PORT = max(BUCKETS), 20000 + os.getpid() % 20000
args = call(
    server_args.ServerArgs, model_path=model("LlamaForCausalLM"), load_format="dummy", skip_tokenizer_init=True, device=DEVICE,
    dtype=DTYPE, attention_backend="triton", sampling_backend="pytorch", page_size=PAGE, context_length=CONTEXT, random_seed=1,
    max_total_tokens=SLOTS * CONTEXT, max_running_requests=SLOTS, mem_fraction_static=0.5,
    triton_attention_num_kv_splits=1, disable_radix_cache=True, disable_cuda_graph=True, disable_piecewise_cuda_graph=True,
    cuda_graph_bs=BUCKETS, cuda_graph_max_bs=BS, speculative_algorithm="EAGLE", speculative_num_steps=NUM_STEPS,
    speculative_eagle_topk=TOPK, speculative_num_draft_tokens=DRAFT_TOKENS, speculative_draft_model_path=model(
        "MiMoV2MTP", layernorm_epsilon=1e-5, swa_num_attention_heads=HEADS, swa_num_key_value_heads=KV_HEADS, swa_head_dim=HEAD_DIM,
        swa_v_head_dim=HEAD_DIM, v_head_dim=HEAD_DIM, sliding_window_size=-1, num_nextn_predict_layers=NUM_STEPS,
        sliding_window=None, attention_bias=False), enable_multi_layer_eagle=True, disable_hybrid_swa_memory=True)
rank = dict(gpu_id=0, tp_rank=0, moe_ep_rank=0, pp_rank=0, attn_cp_rank=0, moe_dp_rank=0, dp_rank=None, nccl_port=PORT)
from sglang.srt import runtime_context
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import bootstrap
runtime_context.publish(args, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=0, gpu_id=0))
bootstrap.init_parallel_runtime(server_args=args, device=DEVICE, dist_port=PORT)
bootstrap.init_layer_runtime(model_config=ModelConfig.from_server_args(args))
mine = ("sglang.srt.speculative.", "sglang.kernels.ops.")  # a stand-in, too: without a GPU, its Triton kernels all the same
[setattr(module, "_is_cpu", False) for name, module in list(sys.modules.items()) if CPU and name.startswith(mine)]
target = call(TpModelWorker, args, **rank)
workers = [target, draft := call(MultiLayerEagleDraftWorker, args, target_worker=target, **rank)]
target.alloc_memory_pool()
[worker.alloc_memory_pool(target.model_runner.memory_pool_config, *target.get_memory_pool()) for worker in workers[1:]]
[worker.init_attention_backends() for worker in workers]
[worker.init_cuda_graphs() for worker in workers]  # graphs are disabled: none is captured yet
from sglang.srt.model_executor.cuda_graph_config import Backend
graphs = runtime_context.get_exec().graph.cuda_graph_config.decode
graphs.backend, graphs.bs, graphs.max_bs = Backend.FULL, BUCKETS, BS
model_runners = list(draft.draft_runner_list)
draft.init_attention_backend()  # once more, now that graphs are on
from sglang.srt.model_executor.graph_shared_output import GraphSharedOutput as Shared
[setattr(one, "graph_shared_output", Shared.create_for_model_runner(one)) for one in (target.model_runner, *model_runners)]
pool, graph_runner = model_runners[0], MultiLayerEagleMultiStepDraftExtendCudaGraphRunner(draft)
for slot in range(1, SLOTS + 1):  # each request slot has KV slots of its own; slot 0, of padding, keeps KV slot 0
    pool.req_to_token_pool.req_to_token[slot, :CONTEXT] = torch.arange((slot - 1) * CONTEXT, slot * CONTEXT) + PAGE

def forward_batch(requests):
    """A batch of these requests, as the worker makes it."""
    count, table = len(requests), pool.req_to_token_pool.req_to_token
    slots, lengths = (torch.tensor([request[n] for request in requests], device=DEVICE) for n in (0, 1))
    prefix, lengths = lengths, lengths + WIDTH
    positions = prefix[:, None] + torch.arange(WIDTH, device=DEVICE)
    accepted = torch.tensor([request[2] for request in requests], device=DEVICE, dtype=torch.int32)
    spec_info = call(
        ExtendInput, hidden_states=torch.ones(count * WIDTH, HIDDEN, dtype=pool.dtype, device=DEVICE), num_tokens_per_req=WIDTH,
        num_tokens_for_logprob_per_req=WIDTH, accept_length=accepted + 1, num_accepted_tokens=accepted + 1,
        num_accepted_drafts=accepted, num_accept_tokens=accepted + 1, num_correct_drafts=accepted)
    fields = dict(
        forward_mode=ForwardMode.DRAFT_EXTEND_V2, input_ids=torch.full((count * WIDTH,), 7, device=DEVICE), spec_info=spec_info,
        positions=positions.flatten(), out_cache_loc=table[slots[:, None], positions].flatten().long(), extend_num_tokens=count * WIDTH,
        extend_seq_lens=(lengths - prefix).int(), extend_prefix_lens=prefix.int(), extend_seq_lens_cpu=[WIDTH] * count,
        extend_start_loc=torch.arange(count, dtype=torch.int32, device=DEVICE) * WIDTH, extend_prefix_lens_cpu=prefix.tolist(),
        capture_hidden_mode=CaptureHiddenMode.FULL, return_hidden_states_before_norm=True)
    fields = dict(
        batch_size=count, req_pool_indices=slots, seq_lens=lengths, seq_lens_cpu=lengths.cpu(), seq_lens_sum=int(lengths.sum()),
        return_logprob=False, spec_algorithm=pool.spec_algorithm, req_to_token_pool=pool.req_to_token_pool,
        token_to_kv_pool=pool.token_to_kv_pool, attn_backend=getattr(pool, "attn_backend", None)) | fields
    return call(ForwardBatch, **fields)

def look_at_launch():
    """Called just before a graph is launched."""
    real = len(CALLS[number])
    buffers = graph_runner.buffers
    for name in BUFFERS:
        held = getattr(buffers, name)[real:BS].flatten().tolist()
        if any(held):
            wrong.append(f"call {number}: padded rows {real}..{BS - 1} of {name} hold {str(held[:4])[1:-1]}")

for number, requests in enumerate(CALLS):
    batch = forward_batch(requests)
    assert graph_runner.can_run_graph(batch)
    graph_runner.prepare(batch)
    graph_runner.replay(0)  # the first layer: the others share its buffers
print(f"sglang {__version__} at {sys.modules['sglang'].__path__[0]}, torch {torch.__version__}, Python {platform.python_version()}")
print("GPU:", "none: CPU tensors, Triton's interpreter, the stand-ins above" if CPU else torch.cuda.get_device_name())
print("expected:", EXPECTED, "\nseen:", "; ".join(dict.fromkeys(wrong)) or "just that")
sys.exit(bool(wrong))
