"""Drafts from a table of n-grams, into which the worker puts what it has served (NGRAM): there is no draft model."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup

# Before, its worker is of the first kind, which no other algorithm of rounds has.
SINCE = "0.5.14"
# Nodes of the table, which the worker makes before it serves: more than the texts of a case fill.
_NODES = 20_000


def arguments(setup: Setup) -> dict[str, Any]:
    """Arguments of a server, where other algorithms have a draft model and its steps."""
    return {
        "speculative_ngram_max_bfs_breadth": setup.topk,
        "speculative_ngram_capacity": _NODES,
        "speculative_draft_model_path": None,
        "speculative_num_steps": None,
    }
