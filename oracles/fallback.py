"""Rounds run each batch through the captured graph that holds it, and prefill graphs have the sizes that their server
was started with."""

from __future__ import annotations

from collections.abc import Iterator

from oracles.trace_index import Record, Wrong, conclude_each
from repro.cases.case import Case
from repro.cases.rows.serving import PREFILL, prefill_buckets
from repro.cases.setup import Setup
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "fallback"
SIZES = " sizes"
REFUSED, SIZES_OF_PREFILLS = "falls back though a graph holds it", "sizes of prefill graphs"
# A prefill that a graph would fill by less than half runs eagerly (prefill_cuda_graph_runner.py, 0.5.23:1419).
_FILLED = 2


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """A verdict for each runner whose graphs are not taken."""
    arrays = Record(trace).path(-1, Recorded.GRAPHS_ASKED)
    wrongs: list[Wrong] = []
    compared = 0
    for name, answers in arrays.items():
        if name.endswith(SIZES):
            continue
        sizes: list[int] = sorted(arrays[f"{name}{SIZES}"].tolist())
        if name.startswith(PREFILL):
            compared += 1
            wrongs += _wrong_sizes(case.setup, name, sizes)
        fitting = [row for row in answers if row[1] and _fits(case.setup, name, int(row[0]), sizes)]
        compared += len(fitting)
        wrongs += _refused(name, fitting, sizes)
    return conclude_each(ORACLE, wrongs, compared, nothing="no graph holds a batch that sglang asked about")


def _fits(setup: Setup, name: str, size: int, sizes: list[int]) -> bool:
    holding = next((each for each in sizes if each >= size), None)
    if not size or holding is None:
        return False
    if name.startswith(PREFILL):
        return holding <= _FILLED * size
    return setup.padded or holding == size


def _refused(name: str, fitting: list[Array], sizes: list[int]) -> Iterator[Wrong]:
    refused = [int(size) for size, _, answer in fitting if not answer]
    if refused:
        unit = "tokens" if name.startswith(PREFILL) else "requests"
        cell = Cell(step=-1, buffer=name, row=-1, column=-1, got="eager", want="graph")
        detail = (
            f"{name} runs a batch of {refused[0]} {unit} without a graph, though graphs of {sizes} were captured: "
            f"{len(refused)} of {len(fitting)} such batches."
        )
        yield Wrong(where=f"{name} {REFUSED}", detail=detail, cell=cell)


def _wrong_sizes(setup: Setup, name: str, sizes: list[int]) -> Iterator[Wrong]:
    """Sizes are at most the tokens of all requests together."""
    want = [size for size in prefill_buckets(setup) if size <= setup.slots * setup.context_len]
    if sizes != want:
        cell = Cell(step=-1, buffer=name, row=-1, column=-1, got=str(sizes), want=str(want))
        detail = f"Graphs of {name} have room for {sizes} tokens, expected {want}."
        yield Wrong(where=SIZES_OF_PREFILLS, detail=detail, cell=cell)
