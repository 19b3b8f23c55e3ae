"""The counts that a request's last message reports are its own: tokens of prompt and text, rounds, accepted drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from oracles.text import FINISHED
from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.case import Case
from repro.cases.rows.serving import request_number
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "reported"
PROMPT, TEXT, ROUNDS, DRAFTS = "prompt_tokens", "completion_tokens", "spec_verify_ct", "spec_num_correct_drafts"
RETRACTIONS = "retraction_counts"
# A request's rounds: the length of its KV rows before each, and the tokens that were accepted.
Rounds = list[tuple[int, int]]


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """A verdict for each count. Where the overlap schedule retracts, a round under way is dropped, and which one is not
    known: rounds and drafts are at least as many as the text needs."""
    record = Record(trace)
    rounds = _rounds(record, trace)
    wrongs: list[Wrong] = []
    compared = 0
    for number, step in enumerate(case.steps):
        served = record.path(number, Recorded.SERVED)
        if PROMPT not in served:
            continue
        for row, request in enumerate(step.requests):
            if served["ended"][row] != FINISHED:
                continue
            length = int((served["tokens"][row] >= 0).sum())
            want = {PROMPT: request.seq_len, TEXT: length}
            own_rounds = rounds.get(request_number(number, row), [])
            if not (case.setup.overlap and served[RETRACTIONS][row] > 0):
                # The round behind a request's end has no owner.
                tokens = [accepted for before, accepted in own_rounds if before - request.seq_len + 1 < length]
                want |= {ROUNDS: len(tokens), DRAFTS: sum(tokens) - len(tokens)}
            else:
                wrongs += _lacking_rounds(number, row, length, served)
            compared += len(want)
            wrongs += _other_counts(number, row, want, served)
    return conclude_each(ORACLE, wrongs, compared, nothing="no request ended")


def _rounds(record: Record, trace: Trace) -> Mapping[int, Rounds]:
    """The rounds of each request, by its number."""
    rounds: dict[int, Rounds] = {}
    for number in sorted({seen.step for seen in trace.seen if seen.path == Recorded.ROUND_GRAPH}):
        values = record.path(number, Recorded.ROUND_GRAPH)
        if "accepted" in values:
            columns = (values[name].tolist() for name in ("requests", "seq_lens", "accepted"))
            for request, before, accepted in zip(*columns, strict=True):
                rounds.setdefault(request, []).append((before, accepted))
    return rounds


def _other_counts(number: int, row: int, want: Mapping[str, int], served: Mapping[str, Array]) -> Iterator[Wrong]:
    for name, count in want.items():
        got = int(served[name][row])
        if got not in (count, -1):  # a release without such a count
            yield _wrong(number, row, name, got, str(count))


def _lacking_rounds(number: int, row: int, length: int, served: Mapping[str, Array]) -> Iterator[Wrong]:
    """Each prefill gives one token, and so does each round besides its drafts."""
    counts = np.array([int(served[name][row]) for name in (RETRACTIONS, ROUNDS, DRAFTS)])
    if (counts >= 0).all() and 1 + counts.sum() < length:
        yield _wrong(number, row, ROUNDS, int(counts[1]), f"at least {length - 1 - counts[0] - counts[2]}")


def _wrong(number: int, row: int, name: str, got: int, want: str) -> Wrong:
    cell = Cell(step=number, buffer=name, row=row, column=0, got=str(got), want=want)
    detail = f"The last message of request {row} of step {number} reports {name} {got}; its record has {want}."
    return Wrong(where=name, detail=detail, cell=cell)
