"""Input buffers of sglang's graph runners whose shape is not that of a request."""

from __future__ import annotations

# With an entry a rank, whatever the batch.
OF_RANKS = frozenset({"num_token_non_padded", "global_num_tokens_gpu", "global_num_tokens_for_logprob_gpu"})
# Those of them that are the ranks' tokens, the same on the host, and a part of the names of those that count the tokens
# with logits.
GATHERED = ("global_num_tokens_gpu", "global_num_tokens_for_logprob_gpu")
GATHERED_ON_HOST = ("global_num_tokens_cpu", "global_num_tokens_for_logprob_cpu")
OF_LOGITS = "_for_logprob_"
# Outputs that are logits.
LOGITS = ("logits", "next_token_logits")
# How many ranks there are under data-parallel attention (Setup.dp_attention).
DP_RANKS = 2
# Whose tokens are the second dimension.
TOKENS_SECOND = frozenset({"mrope_positions", "prepared_mrope_positions"})
