"""Features of sglang that no setup has: code that is about one of them alone is not mutated. Where such a feature is
off, its guard can slip in many ways that nothing shows, and which say nothing of what is driven."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

# By feature, the words (regular expressions) of which a name that is about it is one.
FEATURES = {
    "sglang's own check of which tokens a graph was given": r"rids_int|bootstrap_room_ids_int|bootstrap_room\w*",
    "models with an encoder": r"is_encoder_decoder|encoder_lens\w*|encoder_len_fill_value|is_encoder_lens_supported",
    "recurrent states in rings, in a unified pool, or kept by a decode": r"\w*replayssm\w*|mamba_v2p_table"
    r"|mamba_translate\w*|enable_mamba\w*|mamba_track_mask\w*|has_mamba_track_mask|track_(conv|ssm|chunk)_\w+",
    "embeddings of n-grams": r"ngram_embedding\w*|ne_token_table|use_ngram_embedding",
    "drafts that are no EAGLE's": r"is_ngram|is_ngram_supported|is_dflash\w*|\w*dspark\w*|is_dllm|dllm\w*"
    r"|\w+_metadata_glue",
    "adapters of weights": r"lora_ids|lora_manager|enable_lora",
    "stages of a pipeline": r"pp|pp_proxy_tensors\w*|pp_size|pp_rank|pp_group|support_pp|start_layer|end_layer",
    "two batches at once": r"enable_two_batch_overlap|tbo_\w+|can_run_tbo|is_tbo_supported|tbo|enable_tbo",
    "prefill beside decode": r"\w*pdmux\w*|stream_idx|get_current_stream_idx",
    "sparse attention over host memory": r"hisparse_\w+|enable_hisparse",
    "sparse attention": r"\w*(dsa|qsa|dsv41)_\w+",
    "short convolutions": r"\w+_conv_sidecar",
    "ranks of tensor parallelism in graphs, and of context parallelism": r"require_attn_tp_gather"
    r"|enable_prefill_cp|attn_cp_\w+|enable_dp_attention|attn_dp_enabled"
    r"|get_attention_cp_size|is_context_parallel_extend|enable_num_token_non_padded|is_prefill_only|register_global_num_tokens",
    "experts, their placement and balance": r"deepep_adapter|eplb_\w+|expert_\w+|elastic_ep\w*|enable_eplb|\w*moe\w*"
    r"|experts_capturer\w*|\w*routed_experts\w*|indexer_capturer\w*|\w*topk_capturer\w*",
    "profiles, timers and debuggers": r"\w*profil\w*|device_timer|forward_pass_id|msprobe\w*|\w*_debugger|debug_\w+"
    r"|_build_step_span_name|dump\w*|step_span_ctx",
    "chunked local attention": r"\w*local_attn\w*|has_local_attention|attention_chunk_size|use_irope",
    "attention to an encoder's tokens": r"is_cross_attention|encoder_metadata|encoder_bs",
    "temperatures of attention": r"xai_temperature_\w+",
    "values of another size in sliding layers": r"swa_v_head_dim|\w*swa_attn_logits",
    "launches that depend on each other": r"use_pdl|USE_PDL",
    "models that embed": r"is_embedding|fa_skip_kv_cache",
    "other generations of GPUs": r"CUDA_CAPABILITY|_is_gfx\w+|_?is_sm\d+\w*|STORE_TRANSPOSE",
    "other platforms than NVIDIA's": r"_?is_hip|_?is_musa|_?is_npu|_?is_xpu|_?is_cpu|_?is_hpu|is_blackwell|_use_aiter",
    "batches with embeddings in place of tokens": r"input_embeds|replace_embeds|replace_positions|token_type_ids",
    "prefill in parts, and models that do not generate": r"is_split_prefill|is_generation|is_mixed|is_prebuilt"
    r"|MIXED|SPLIT_PREFILL|DLLM_EXTEND|PREBUILT",
    "other ways to build graphs": r"piecewise_cuda_graph\w*|\w*breakable\w*|\w*BREAKABLE\w*|memory_saver\w*"
    r"|\w*torch_compile|enable_compile|enable_memory_saver|enable_cudagraph_gc",
    "where graphs have their memory": r"[sg]et_global_graph_memory_pool|graph_pool_handle|set_graph_pool_id",
    "what comes first of several streams and ranks": r"record_stream\w*|synchronize|barrier|wait_stream|wait_event"
    r"|plan_stream\w*",
}
_WORDS = re.compile("|".join(FEATURES.values()))


def alone(node: ast.AST, new: ast.AST) -> bool:
    """True if a slip changes something about a feature alone. new: the node that takes this one's place."""
    if isinstance(node, ast.BoolOp):
        lost = [part for part in node.values if not any(part is kept for kept in _kept(new))]
        return all(_about(part) for part in (lost if len(lost) == 1 else node.values))
    return _about(node)


def _kept(new: ast.AST) -> list[ast.expr]:
    return new.values if isinstance(new, ast.BoolOp) else [new] if isinstance(new, ast.expr) else []


def _about(node: ast.AST) -> bool:
    if isinstance(node, ast.BoolOp):
        return all(_about(part) for part in node.values)
    if isinstance(node, ast.Name):
        return bool(_WORDS.fullmatch(node.id))
    if isinstance(node, ast.Attribute):
        return bool(_WORDS.fullmatch(node.attr)) or _about(node.value)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return bool(_WORDS.fullmatch(node.slice.value)) or _about(node.value)
    return any(_about(part) for part in _said_of(node))


def _said_of(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that say what it is about: of a condition the condition, of a call what is called and what
    is called alone with it, of an assignment what is assigned to."""
    match node:
        case ast.IfExp() | ast.If():
            yield node.test
        case ast.Call():
            yield node.func
            if len(node.args) == 1 and not node.keywords:
                yield node.args[0]
        case ast.Subscript() | ast.Expr() | ast.NamedExpr():
            yield node.value
        case ast.Compare():
            yield from (node.left, *node.comparators)
        case ast.BinOp():
            yield from (node.left, node.right)
        case ast.UnaryOp():
            yield node.operand
        case ast.Assign():
            yield from node.targets
        case ast.AugAssign():
            yield node.target
