"""Every tensor of a batch is as long as the batch: in each captured bucket in proportion to the largest one, and in
each call as long as the batch, its bucket or the largest bucket, the same in all calls. Integers are as wide in
captures as in eager passes. A captured batch counts its tokens and has as many three-dimensional positions."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from oracles.rank_tokens import rank_tokens
from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.buffer_facts import DP_RANKS, OF_RANKS
from repro.cases.case import Case
from repro.cases.exemptions import exempted
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "extents"
# What is not so long as a batch: of all ranks, of the sequences' lengths, what each call makes for itself, of the
# prompts' tokens those with log-probabilities (0.5.23 layers/logprob_processor.py:776), and the new state slots of the
# last prefill (0.5.19 managers/schedule_batch.py:2879), which prefills alone read (model_runner.py:1674).
_OTHERWISE = OF_RANKS | {
    "extend_input_logprob_token_ids_gpu",
    "global_num_tokens_cpu",
    "original_global_num_tokens_cpu",
    "global_num_tokens_for_logprob_cpu",
    "mamba_clear_indices",
}
_OTHERWISE_PARTS = ("mask", "indptr", "kv_indices", "last_page_len", "window_")


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """UNKNOWN if only one bucket was captured and no call was planned."""
    record = Record(trace)
    captured = {
        name: pairs for name, pairs in record.path(-1, Recorded.EXTENTS_CAPTURED).items() if not _otherwise(name)
    }
    wrongs = list(_out_of_proportion(captured))
    calls, rows = _calls(case, record), exempted(ORACLE, case.setup, record.release)
    for (_, name), of_name in calls.items():
        if f"{name.partition('.')[0]}." in rows and not any(count for _, count, _ in of_name):
            continue
        wrongs += _unlike(name, of_name, _each(name, captured, case.setup.max_bs))
    wrongs += [*_otherwise_wide(case, record), *_not_told(record), *_miscounted(record)]
    wrongs += [*_ranks_captured(case, record), *_ranks_planned(case, record)]
    compared = len(captured) * (len(case.setup.capture_bs) > 1) + len(calls)
    return conclude_each(ORACLE, wrongs, compared, label="length of", nothing="no lengths recorded")


def _otherwise(name: str) -> bool:
    field = name.rpartition(".")[2]
    return field in _OTHERWISE or any(part in field for part in _OTHERWISE_PARTS)


def _out_of_proportion(captured: Mapping[str, Array]) -> Iterator[Wrong]:
    """Wrong proportions of captured batches. If each branch of a request counts as one, batches are larger than their
    buckets, in the same proportions."""
    for name, pairs in captured.items():
        largest = int(pairs[:, 0].max())
        most = [int(count) for size, count in pairs if size == largest]
        for size, count in pairs.tolist():
            if all(count * largest != other * size for other in most):
                want = " or ".join(str(other * size // largest) for other in most)
                cell = Cell(step=-1, buffer=name, row=count, column=0, got=str(count), want=want)
                detail = f"{name} of a captured batch of {size} has {count} entries; of one of {largest} {most}."
                yield Wrong(where=f"{name}, captured", detail=detail, cell=cell)
                break


def _each(name: str, captured: Mapping[str, Array], requests: int) -> float | None:
    """The entries of a field for each request in captures. Unknown if there are several graphs, and for fields that the
    steps of a draft change before attention is called."""
    pairs = captured.get(name, np.empty((0, 2)))
    largest = pairs[:, 0].max(initial=0)
    every = {count / requests for size, count in pairs.tolist() if size == largest}
    is_changed = name == "out_cache_loc" or "." in name
    return every.pop() if len(every) == 1 and not is_changed else None


def _not_told(record: Record) -> Iterator[Wrong]:
    """Parallel layers get the token count of a captured batch, of this rank and of all ranks."""
    captured = record.path(-1, Recorded.TOKENS_CAPTURED)
    for name, whose, ranks in (("own", "this rank's", 1), ("gathered", "all ranks'", DP_RANKS)):
        for tokens, counted in captured.get(name, np.empty((0, 2), dtype=np.int64)).tolist():
            if counted != ranks * tokens:
                want = str(ranks * tokens)
                cell = Cell(step=-1, buffer=f"{whose} tokens", row=-1, column=-1, got=str(counted), want=want)
                detail = f"Parallel layers count {counted} as {whose} tokens where a batch of {tokens} is captured."
                yield Wrong(where=f"{whose} tokens, as told to parallel layers", detail=detail, cell=cell)
                return


def _ranks_captured(case: Case, record: Record) -> Iterator[Wrong]:
    """A captured batch has host lists of each rank's tokens, and of those with logits."""
    for name, counts in record.path(-1, Recorded.RANKS_CAPTURED).items():
        if (each := rank_tokens(case, record, name)) is None:
            continue
        for size, *ranks in counts.tolist():
            if ranks != [size * each] * DP_RANKS:
                want = str([size * each] * DP_RANKS)
                cell = Cell(step=-1, buffer=name, row=-1, column=-1, got=str(ranks), want=want)
                detail = f"{name} is {ranks} where a batch of {size} is captured, expected {want}."
                yield Wrong(where=f"{name}, captured", detail=detail, cell=cell)
                break


def _ranks_planned(case: Case, record: Record) -> Iterator[Wrong]:
    """A planned batch has the bucket's counts in these lists, or the caller's: those of the real tokens."""
    for step, case_step in enumerate(case.steps):
        real = [len(case_step.requests), case_step.elsewhere]
        for name, ranks in record.path(step, Recorded.GATHERED_ON_HOST).items():
            if (each := rank_tokens(case, record, name)) is None:
                continue
            bucket = [case.setup.bucket(case_step.busiest)] * DP_RANKS
            expected = [[count * each for count in counts] for counts in (bucket, real)]
            if ranks.tolist() not in expected:
                cell = Cell(step=step, buffer=name, row=0, column=0, got=str(ranks.tolist()), want=str(expected[0]))
                detail = f"In step {step} {name} is {cell.got} where a graph is planned, expected {cell.want}."
                yield Wrong(where=f"{name}, planned", detail=detail, cell=cell)


def _miscounted(record: Record) -> Iterator[Wrong]:
    """A captured batch counts the tokens that attention then has, and has as many three-dimensional positions."""
    for name, counts in record.path(-1, Recorded.COUNTS_CAPTURED).items():
        for tokens, count in counts.tolist():
            if count != tokens:
                cell = Cell(step=-1, buffer=name, row=-1, column=-1, got=str(count), want=str(tokens))
                detail = f"{name} is {count} where a batch of {tokens} tokens is captured."
                yield Wrong(where=f"{name}, captured", detail=detail, cell=cell)
                break


def _otherwise_wide(case: Case, record: Record) -> Iterator[Wrong]:
    captured, rows = record.path(-1, Recorded.WIDTHS_CAPTURED), exempted(ORACLE, case.setup, record.release)
    for step in range(len(case.steps)):
        for name, width in record.path(step, Recorded.WIDTHS).items():
            if name.rpartition(".")[2] in rows or name not in captured or int(captured[name]) == int(width):
                continue
            got, want = (f"int{8 * int(bytes_each)}" for bytes_each in (captured[name], width))
            cell = Cell(step=step, buffer=name, row=-1, column=-1, got=got, want=want)
            detail = f"{name} is {got} where graphs are captured, and {want} in the eager pass of step {step}."
            yield Wrong(where=f"{name}, integers", detail=detail, cell=cell)


# A call: its step, how many entries a field has, and how many requests the batch, its bucket and the largest one have.
Call = tuple[int, int, tuple[int, int, int]]


def _calls(case: Case, record: Record) -> dict[tuple[int, str], list[Call]]:
    """Calls by the step of their plan, and by field."""
    calls: defaultdict[tuple[int, str], list[Call]] = defaultdict(list)
    for step, case_step in enumerate(case.steps):
        bs = record.scalar(step, Recorded.LAUNCH, "bs")
        if not case_step.requests or bs is None:
            continue
        sizes = (len(case_step.requests), bs, case.setup.max_bs)
        for call in itertools.count():
            plan = record.path(step, Recorded.EXTENTS, call)
            if not plan:
                break
            for name, count in plan.items():
                if not _otherwise(name):
                    calls[call, name].append((step, int(count), sizes))
    return calls


def _unlike(name: str, calls: Sequence[Call], each: float | None) -> Iterator[Wrong]:
    """The first call after which no single size explains all calls. each: the entries for each request in captures, if
    known."""
    for last in range(len(calls)):
        if not any(_explained(calls[: last + 1], kind, each) for kind in range(3)):
            step, count, sizes = calls[last]
            cell = Cell(step=step, buffer=name, row=count, column=0, got=str(count), want=str(sizes[1]))
            detail = (
                f"In step {step} {name} is planned with {count} entries: a batch of {sizes[0]} in a bucket of "
                f"{sizes[1]}, the largest is {sizes[2]}."
            )
            yield Wrong(where=name, detail=detail, cell=cell)
            return


def _explained(calls: Sequence[Call], kind: int, each: float | None) -> bool:
    """True if each call has the same whole number of entries for every request of this size."""
    _, first, sizes = calls[0]
    whole = first // sizes[kind] if each is None else each
    return whole > 0 and all(count == whole * sizes[kind] for _, count, sizes in calls)
