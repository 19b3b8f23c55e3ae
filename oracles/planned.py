"""Attention metadata is built from values that agree with each other, the batch and the bucket: lengths on the host
equal those on the device and are absent if the batch has none, sums equal the sum of the lengths, and rows after the
batch are padding."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from oracles.trace_index import Record, Wrong, conclude_each, first_difference, passing
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case, Setup
from repro.cases.exemptions import Exemption, exempted
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "planned"
PATHS = (Recorded.PLANNED, Recorded.PLANNED_EAGER)
# Lengths on the host that a batch without them is planned with: those of an earlier one.
UNPUBLISHED = "seq_lens_cpu of a batch without"
# Host mirrors, by the field that they mirror.
MIRRORS = {"seq_lens_cpu": "seq_lens", "spec_extend_seq_lens_cpu": "extend_seq_lens"}
# Per request, and padded by a neutral value where there is one.
BY_REQUEST = ("seq_lens", "req_pool_indices", "num_accept_tokens", "num_correct_drafts", "extend_seq_lens")
OF_ALL_LAYERS = frozenset({"seq_lens", "req_pool_indices"})
# What is recorded of each switch behind the number of draft steps that was asked for.
_GOES_BY = ("the worker", "the draft worker", "the worker's draft tokens", "the draft worker's draft tokens")
# Per token: those of the batch, and behind them those of padded rows, where these are handed over as well.
BY_TOKEN = ("out_cache_loc", "positions", "mrope_positions", "input_ids", "spec_positions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The planned rows, in all and of the batch; a request may be repeated for its branches."""

    planned: int
    real: int


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    record = Record(trace)
    wrongs = [*_other_backends(case.setup, record), *_other_steps(record)]
    compared = 0
    for step in range(len(case.steps)):
        wrongs += _another_of_eager(record, step)
        for path in PATHS:
            for call, plan in enumerate(_plans(record, step, path)):
                compared += 1
                wrongs += _judge_plan(case, record, step, path, plan, first=not call)
    rows = {value for value, row in exempted(ORACLE, case.setup, record.release).items() if row.within is None}
    stale = {wrong.where for wrong in wrongs if wrong.where in rows}
    wrongs = [wrong for wrong in wrongs if wrong.where not in rows]
    return passing(conclude_each(ORACLE, wrongs, compared, label="planned with", nothing="no plan recorded"), stale)


def _other_backends(setup: Setup, record: Record) -> Iterator[Wrong]:
    """All attention backends of workers are of the setup's kind, used or not."""
    for kind in record.path(-1, Recorded.BACKENDS):
        classes = BACKEND_FACTS[setup.backend].classes
        if not kind.startswith(classes):
            cell = Cell(step=-1, buffer="backend", row=-1, column=-1, got=kind, want=f"{classes}...")
            yield Wrong(where="another backend", detail=f"A worker has a {kind}, and asked for {classes}.", cell=cell)


def _another_of_eager(record: Record, step: int) -> Iterator[Wrong]:
    """Both paths plan with one backend, if each plans once. Layers with a plan of their own have a backend each."""
    plans = [list(_plans(record, step, path)) for path in PATHS]
    if any(len(each) != 1 or "backend" not in each[0] for each in plans):
        return
    graph, eager = (each[0]["backend"] for each in plans)
    if int(graph) == int(eager):
        return
    cell = Cell(step=step, buffer="backend", row=0, column=0, got=str(int(eager)), want=str(int(graph)))
    detail = f"In step {step} eager plans with attention backend {cell.got} of the workers, the graph with {cell.want}."
    yield Wrong(where="eager's backend", detail=detail, cell=cell)


def _other_steps(record: Record) -> Iterator[Wrong]:
    """A worker that switches to another number of draft steps uses it from then on."""
    for row, (expected, *actual) in enumerate(record.path(-1, Recorded.SWITCHES).get("steps", ())):
        for column, steps in enumerate(actual, start=1):
            if steps != expected:
                cell = Cell(step=-1, buffer="switches", row=row, column=column, got=str(steps), want=str(expected))
                detail = f"After switch {row} to {expected} draft steps, {_GOES_BY[column - 1]} says {steps}."
                yield Wrong(where="another number of draft steps", detail=detail, cell=cell)


def _plans(record: Record, step: int, path: Recorded) -> Iterator[Mapping[str, Array]]:
    for call in itertools.count():
        plan = record.path(step, path, call)
        if not plan:
            return
        yield plan


def _judge_plan(
    case: Case, record: Record, step: int, path: Recorded, plan: Mapping[str, Array], *, first: bool
) -> Iterator[Wrong]:
    """first: whether it is the call's first plan. Later layers compute other tokens of the same requests."""
    batch = record.path(step, Recorded.INPUT)
    lengths = plan.get("seq_lens")
    requests = len(case.steps[step].requests)
    real = batch["seq_lens"].size
    bs = record.scalar(step, Recorded.LAUNCH, "bs") if path == Recorded.PLANNED else requests
    if lengths is None or bs is None:
        return
    eager = "" if path == Recorded.PLANNED else "eager's "

    def wrong(name: str, cell: Cell) -> Wrong:
        detail = f"In step {step} attention's metadata is made with {eager}{name} {cell.got} in row {cell.row}"
        return Wrong(where=f"{eager}{name}", detail=f"{detail}, expected {cell.want}.", cell=cell)

    rows = Rows(planned=bs * (real // requests if requests else 1), real=real)
    if "batch_size" in plan and (got := int(plan["batch_size"])) != rows.planned:
        cell = Cell(step=step, buffer="batch_size", row=0, column=0, got=str(got), want=str(rows.planned))
        yield wrong("batch_size", cell)
    launched = record.buffers(step) if path == Recorded.PLANNED else {}
    fields = _fields(plan, batch, launched, rows)
    judged = (*fields,) if first else (field for field in fields if field[0] in OF_ALL_LAYERS)
    before = record.path(step, Recorded.BEFORE)
    is_published = not before or "seq_lens_cpu" in before
    bounds = exempted(ORACLE, case.setup, record.release)
    mirrors = _mirrors(case.setup, bounds, plan, rows, is_published=is_published)
    for name, got, want in (*judged, *mirrors):
        differs = first_difference(step, f"planned {name}", got, want)
        if differs:
            yield wrong(name, differs)
    if path == Recorded.PLANNED and "seq_lens_cpu" in plan and not is_published:
        stale = str(plan["seq_lens_cpu"].reshape(-1)[: rows.planned].tolist())
        cell = Cell(step=step, buffer="planned seq_lens_cpu", row=0, column=0, got=stale, want="none")
        detail = f"In step {step} attention's metadata is made with seq_lens_cpu {stale}, and the batch has none."
        yield Wrong(where=UNPUBLISHED, detail=detail, cell=cell)


def _fields(
    plan: Mapping[str, Array], batch: Mapping[str, Array], launched: Mapping[str, Array], rows: Rows
) -> Iterator[tuple[str, Array, Array]]:
    """Name, planned value and expected value: that of the launch, padded rows included, or of the batch if the launch
    is not recorded."""
    for name in BY_REQUEST:
        want = launched.get(name, batch.get(name))
        if name in plan and want is not None:
            yield name, plan[name].reshape(-1)[: rows.planned], want.reshape(-1)[: rows.planned]
    for name in BY_TOKEN:
        field = name.removeprefix("spec_")
        if name in plan and (expected := batch.get(field)) is not None:
            got, want = plan[name].reshape(-1), launched.get(field, expected).reshape(-1)
            padded = expected.size // rows.real * rows.planned if rows.real and field in launched else 0
            count = max(expected.size, min(got.size, padded))
            yield name, got[:count], want[:count]


def _mirrors(
    setup: Setup, bounds: Mapping[str, Exemption], plan: Mapping[str, Array], rows: Rows, *, is_published: bool
) -> Iterator[tuple[str, Array, Array]]:
    """is_published: whether the batch has lengths on the host. bounds: rows by whose value a number may lie beyond."""

    def allowed(name: str, got: Array, exact: Array, requests: int = 1) -> Array:
        """The exact number, or the one that was got if it lies within the bounds of so many requests."""
        if name not in bounds or (within := bounds[name].within) is None:
            return exact
        low, high = within(setup)
        return np.clip(got, exact + requests * int(low), exact + requests * (int(high) - 1))

    for name, mirrored in MIRRORS.items():
        if name in plan and mirrored in plan and (is_published or name != "seq_lens_cpu"):
            got, lengths = (plan[each].reshape(-1)[: rows.planned] for each in (name, mirrored))
            yield name, got, allowed(name, got, lengths)
    if "seq_lens_sum" in plan:
        got, total = plan["seq_lens_sum"].reshape(1), plan["seq_lens"].reshape(-1)[: rows.planned].astype(np.int64)
        yield "seq_lens_sum", got, allowed("seq_lens_sum", got, np.asarray([total.sum()]), rows.planned)
