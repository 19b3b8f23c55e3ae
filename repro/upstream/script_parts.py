"""The parts of a script: pieces of each runner, and of each kind of failure, as Python text for sglang alone."""

from __future__ import annotations

from dataclasses import dataclass

_EAGLE = """\
, speculative_algorithm="$algorithm", speculative_num_steps=NUM_STEPS,
    speculative_eagle_topk=TOPK, speculative_num_draft_tokens=DRAFT_TOKENS, speculative_draft_model_path=$draft_model"""
_DRAFT = "workers = [target, draft := call($worker, args, target_worker=target, **rank)]"
_ALONE = "workers = [target]"
_LLAMA_DRAFT = 'model("LlamaForCausalLMEagle")'
_CHAIN = """\
@era 0.5.14 -
draft._rebuild_topk1_chain_buffers()  # sized by the largest bucket
@end
draft.init_attention_backend()  # once more, now that graphs are on"""
_TARGET_BACKEND = """\
norms = [one for one in target.model_runner.model.modules() if type(one).__name__ == "RMSNorm" and not CPU]
[setattr(one, "_forward_method", one.forward_native) for one in norms]  # sglang's kernels for them have no float32
@era 0 0.5.16
target.model_runner.init_attention_backend()  # once more, now that graphs are on
@era 0.5.16 -
target.model_runner.init_attention_backends()
@end"""
_TARGET_IMPORT = """\
@era 0 0.5.14
from sglang.srt.model_executor.cuda_graph_runner import CudaGraphRunner
@era 0.5.14 -
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner as CudaGraphRunner
@end"""
_REPLAY = """\
@era 0 0.5.14
    assert graph_runner.can_run(batch)
    graph_runner.replay(batch)
@era 0.5.14 -
    assert graph_runner.can_run_graph(batch)
    graph_runner.execute(batch)
@end"""
_EXTEND_REPLAY = """\
@era 0 0.5.14
    assert graph_runner.can_run(batch)
    graph_runner.replay(batch)
@era 0.5.14 0.5.20
    assert graph_runner.can_run_graph(batch)
    graph_runner.execute(batch)
@era 0.5.20 -
    assert graph_runner.can_run_graph(batch)
    graph_runner.execute(batch, torch.arange(len(requests), device=DEVICE) * WIDTH)
@end"""
_LAYERS_REPLAY = """\
@era 0 0.5.14
    graph_runner.reset_buffers(batch, types.SimpleNamespace(accept_lens=batch.spec_info.num_accept_tokens))
    graph_runner.get_runner(0).replay(batch, init_state=True)
@era 0.5.14 0.5.15
    graph_runner.reset_buffers(batch, types.SimpleNamespace(accept_lens=batch.spec_info.num_accept_tokens))
    graph_runner.get_runner(0).execute(batch, init_state=True)
@era 0.5.15 -
    assert graph_runner.can_run_graph(batch)
    graph_runner.prepare(batch)
    graph_runner.replay(0)  # the first layer: the others share its buffers
@end"""
_DRAFT_BATCH = """\
    columns = (lengths[:, None] + torch.arange(TOPK * NUM_STEPS, device=DEVICE)).tolist()
    spec_info = EagleDraftInput(
        topk_p=torch.full((count, TOPK), 0.5, device=DEVICE), topk_index=torch.full((count, TOPK), 7, device=DEVICE),
        hidden_states=torch.ones(count, HIDDEN, dtype=pool.dtype, device=DEVICE), capture_hidden_mode=CaptureHiddenMode.LAST)
    fields = dict(
        forward_mode=ForwardMode.DECODE, input_ids=None, positions=lengths.repeat_interleave(TOPK), spec_info=spec_info,
        out_cache_loc=torch.cat([table[slot, row] for slot, row in zip(slots, columns)]).long(),
        capture_hidden_mode=CaptureHiddenMode.LAST)"""
_DECODE_BATCH = """\
    fields = dict(
        forward_mode=ForwardMode.DECODE, input_ids=slots + 1, positions=lengths - 1,
        out_cache_loc=table[slots, lengths - 1].long(), capture_hidden_mode=CaptureHiddenMode.NULL)"""
_VERIFY_BATCH = """\
    tokens = count * DRAFT_TOKENS
    positions = lengths[:, None] + torch.arange(DRAFT_TOKENS, device=DEVICE)
    index = torch.arange(tokens, device=DEVICE).view(count, DRAFT_TOKENS)
    tree = {name: index for name in inspect.signature(EagleVerifyInput).parameters if name.startswith("retri") and "cum" not in name}
    tree |= {name: None for name in inspect.signature(EagleVerifyInput).parameters if name.endswith("cum_len")}
    spec_info = call(
        EagleVerifyInput, draft_token=torch.full((tokens,), 7, device=DEVICE), positions=positions.flatten(), spec_steps=NUM_STEPS,
        custom_mask=torch.ones(int(DRAFT_TOKENS * (lengths + DRAFT_TOKENS).sum()), dtype=torch.bool, device=DEVICE), topk=TOPK,
        draft_token_num=DRAFT_TOKENS, capture_hidden_mode=CaptureHiddenMode.FULL, seq_lens_sum=int(lengths.sum()),
        seq_lens_cpu=lengths.cpu(), **tree)
    fields = dict(
        forward_mode=ForwardMode.TARGET_VERIFY, input_ids=spec_info.draft_token, positions=positions.flatten(), spec_info=spec_info,
        out_cache_loc=table[slots[:, None], positions].flatten().long(), capture_hidden_mode=CaptureHiddenMode.FULL)"""
_EXTEND_BATCH = """\
    prefix, lengths = lengths, lengths + WIDTH
    positions = prefix[:, None] + torch.arange(WIDTH, device=DEVICE)
    accepted = torch.tensor([request[2] for request in requests], device=DEVICE, dtype=torch.int32)
    spec_info = call(
        $input, hidden_states=torch.ones(count * WIDTH, HIDDEN, dtype=pool.dtype, device=DEVICE), num_tokens_per_req=WIDTH,
        num_tokens_for_logprob_per_req=WIDTH, accept_length=accepted + 1, num_accepted_tokens=accepted + 1,
        num_accepted_drafts=accepted, num_accept_tokens=accepted + 1, num_correct_drafts=accepted)
    fields = dict(
        forward_mode=ForwardMode.DRAFT_EXTEND_V2, input_ids=torch.full((count * WIDTH,), 7, device=DEVICE), spec_info=spec_info,
        positions=positions.flatten(), out_cache_loc=table[slots[:, None], positions].flatten().long(), extend_num_tokens=count * WIDTH,
        extend_seq_lens=(lengths - prefix).int(), extend_prefix_lens=prefix.int(), extend_seq_lens_cpu=[WIDTH] * count,
        extend_start_loc=torch.arange(count, dtype=torch.int32, device=DEVICE) * WIDTH, extend_prefix_lens_cpu=prefix.tolist(),
        capture_hidden_mode=CaptureHiddenMode.FULL, return_hidden_states_before_norm=True)"""
_EXTEND_INPUT = """\
@era 0 0.5.14
from sglang.srt.speculative.eagle_info import EagleDraftInput as ExtendInput
@era 0.5.14 -
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput as ExtendInput
@end"""
_MTP_MODEL = """\
model(
        "MiMoV2MTP", layernorm_epsilon=1e-5, swa_num_attention_heads=HEADS, swa_num_key_value_heads=KV_HEADS, swa_head_dim=HEAD_DIM,
        swa_v_head_dim=HEAD_DIM, v_head_dim=HEAD_DIM, sliding_window_size=-1, num_nextn_predict_layers=NUM_STEPS,
        sliding_window=None, attention_bias=False)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one runner's script. imports, arguments, draft, runner: as in parts/setup.txt; batch, replay:
    as in parts/batch.txt, one indentation in. name: of the class that is driven. buffers: where its input buffers are.
    backend: the attention backend whose metadata its graph reads."""

    name: str
    imports: str
    batch: str
    replay: str
    arguments: str = _EAGLE
    worker: str = "EagleDraftWorker"
    draft: str = _DRAFT
    draft_model: str = _LLAMA_DRAFT
    runner: str = "model_runners = [draft.draft_runner]\n" + _CHAIN
    capture: str = ""
    buffers: str = "    buffers = graph_runner.buffers"
    backend: str = "draft.draft_attn_backend"


_SPECULATIVE = "sglang.srt.speculative"
_EAGLE_WORKER = f"from {_SPECULATIVE}.eagle_worker_v2 import EagleDraftWorker"

PARTS = {
    "draft": Parts(
        name="EAGLEDraftCudaGraphRunner",
        imports=f"""\
{_EAGLE_WORKER}
from {_SPECULATIVE}.eagle_draft_cuda_graph_runner import EAGLEDraftCudaGraphRunner
from {_SPECULATIVE}.eagle_info import EagleDraftInput""",
        batch=_DRAFT_BATCH,
        replay=_REPLAY,
        capture="EAGLEDraftCudaGraphRunner(draft)",
    ),
    "decode": Parts(
        name="CudaGraphRunner",
        imports=_TARGET_IMPORT,
        batch=_DECODE_BATCH,
        replay=_REPLAY,
        arguments="",
        draft=_ALONE,
        runner="model_runners = [target.model_runner]\n" + _TARGET_BACKEND,
        capture="CudaGraphRunner(target.model_runner)",
        backend="target.model_runner.attn_backend",
    ),
    "verify": Parts(
        name="CudaGraphRunner in target-verify mode",
        imports=f"""\
{_EAGLE_WORKER}
from {_SPECULATIVE}.eagle_info import EagleVerifyInput
{_TARGET_IMPORT}""",
        batch=_VERIFY_BATCH,
        replay=_REPLAY,
        runner="model_runners = [target.model_runner]\n" + _TARGET_BACKEND,
        capture="CudaGraphRunner(target.model_runner)",
        backend="target.model_runner.attn_backend",
    ),
    "draft_extend": Parts(
        name="EAGLEDraftExtendCudaGraphRunner",
        imports=f"""\
{_EAGLE_WORKER}
from {_SPECULATIVE}.eagle_draft_extend_cuda_graph_runner import EAGLEDraftExtendCudaGraphRunner
{_EXTEND_INPUT}""",
        batch=_EXTEND_BATCH.replace("$input", "ExtendInput"),
        replay=_EXTEND_REPLAY,
        capture="EAGLEDraftExtendCudaGraphRunner(draft)",
        backend="draft.draft_extend_attn_backend",
    ),
    "multi_layer": Parts(
        name="MultiLayerEagleDraftExtendCudaGraphRunner",
        imports=f"""\
from {_SPECULATIVE}.multi_layer_eagle_draft_extend_cuda_graph_runner import MultiLayerEagleMultiStepDraftExtendCudaGraphRunner
from {_SPECULATIVE}.multi_layer_eagle_worker_v2 import MultiLayerEagleDraftWorker
{_EXTEND_INPUT}""",
        arguments=_EAGLE + ", enable_multi_layer_eagle=True, disable_hybrid_swa_memory=True",
        worker="MultiLayerEagleDraftWorker",
        draft_model=_MTP_MODEL,
        batch=_EXTEND_BATCH.replace("$input", "ExtendInput"),
        replay=_LAYERS_REPLAY,
        runner="""\
model_runners = list(draft.draft_runner_list)
draft.init_attention_backend()  # once more, now that graphs are on""",
        capture="MultiLayerEagleMultiStepDraftExtendCudaGraphRunner(draft)",
        buffers="""\
@era 0 0.5.15
    buffers = graph_runner.get_runner(0).buffers
@era 0.5.15 -
    buffers = graph_runner.buffers
@end""",
        backend="draft.draft_extend_attn_backend_list[0]",
    ),
}

PADDING = """\
$buffers
    for name in BUFFERS:
        held = getattr(buffers, name)[real:BS].flatten().tolist()
        if any(held):
            wrong.append(f"call {number}: padded rows {real}..{BS - 1} of {name} hold {str(held[:4])[1:-1]}")"""
PREFIXES = """\
    starts = $backend.kv_indptr[: real + 1].tolist()
    read, own = [stop - start for start, stop in zip(starts, starts[1:])], [request[1] for request in CALLS[number]]
    if read != own:
        wrong.append(f"call {number}: attention reads prefixes of {read} tokens")"""
