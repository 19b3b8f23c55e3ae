"""The target's logits for each accepted token match a float64 pass over prompt and text, and so do the states that
rounds leave in recurrent layers, log-probabilities and hidden states that requests are returned, and what is
drafted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from oracles.text import FINISHED, TIE, lacks_numbers, lacks_prompt
from oracles.trace_index import Record, Wrong, conclude
from repro.cases.case import Case
from repro.cases.rows.serving import NOISE, STATE, asks_logprobs, asks_states, prompt_start
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "logits"
OFF, RETURNED = "logits of an accepted token", "log-probabilities that were returned"
COUNT = "number of log-probabilities that were returned"
PROMPT, PROMPT_COUNT = "log-probabilities of a prompt", "number of log-probabilities of a prompt"
KEPT = "states of recurrent layers behind a round"
STATES, STATES_COUNT = "hidden states that were returned", "number of hidden states that were returned"
DRAFTED = "tokens that were drafted"
UNSANITIZED = "logits that a server was to sanitize"
# A log-probability moves by as much as its own logit and the sum over all.
_BOTH = 2.0


def judge(case: Case, trace: Trace) -> Verdict:
    """Each is judged after the text that was served, right or wrong. UNKNOWN if no logits were recorded."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for number in range(len(case.steps)):
        served = record.path(number, Recorded.SERVED)
        if "off" not in served:
            continue
        for row, distances in enumerate(served["off"]):
            if case.setup.sanitizes and "not_numbers" in served:
                compared += 1
                wrongs += _unsanitized(number, row, int(served["not_numbers"][row]))
            if lacks_numbers(served, row) or lacks_prompt(served, row):
                continue
            length = int((served["best"][row] >= 0).sum())
            compared += int((~np.isnan(distances[:length])).sum())
            wrongs += _wrong(number, row, OFF, distances[:length], TIE * float(served["noise"][row]))
            for name in (name for name in served if name.startswith(STATE)):
                compared += int((~np.isnan(served[name][row])).sum())
                wrongs += _wrong(number, row, KEPT, served[name][row], TIE * float(served[f"{NOISE}{name}"][row]))
            if "drafts" in served:
                compared += int((~np.isnan(served["drafts"][row])).sum())
                wrongs += _wrong_drafts(number, row, served)
            if asks_logprobs(case.setup, row) and served["ended"][row] == FINISHED:
                compared += int((~np.isnan(served["likely"][row, :length])).sum())
                wrongs += _wrong_returned(number, row, length, served)
            start = prompt_start(case.setup, row, case.steps[number].requests[row].seq_len)
            if start >= 0 and served["ended"][row] == FINISHED:
                likely = served["prompt_likely"][row, start:]
                likely = likely[~np.isnan(likely)]
                compared += len(likely)
                wrongs += _wrong_prompt(number, row, likely, served)
            if asks_states(case.setup, row) and served["ended"][row] == FINISHED:
                compared += length
                wrongs += _wrong_states(number, row, length, served)
    order = (KEPT, OFF, COUNT, RETURNED, PROMPT_COUNT, PROMPT, STATES_COUNT, STATES, DRAFTED, UNSANITIZED)
    return conclude(ORACLE, wrongs, compared, nothing="no logits seen", order=order)


def _unsanitized(number: int, row: int, count: int) -> Iterator[Wrong]:
    if count:
        cell = Cell(step=number, buffer="logits", row=row, column=0, got=f"{count} not numbers", want="0")
        detail = f"{count} of the logits that were sampled from for request {row} of step {number} are not numbers."
        yield Wrong(where=UNSANITIZED, detail=detail, cell=cell)


def _wrong_returned(number: int, row: int, length: int, served: Mapping[str, Array]) -> Iterator[Wrong]:
    """served: NaN where nothing was returned."""
    returned, likely = served["returned"][row], served["likely"][row, :length]
    count = int(np.isfinite(returned).sum())
    if count != length:
        yield _miscounted(number, row, (count, length), COUNT, "log-probabilities")
    else:
        allowed = _BOTH * TIE * float(served["noise"][row])
        yield from _wrong(number, row, RETURNED, np.abs(returned[:length] - likely), allowed)


def _wrong_prompt(number: int, row: int, likely: Any, served: Mapping[str, Array]) -> Iterator[Wrong]:
    """likely: those of all tokens behind the first that was asked for, of which NaN is returned."""
    returned = served["prompt"][row, 1:]
    count = int(np.isfinite(returned).sum())
    if count != len(likely):
        yield _miscounted(number, row, (count, len(likely)), PROMPT_COUNT, "log-probabilities of a prompt")
    else:
        allowed = _BOTH * TIE * float(served["prompt_noise"][row])
        yield from _wrong(number, row, PROMPT, np.abs(returned[: len(likely)] - likely), allowed, of="prompt")


def _wrong_states(number: int, row: int, length: int, served: Mapping[str, Array]) -> Iterator[Wrong]:
    """served: distances of hidden states from those in float64, NaN where nothing was returned."""
    distances = served["states"][row]
    count = int((~np.isnan(distances)).sum())
    if count != length:
        yield _miscounted(number, row, (count, length), STATES_COUNT, "hidden states")
    else:
        yield from _wrong(number, row, STATES, distances[:length], TIE * float(served["states_noise"][row]))


def _wrong_drafts(number: int, row: int, served: Mapping[str, Array]) -> Iterator[Wrong]:
    """served: the distance of each draft from one that could stand in its place, as the model has it in float64."""
    distances, allowed = served["drafts"][row], TIE * float(served["drafts_noise"][row])
    wrong = np.flatnonzero(distances > allowed)
    if wrong.size:
        at, got = int(wrong[0]), float(distances[wrong[0]])
        cell = Cell(step=number, buffer="drafts", row=row, column=at, got=f"{got:.3g}", want=f"{allowed:.3g}")
        detail = (
            f"Draft {at} of the rounds of request {row} of step {number} lies {got:.3g} behind the draft model's best "
            f"token in float64; rounding explains {allowed:.3g}. {wrong.size} of {distances.size} do."
        )
        yield Wrong(where=DRAFTED, detail=detail, cell=cell)


def _miscounted(number: int, row: int, counts: tuple[int, int], where: str, words: str) -> Wrong:
    """counts: the number that came, and that of tokens."""
    count, length = counts
    cell = Cell(step=number, buffer=words, row=row, column=min(counts), got=str(count), want=str(length))
    return Wrong(
        where=where, detail=f"Request {row} of step {number} got {count} {words} for {length} tokens.", cell=cell
    )


def _wrong(number: int, row: int, where: str, distances: Any, allowed: float, of: str = "text") -> Iterator[Wrong]:
    """of: the tokens that the distances are of; of a prompt all behind the first that was asked for."""
    wrong = np.flatnonzero(distances > allowed)
    if wrong.size:
        at, got = int(wrong[0]), float(distances[wrong[0]])
        cell = Cell(step=number, buffer="logits", row=row, column=at, got=f"{got:.3g}", want=f"{allowed:.3g}")
        detail = (
            f"The {where}, token {at} of the {of} of request {row} of step {number}, lie {got:.3g} off those in "
            f"float64; rounding explains {allowed:.3g}."
        )
        yield Wrong(where=where, detail=detail, cell=cell)
