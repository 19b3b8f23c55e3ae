"""The KV rows of target and draft with which rounds continue match one fresh prefill of the same tokens: after accepted
drafts, chunks and retractions, and in prefixes from the tree cache; under deterministic inference in all bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from oracles.drawn_rows import Drawn, layer_of
from oracles.tolerance import NOISE_FACTOR, is_promised, multiplied, of_rounds
from oracles.trace_index import Record, Wrong, conclude_each, text
from repro.cases.case import Case, Setup
from repro.cases.exemptions import exempted
from repro.cases.families import kv_dtype_of
from repro.cases.rows.serving import NOISE, SLIDING, request_number
from repro.cases.runner_facts import FROM_TABLE
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "kv_rows"
OF_REQUESTS = ("requests", "lengths", "cached", "lacking")
DRAFT = "draft_"
OF_DRAFT, CACHED = "rows of the draft", "of a cached prefix"


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """A verdict for each cache, and for its cached prefixes."""
    record = Record(trace)
    afresh = record.path(-1, Recorded.AFRESH)
    # Attention of a prefill and of a verify add the same products in other groups, each rounded by itself.
    engine = trace.facts.get("engine", "")
    exact = is_promised(case.setup.deterministic, engine)
    setup = replace(case.setup, dtype=multiplied(case.setup.dtype, engine), deterministic=exact)
    wrongs: list[Wrong] = []
    drawn = Drawn(setup, record) if OF_DRAFT in exempted(ORACLE, setup, record.release) else None
    compared, prompts = 0, _prompts(case)
    for number in sorted({seen.step for seen in trace.seen if seen.path == Recorded.ROUND_GRAPH}):
        values = record.path(number, Recorded.ROUND_GRAPH)
        if drawn:
            drawn.follow(number)
        for row, request in enumerate(values["requests"].tolist()):
            places = np.flatnonzero(afresh["requests"] == request)
            if places.size and "new_seq_lens" in values:
                place = int(places[0])
                # A draft's row is made of the token behind it, so the last token of a text has none.
                length = min(int(values["new_seq_lens"][row]), int(afresh["lengths"][place]) - 1)
                allowed = _allowed(setup, place, afresh, _exact(setup, prompts[request], int(afresh["cached"][place])))
                compared += length if allowed else 0
                wrongs += _wrong(setup, number, row, length, values, place, afresh, allowed, drawn)
    return conclude_each(ORACLE, wrongs, compared, nothing="no text was prefilled afresh")


def _prompts(case: Case) -> dict[int, int]:
    """The length of each request's prompt, by its number."""
    rows = ((number, row, each) for number, step in enumerate(case.steps) for row, each in enumerate(step.requests))
    return {request_number(number, row): each.seq_len for number, row, each in rows}


def _exact(setup: Setup, prompt: int, cached: int) -> int:
    """The number of a request's first rows that have the right bits: all where a verify goes through the kernel of a
    prefill, else the prompt's. A verify sums a window's keys from its start on, a prefill in tiles of the whole request
    (align_window_kv_to_tiles, extend_attention.py, 0.5.23:294); and FlashAttention merges a prefix with a tree."""
    is_tree = setup.topk > 1 or setup.algorithm in FROM_TABLE
    alike = not setup.window and not (is_tree and setup.backend == "fa3")
    if not setup.deterministic or (cached and not alike):
        return 0
    return setup.context_len + setup.overhang if alike else prompt


def _allowed(setup: Setup, place: int, afresh: Mapping[str, Array], exact: int) -> dict[str, Array]:
    """The distance that each row of this request may have, by cache; a cache is left out if rounding can hide any row.
    exact: the number of its first rows that may have none."""
    allowed: dict[str, Array] = {}
    for name in afresh.keys() - OF_REQUESTS:
        if name.startswith(NOISE):
            continue
        largest = float(np.nanmax(np.abs(afresh[name]), initial=0.0))
        distance = of_rounds(largest, setup.dtype, kv_dtype_of(setup))
        if f"{NOISE}{name}" in afresh:  # an entry that rounds to the next one moves all layers behind it
            distance += NOISE_FACTOR * float(afresh[f"{NOISE}{name}"][place])
        if distance <= largest or not kv_dtype_of(setup):
            allowed[name] = np.where(np.arange(afresh[name].shape[1]) < exact, 0.0, distance)
    return allowed


def _wrong(
    setup: Setup,
    number: int,
    row: int,
    length: int,
    values: Mapping[str, Array],
    place: int,
    afresh: Mapping[str, Array],
    allowed: Mapping[str, Array],
    drawn: Drawn | None,
) -> Iterator[Wrong]:
    """One for each cache in which a row of this request differs by more than is allowed there."""
    lacks_numbers = bool(afresh["lacking"][place]) if "lacking" in afresh else False
    for name in (name for name in afresh if name in allowed):
        if lacks_numbers and name.startswith(DRAFT):  # a masked NaN times zero is NaN
            continue
        # A sliding layer keeps the rows that the next token sees. A round may end past the text.
        ends = max(int(afresh["lengths"][place]), int(values["new_seq_lens"][row]))
        first = max(0, ends - setup.window) if name.startswith(SLIDING) else 0
        got, want = values[name][row, first:length], afresh[name][place, first:length]
        request, cached = int(afresh["requests"][place]), int(afresh["cached"][place])
        is_apart = ~np.isclose(got, want, rtol=0.0, atol=allowed[name][first:length], equal_nan=True)
        if drawn:
            is_apart &= ~drawn.unsaid(request, layer_of(setup, name), cached, length)[first:]
        apart = np.flatnonzero(is_apart)
        if not apart.size:
            continue
        at = first + int(apart[0])
        of_prefix = f" {CACHED}" if at < cached else ""
        cell = Cell(
            step=number, buffer=name, row=row, column=at, got=text(got[at - first]), want=text(want[at - first])
        )
        whose = name.partition("_")[0]
        detail = (
            f"In round {number} the row of token {at} of request {row} in {name}{of_prefix} is {cell.got}, in one "
            f"number; a prefill of the same tokens leaves {cell.want}."
        )
        yield Wrong(where=f"rows of the {whose}{of_prefix}", detail=detail, cell=cell)
