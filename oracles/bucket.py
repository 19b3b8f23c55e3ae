"""The launched graph is the smallest captured one that holds the batch; a batch that none holds runs eagerly. On
servers of other sizes sglang would capture the right buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oracles.rank_tokens import rank_tokens
from oracles.trace_index import Record, Wrong, conclude
from repro.cases.buffer_facts import DP_RANKS
from repro.cases.case import Case, Step
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "bucket"
RAW = "size of the batch"
BUCKET = "bucket used"
TAKEN = "a batch taken that no graph holds"
REFUSED = "a batch refused that a graph holds"
CAPTURED = "batch sizes to capture"
GRAPH = "size of the graph"
VARIANT = "variant of the graph"
RANKS = "tokens of the ranks"


def judge(case: Case, trace: Trace) -> Verdict:
    record = Record(trace)
    wrongs = list(_wrongly_captured(case, record.path(-1, Recorded.BUCKETS)))
    compared = 0
    for step, case_step in enumerate(case.steps):
        requests, busiest = len(case_step.requests), case_step.busiest
        hidden = case_step.hidden if record.scalar(step, Recorded.ASKED, "hidden") is None else ""
        taken = record.scalar(step, Recorded.ASKED, "can_run")
        if taken is not None:
            compared += 1
            replays = case.setup.replays(busiest, hidden)
            if bool(taken) != replays:
                cell = Cell(step=step, buffer="can_run", row=0, column=0, got=str(taken), want=str(int(replays)))
                problem = "refused, though a graph holds it" if replays else "taken, though no graph holds it"
                detail = (
                    f"In step {step} a batch of {_words(case_step)} was {problem}: buckets {case.setup.capture_bs}."
                )
                wrongs.append(Wrong(where=REFUSED if replays else TAKEN, detail=detail, cell=cell))
        if not case.setup.replays(busiest, hidden):
            continue
        expected = (("raw_bs", requests, RAW), ("bs", case.setup.bucket(busiest), BUCKET))
        for name, want, where in expected:
            got = record.scalar(step, Recorded.LAUNCH, name)
            if got is None:
                continue
            compared += 1
            if got != want:
                cell = Cell(step=step, buffer=name, row=0, column=0, got=str(got), want=str(want))
                detail = (
                    f"In step {step} a batch of {_words(case_step)} was launched with {name} {got}, expected {want} "
                    f"of the buckets {case.setup.capture_bs}."
                )
                wrongs.append(Wrong(where=where, detail=detail, cell=cell))
        wrongs += _wrong_graph(case, step, record.path(step, Recorded.LAUNCHED))
        compared += len(record.path(step, Recorded.GATHERED))
        wrongs += _wrong_ranks(case, step, record)
    order = (TAKEN, REFUSED, RAW, BUCKET, GRAPH, VARIANT, RANKS, CAPTURED)
    return conclude(ORACLE, wrongs, compared, nothing="no graph launched", order=order)


def _wrong_graph(case: Case, step: int, launched: Mapping[str, Array]) -> Iterator[Wrong]:
    """Wrongs of the graph that was captured for the launched bucket: its batch size, and whether it is for greedy
    requests only, where such graphs exist and the batch is greedy."""
    requests = case.steps[step].requests
    expected = {
        "size": (case.setup.bucket(case.steps[step].busiest), GRAPH),
        "greedy": (int(all(request.greedy for request in requests)), VARIANT),
    }
    for name, array in launched.items():
        want, where = expected[name]
        got = int(array)
        if got != want:
            cell = Cell(step=step, buffer=name, row=0, column=0, got=str(got), want=str(want))
            what = f"captured for {got} requests" if name == "size" else f"for {'greedy' if got else 'any'} requests"
            detail = f"In step {step} a batch of {len(requests)} ran through a graph {what}, expected {want}."
            yield Wrong(where=where, detail=detail, cell=cell)


def _wrong_ranks(case: Case, step: int, record: Record) -> Iterator[Wrong]:
    """All ranks replay the graph of one bucket: each has the bucket's tokens, and as many with logits as the graph
    returns for these."""
    bucket = case.setup.bucket(case.steps[step].busiest)
    for name, ranks in record.path(step, Recorded.GATHERED).items():
        if (each := rank_tokens(case, record, name)) is None:
            continue
        want = [bucket * each] * DP_RANKS
        if ranks.tolist() != want:
            cell = Cell(step=step, buffer=name, row=0, column=0, got=str(ranks.tolist()), want=str(want))
            detail = f"In step {step} the graph of bucket {bucket} has {name} {cell.got}, expected {cell.want}."
            yield Wrong(where=RANKS, detail=detail, cell=cell)


def _words(case_step: Step) -> str:
    return f"{len(case_step.requests)}" + (
        f", with {case_step.elsewhere} on the other rank," if case_step.elsewhere else ""
    )


def _wrongly_captured(case: Case, buckets: Mapping[str, Array]) -> Iterator[Wrong]:
    """For each server, the requested buckets up to its largest number of requests, and that number if larger buckets
    were requested. All are multiples of the batches at once, to which the number is rounded up."""
    sizes = case.setup.capture_bs
    for server, captured in buckets.items():
        size, at_once = (int(word.split()[0]) for word in server.split(", "))
        most = -(-size // at_once) * at_once
        want = sorted(
            {b for b in (*sizes, most) if b % at_once == 0 and b <= most and (b in sizes or max(sizes) > most)}
        )
        if captured.tolist() != want:
            cell = Cell(step=-1, buffer="capture_bs", row=size, column=0, got=str(captured.tolist()), want=str(want))
            detail = f"Of buckets {list(sizes)} {cell.got} are captured where {size} requests may run, expected {want}."
            yield Wrong(where=CAPTURED, detail=detail, cell=cell)
