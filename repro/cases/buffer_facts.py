"""Input buffers of sglang's graph runners that no family names, with the reason. Where a batch has a field of the same
name, the buffer's real rows are held to it; a buffer that is neither held to anything nor named here is unwatched."""

from __future__ import annotations

# Filled from something else than the batch's field of that name.
NOT_OF_THE_BATCH = {
    "custom_mask": "of the batch that is captured; attention backends have their own",
    "extend_start_loc": "made from extend_seq_lens at capture, and the same for every batch",
    "select_index": "made from the counts of accepted tokens when the graph is launched",
    "num_token_non_padded": "the number of tokens of this rank, which parallel experts ask for",
}
# Of batches of other kinds, which have these fields.
OPTIONAL = {
    "input_ids": "drafts: made in the graph from topk_index",
    "extend_seq_lens": "drafts: of drafts that extend by one token",
    "mrope_positions": "of models with positions in three dimensions, where the setup has none",
    "input_embeds": "of batches with embeddings in place of tokens",
    "encoder_lens": "of models with an encoder",
    "swa_out_cache_loc": "of target models on SWA pools",
    "global_num_tokens_gpu": "of several ranks",
    "global_num_tokens_for_logprob_gpu": "of several ranks",
    "temperatures": "of rejection sampling",
    "top_ks": "of rejection sampling",
}
# With an entry a rank, whatever the batch.
OF_RANKS = frozenset({"num_token_non_padded", "global_num_tokens_gpu", "global_num_tokens_for_logprob_gpu"})
# Those of them that are the ranks' tokens, and how the name of the one ends that counts tokens with logits.
GATHERED = ("global_num_tokens_gpu", "global_num_tokens_for_logprob_gpu")
OF_LOGITS = "_for_logprob_gpu"
# How many ranks there are under data-parallel attention (Setup.dp_attention).
DP_RANKS = 2
# Whose tokens are the second dimension.
TOKENS_SECOND = frozenset({"mrope_positions"})
# Which no graph of this runner reads, whatever the batch says.
UNUSED = {
    ("frozen_kv_mtp", "topk_p"): "the graph makes the first drafts itself, since 0.5.13",
    ("frozen_kv_mtp", "topk_index"): "the graph makes the first drafts itself, since 0.5.13",
}
