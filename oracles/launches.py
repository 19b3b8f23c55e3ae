"""The oracles of single runners judge every graph launch inside rounds, on the batches that the worker built: the
launches of one runner are the steps of one case."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from oracles import (
    bucket,
    extents,
    kv_indices,
    metadata_shape,
    planned,
    row_width,
    slot0_padding,
    staged,
    tree_mask,
)
from oracles.trace_index import Judge, Record
from repro.cases.case import Case, Request, Setup, Step
from repro.cases.rows.serving import ELSEWHERE, GREEDY, launched, runner_of
from repro.traces.finding import Status, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, End, RecordedArray, Termination, Trace

ORACLE = "launches"
NOTHING, UNJUDGED = "no graph launched", "no oracle knows these launches"
JUDGES: tuple[Judge, ...] = (
    bucket.judge,
    staged.judge,
    slot0_padding.judge,
    planned.judge,
    extents.judge,
    metadata_shape.judge,
    row_width.judge,
    kv_indices.judge,
    tree_mask.judge,
)


@dataclass(slots=True)
class _Launches:
    """The launches of one runner's graphs. Mutable: it gathers them."""

    steps: list[Step] = field(default_factory=list)
    seen: list[RecordedArray] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # each launch's among all


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """Failures carry the name of the oracle that found them and the runner that was launched. Oracles that passed for
    every runner are listed as well."""
    runners = _by_runner(case.setup, Record(trace))
    verdicts = _different(v for runner, launches in runners.items() for v in _judged(case, trace, runner, launches))
    if not verdicts:
        where = UNJUDGED if runners else NOTHING
        detail = f"Nothing was compared: {where}."
        return (Verdict(oracle=ORACLE, status=Status.UNKNOWN, where=where, detail=detail),)
    wrongs = tuple(verdict for verdict in verdicts if verdict.status is Status.FAIL)
    passed = {verdict.oracle for verdict in verdicts} - {verdict.oracle for verdict in wrongs}
    alone = (Verdict(oracle=ORACLE, status=Status.PASS),) if not wrongs else ()
    return (*wrongs, *alone, *(Verdict(oracle=name, status=Status.PASS) for name in sorted(passed)))


def _different(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The first of each kind: layers that have graphs of their own go wrong together, by one cause."""
    kinds: dict[tuple[object, ...], Verdict] = {}
    for each in verdicts:
        kinds.setdefault((each.oracle, each.status, each.where, each.runner), each)
    return list(kinds.values())


def _judged(case: Case, trace: Trace, runner: str, launches: _Launches) -> Iterator[Verdict]:
    alone = Case(setup=launched(case.setup, runner), steps=tuple(launches.steps))
    record = Trace(ended=End(how=Termination.DONE), seen=tuple(launches.seen), facts=trace.facts)
    for each in JUDGES:
        verdicts = each(alone, record)
        for verdict in (verdicts,) if isinstance(verdicts, Verdict) else verdicts:
            if verdict.status is not Status.UNKNOWN:
                yield _told(verdict, runner, launches)


def _told(verdict: Verdict, runner: str, launches: _Launches) -> Verdict:
    cell, step = verdict.cell, verdict.cell.step if verdict.cell else -1
    if cell is None or step < 0:  # wrong of all
        return replace(verdict, runner=runner_of(runner))
    number = launches.numbers[step]
    detail = f"Launch {number} of these rounds, step {step} of those of {runner}: {verdict.detail}"
    return replace(verdict, cell=replace(cell, step=number), detail=detail, runner=runner_of(runner))


def _by_runner(setup: Setup, record: Record) -> Mapping[str, _Launches]:
    runners: dict[str, _Launches] = defaultdict(_Launches)
    number = 0
    while arrays := record.path(number, Recorded.ROUND_LAUNCH):
        runner = next(iter(arrays)).partition("/")[0]
        launches, step = runners[runner], len(runners[runner].steps)
        batch: dict[str, Array] = {}
        for whole_name, array in arrays.items():
            _, path, name = whole_name.split("/", 2)
            at = -1 if path == Recorded.NEUTRAL else step  # what padding must hold is the same in all steps
            launches.seen.append(RecordedArray(step=at, path=path, name=name, array=array))
            if path == Recorded.INPUT:
                batch[name] = array
        elsewhere = int(batch[ELSEWHERE]) if ELSEWHERE in batch else 0
        launches.steps.append(Step(requests=tuple(_requests(launched(setup, runner), batch)), elsewhere=elsewhere))
        launches.numbers.append(number)
        number += 1
    return runners


def _requests(setup: Setup, batch: Mapping[str, Array]) -> Iterator[Request]:
    """Their rows of the request table come behind row 0, in the order of the batch. Where tokens are extended, lengths
    count them."""
    lengths = batch["seq_lens"].astype(np.int64)
    lengths = lengths[:, 0] if lengths.ndim > 1 else lengths
    accepted = batch.get("num_accept_tokens")
    more = 0 if accepted is None else setup.num_draft_tokens
    greedy = GREEDY in batch and bool(batch[GREEDY])
    for row, length in enumerate(lengths.tolist()):
        drafts = 0 if accepted is None else int(accepted.reshape(-1)[row]) - 1
        yield Request(slot=row + 1, seq_len=length - more, data=0, accepted=drafts, greedy=greedy)
