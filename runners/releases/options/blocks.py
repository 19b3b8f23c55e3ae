"""Draft models that draft a whole block of tokens in one pass, from hidden states of the target (DFLASH)."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup
from repro.cases.setup import as_drafted
from runners.releases import model

# Before, another worker drafts blocks.
SINCE = "0.5.14"
# Before, each request for log-probabilities is refused (validate_dflash_request, 0.5.17 dflash_utils.py:843).
LOGPROBS_SINCE = "0.5.18"
# Before, its scheduler leaves out the wait that orders all accesses to the request table (0.5.14 scheduler.py:1484).
ORDERED_SINCE = "0.5.15.post1"
# The layers of the target behind which the hidden states come that a block's draft is given.
FEATURES = (0, 1)


def config(setup: Setup) -> dict[str, Any]:
    """The draft model's configuration: a Llama's layer with norms of its heads, neither embeddings nor a head."""
    block = {
        "block_size": setup.num_draft_tokens,
        "mask_token_id": mask_token(setup.vocab_size),
        "target_layer_ids": FEATURES,
        "num_target_layers": len(FEATURES) + 1,
    }
    return model.llama(as_drafted(setup), "DFlashDraftModel") | {"dflash_config": block}


def mask_token(vocab_size: int) -> int:
    """The token that stands in a block for those that are to be drafted."""
    return vocab_size - 1
