"""All oracles, the one way to ask them, and the status of a run from their verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from oracles import (
    attributes,
    bucket,
    callers_batch,
    collectives,
    ended,
    extents,
    fallback,
    graph_equals_eager,
    handed_on,
    history,
    kept_outputs,
    kv_indices,
    kv_moves,
    kv_reads,
    kv_rows,
    kv_writes,
    launches,
    leaks,
    lifetime,
    liveness,
    logits,
    memory,
    metadata_once,
    metadata_shape,
    order,
    padded,
    planned,
    probes,
    progress,
    reference,
    reported,
    rounds,
    row_width,
    slot0_padding,
    staged,
    state_values,
    state_writes,
    text,
    tree_mask,
    verified,
)
from oracles.kv_indices import GUARD
from oracles.trace_index import Judge
from repro.cases.case import Case
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import ENDED, RAISED, Status, Verdict, worst
from repro.traces.paths import PATHS
from repro.traces.trace import Termination, Trace

ALL: tuple[Judge, ...] = (
    ended.judge,
    bucket.judge,
    staged.judge,
    slot0_padding.judge,
    planned.judge,
    extents.judge,
    metadata_shape.judge,
    row_width.judge,
    tree_mask.judge,
    kv_indices.judge,
    kv_reads.judge,
    kv_writes.judge,
    kv_moves.judge,
    state_writes.judge,
    state_values.judge,
    history.judge,
    attributes.judge,
    memory.judge,
    metadata_once.judge,
    verified.judge,
    text.judge,
    logits.judge,
    rounds.judge,
    launches.judge,
    fallback.judge,
    lifetime.judge,
    liveness.judge,
    order.judge,
    padded.judge,
    collectives.judge,
    handed_on.judge,
    kv_rows.judge,
    progress.judge,
    reported.judge,
    leaks.judge,
    probes.judge,
    graph_equals_eager.judge,
    reference.judge,
    callers_batch.judge,
    kept_outputs.judge,
)

# Oracles that judge every run, and those that judge some runners alone, as runner_facts names them.
OF_ALL = frozenset({ended.ORACLE})
OF_SOME = frozenset(name for facts in RUNNER_FACTS.values() for name in facts.own_oracles)

# A pass needs both: that the run came to its end, and that what its runner is driven for was compared: a graph's
# results with eager's, or what the session of a runner without a graph records.
COMPARED = frozenset(
    name
    for facts in RUNNER_FACTS.values()
    for name in ((graph_equals_eager.ORACLE,) if facts.graph else facts.own_oracles)
)

# Where in a trace there is what these judge, which some engines alone record.
_RECORDED_AS = {row.oracle: frozenset(each.name for each in PATHS if each.oracle == row.oracle) for row in PATHS}
OF_SOME_ENGINES = frozenset({row_width.ORACLE, *filter(None, _RECORDED_AS)})


def oversteps(verdict: Verdict) -> bool:
    """True if the verdict says that something was written outside of its memory, so that other damage is unknown."""
    return verdict.status is Status.FAIL and (verdict.oracle == memory.ORACLE or verdict.where.startswith(GUARD))


def name_of(judge: Judge) -> str:
    """The oracle's name: its module's, without the package."""
    return judge.__module__.rpartition(".")[2]


def asked(case: Case, trace: Trace) -> tuple[Judge, ...]:
    """The oracles that can judge this runner's record, in the order of ALL. An oracle is not asked about what the
    record cannot have, so UNKNOWN always means that a property was not exercised."""
    facts = RUNNER_FACTS[case.setup.runner]
    recorded = {seen.path for seen in trace.seen}

    def is_asked(judge: Judge) -> bool:
        name = name_of(judge)
        if judge is probes.judge:
            return probes.FACT in trace.facts
        if judge is row_width.judge:
            return row_width.recorded(trace)
        if name in _RECORDED_AS:
            return not recorded.isdisjoint(_RECORDED_AS[name])
        if judge is metadata_shape.judge:
            return bool(facts.reads)
        if name in OF_SOME:
            return name in facts.own_oracles
        return name in OF_ALL or facts.graph

    return tuple(judge for judge in ALL if is_asked(judge))


def judge_all(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """At least one verdict per oracle that is asked. An exception in an oracle becomes UNKNOWN with where RAISED.

    A run that did not end well may have recorded its last step in part: an oracle that raises over it judges the steps
    before."""
    setup = case.setup
    traces = (trace,) if trace.ended.how is Termination.DONE else (trace, _without_last_steps(trace))
    verdicts = (verdict for judge in asked(case, trace) for verdict in _ask(judge, case, traces))
    return tuple(replace(v, runner=v.runner or setup.runner, backend=setup.backend) for v in verdicts)


def _without_last_steps(trace: Trace) -> Trace:
    """The trace without the last step of each path: rounds count launches and iterations apart."""
    last: dict[str, int] = {}
    for seen in trace.seen:
        last[seen.path] = max(seen.step, last.get(seen.path, 0))
    return replace(trace, seen=tuple(seen for seen in trace.seen if seen.step < last[seen.path]))


def _ask(judge: Judge, case: Case, traces: Sequence[Trace]) -> tuple[Verdict, ...]:
    """The verdicts over the first of these traces that the oracle can read."""
    try:
        verdicts = judge(case, traces[0])
    except Exception as error:  # becomes the verdict: one broken oracle must not take the others along
        if traces[1:]:
            return _ask(judge, case, traces[1:])
        detail = f"{type(error).__name__}: {error}"
        return (Verdict(oracle=name_of(judge), status=Status.UNKNOWN, where=RAISED, detail=detail),)
    return (verdicts,) if isinstance(verdicts, Verdict) else verdicts


def overall(verdicts: Iterable[Verdict]) -> Status:
    """The status of a whole run, for an exit code.

    FAIL if any oracle says so. UNKNOWN if the run did not end well, if none of COMPARED passed, or if one raised.
    Otherwise PASS: another oracle's UNKNOWN then only says that the case did not exercise its property (an unpadded
    case has no padding to judge), which is no doubt about what was exercised.
    """
    judged = tuple(verdicts)
    if worst(judged) is Status.FAIL:
        return Status.FAIL
    sure = {verdict.oracle for verdict in judged if verdict.status is Status.PASS}
    if ENDED not in sure or not sure & COMPARED or any(verdict.where == RAISED for verdict in judged):
        return Status.UNKNOWN
    return Status.PASS
