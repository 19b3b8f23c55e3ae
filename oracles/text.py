"""Each served token is the one that the target gives in float64 after the prompt and the text served before it.

By induction that is the text of plain greedy decoding, without speculation and without graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from oracles.trace_index import Record, Wrong, conclude
from repro.cases.case import Case
from repro.cases.rows.requests import text_end
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "text"
BEYOND = "a token that the vocabulary lacks"
TOKEN, LENGTH = "a token is not the target's", "a text has not as many tokens as were asked for"
# A token whose logit lies below the best one by less than so many times what rounding moves logits by is a tie.
TIE = 10
TIES = "ties"
FINISHED, ABORTED = 1, 2


def judge(case: Case, trace: Trace) -> Verdict:
    """UNKNOWN if a token is another one than the target's at a tie, and nothing else is wrong."""
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = ties = 0
    for number, step in enumerate(case.steps):
        served = record.path(number, Recorded.SERVED)
        if not served:
            continue
        for row, request in enumerate(step.requests):
            if served["ended"][row] == ABORTED:  # what comes with it is no text
                continue
            text = served["tokens"][row]
            text = text[text >= 0]
            if lacks_numbers(served, row):
                wrongs += _beyond(case, number, row, text, served)
                continue
            compared += int((~np.isnan(served["behind"][row, : len(text)])).sum())
            apart = np.flatnonzero(text != served["best"][row, : len(text)])
            tied = served["behind"][row, apart] < TIE * served["noise"][row]
            ties += int(tied.sum())
            if not tied.all():
                wrongs.append(_wrong_token(number, row, int(apart[~tied][0]), text, served))
            most = text_end(case.setup, number, row, request.further, text.tolist())
            wrongs += _wrong_length(number, row, len(text), most, served["ended"][row] == FINISHED)
    if ties and not wrongs:
        detail = f"{ties} tokens are not the target's where two are as likely, within rounding."
        return Verdict(oracle=ORACLE, status=Status.UNKNOWN, where=TIES, detail=detail)
    return conclude(ORACLE, wrongs, compared, nothing="no text", order=(TOKEN, LENGTH, BEYOND))


def lacks_numbers(served: Mapping[str, Array], row: int) -> bool:
    """True of a request whose logits are not numbers, so that nothing is known of its text."""
    return bool(served["without_numbers"][row]) if "without_numbers" in served else False


def lacks_prompt(served: Mapping[str, Array], row: int) -> bool:
    """True of a request that was aborted with one token or none: behind an abort while its grammar is compiled, sglang
    prefills another prompt of one token (set_finish_with_abort, schedule_batch.py, 0.5.23:2221)."""
    return bool(served["ended"][row] == ABORTED) and int((served["tokens"][row] >= 0).sum()) <= 1


def _beyond(case: Case, number: int, row: int, text: Array, served: Mapping[str, Array]) -> Iterator[Wrong]:
    """A text that nothing is known of has tokens of the vocabulary; sglang ends it at the first other number. Sanitized
    logits are all alike, so that any token may be sampled, also one of another rank's share."""
    tokens = case.setup.vocab_size
    beyond = np.flatnonzero(np.greater_equal(text, tokens))
    if beyond.size:
        at, most = int(beyond[0]), tokens - 1
        cell = Cell(step=number, buffer="text", row=row, column=at, got=str(text[at]), want=f"0..{most}")
        detail = (
            f"Token {at} of the text of request {row} of step {number} is {text[at]}, of a vocabulary up to {most}."
        )
        yield Wrong(where=BEYOND, detail=detail, cell=cell)


def _wrong_token(number: int, row: int, at: int, text: Array, served: Mapping[str, Array]) -> Wrong:
    got, want, behind = int(text[at]), int(served["best"][row, at]), float(served["behind"][row, at])
    cell = Cell(step=number, buffer="text", row=row, column=at, got=str(got), want=str(want))
    detail = f"Token {at} of the text of request {row} of step {number} is {got}; the target gives {want}, whose logit"
    return Wrong(where=TOKEN, detail=f"{detail} is larger by {behind:.3g}.", cell=cell)


def _wrong_length(number: int, row: int, got: int, want: int, ended: bool) -> Iterator[Wrong]:
    """A request that did not end may have fewer tokens, which `progress` judges."""
    if got > want or (ended and got < want):
        cell = Cell(step=number, buffer="text", row=row, column=min(got, want), got=str(got), want=str(want))
        detail = f"Request {row} of step {number} asked for {want} tokens and got {got}."
        yield Wrong(where=LENGTH, detail=detail, cell=cell)
