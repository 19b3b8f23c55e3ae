"""The names that sglang has for what an oracle found wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Setup
from repro.suspects.statements import plain
from repro.traces.finding import Verdict

# Keys are names in a trace: first those of backends with a page table, then those of any.
_OF_PAGES: Mapping[str, tuple[str, ...]] = {
    "kv_indices": ("page_table",),
    "window_kv_indices": ("swa_page_table", "page_table"),
    "kv_indptr": ("cache_seqlens",),
}
_ALSO: Mapping[str, tuple[str, ...]] = {
    "page table": ("page_table",),
    "num_accept_tokens": ("num_accepted_tokens", "accept_length"),
    "num_correct_drafts": ("num_accepted_drafts",),
    "hidden_pool": ("hidden_states_pool", "req_to_hidden_states_pool"),
    "custom_mask": ("mask", "tree_mask"),
    "draft_slots": ("out_cache_loc",),
    "targets": ("tgt_cache_loc",),
    "sources": ("src_cache_loc",),
}
# Keys are words of a verdict.
FEATURES: Mapping[str, tuple[str, ...]] = {
    "window": ("window", "sliding"),
    "logit cap": ("logit_cap", "logits_soft_cap"),
    "deterministic": ("determin",),
}
_ROW = re.compile(r"(\w+) row\b")


def names_of(verdict: Verdict, setup: Setup) -> set[str]:
    """The plain names of the first wrong value, or of the buffer that a verdict on room names."""
    text = re.sub(r"^planned |\s*guard$|\.\d+$", "", verdict.cell.buffer if verdict.cell else "")
    text = re.sub(r"^(page table) \d+$", r"\1", text)
    row = _ROW.search(verdict.where)
    buffers = {text, *([row[1]] if row and "_" in row[1] else [])}
    also = {**_ALSO, **(_OF_PAGES if BACKEND_FACTS[setup.backend].reads_pages else {})}
    return {plain(name) for buffer in buffers for name in (buffer, *also.get(buffer, ()))}


def features_of(verdict: Verdict) -> list[str]:
    """The words of sources by which what is in play is known."""
    return [word for feature, texts in FEATURES.items() if feature in verdict.where for word in texts]
