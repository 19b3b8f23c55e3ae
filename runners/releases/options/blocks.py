"""Draft models that draft a whole block of tokens in one pass, from hidden states of the target (DFLASH, DSPARK)."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup
from repro.cases.families import GDN
from repro.cases.rows.serving import block_tokens
from repro.cases.runner_facts import MARKOV
from repro.cases.setup import as_drafted
from repro.cases.sharing import share_of
from runners.releases import model
from runners.releases.options.gdn import gdn

ARCHITECTURES = {"DFLASH": "DFlashDraftModel", MARKOV: "Qwen3DSparkModel"}
# Before, another worker drafts blocks.
SINCE = "0.5.14"
# DSPARK's is the first worker of its kind.
MARKOV_SINCE = "0.5.16"
# The width of a token's embedding in a Markov head.
_RANK = 8
# Before, each request for log-probabilities is refused (validate_dflash_request, 0.5.17 dflash_utils.py:843).
LOGPROBS_SINCE = "0.5.18"
# Before, its scheduler leaves out the wait that orders all accesses to the request table (0.5.14 scheduler.py:1484).
ORDERED_SINCE = "0.5.15.post1"
# Before, it refuses data-parallel attention on a GPU (_handle_dflash, 0.5.22 speculative_hook.py:275).
RANKS_SINCE = "0.5.23"
# The layers of the target behind which the hidden states come that a block's draft is given.
FEATURES = (0, 1)
# The draft of a Qwen3-Next is its full layer without gates: of the same width, and with heads turned by half.
_AS_GDN = frozenset({"intermediate_size", "partial_rotary_factor"})


def config(setup: Setup) -> dict[str, Any]:
    """The draft model's configuration: a Llama's layer with norms of its heads, neither embeddings nor a head."""
    block = {
        "block_size": block_tokens(setup),
        "mask_token_id": mask_token(share_of(setup).vocab_size),
        "target_layer_ids": FEATURES,
        "num_target_layers": len(FEATURES) + 1,
    }
    its = {name: value for name, value in gdn(setup).items() if name in _AS_GDN} if setup.family == GDN else {}
    if setup.algorithm == MARKOV:
        its |= {"markov_rank": _RANK, "markov_head_type": "vanilla"}
    return model.llama(as_drafted(setup), ARCHITECTURES[setup.algorithm]) | its | {"dflash_config": block}


def mask_token(vocab_size: int) -> int:
    """The token that stands in a block for those that are to be drafted."""
    return vocab_size - 1
