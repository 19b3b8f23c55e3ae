"""A failing case with one switch changed at a time: what comes of it, and what that says of the cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum

from repro.cases.case import Case, Target
from repro.shrinking.confirm import Run, attempts
from repro.shrinking.replay import trouble
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Termination
from repro.upstream.rig import Rig, Sighting, Wanted, named, sighting
from repro.upstream.switches import BASE, Kind, Patch, Subject, Switch, patch_switch, together


class State(StrEnum):
    """The result of one switch, in the words of the table."""

    FAILS = "still fails"
    OTHERWISE = "fails otherwise"
    PASSES = "passes"
    UNKNOWN = "unknown"
    UNSUPPORTED = "unsupported"
    ERROR = "error"
    LEFT_OUT = "does not apply"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The runs of a case on a target. failed: in how many of `judged` the failure was seen. others: the failures
    besides, as "oracle at where". gone: the followed oracle judged each run and did not fail. why: the reason where
    nothing could be judged."""

    state: State
    failed: int = 0
    judged: int = 0
    others: tuple[str, ...] = ()
    gone: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One switch and its runs. target: empty where nothing was run; note: changes besides the switch's own."""

    switch: Switch
    runs: Runs
    target: str = ""
    note: str = ""

    @property
    def place(self) -> str:
        """The backend or the release on which the case was run."""
        return self.target if self.switch.kind is Kind.RELEASE else self.switch.name.removeprefix("backend ")

    @property
    def detail(self) -> str:
        texts = (self.note, self.runs.why, f"{', '.join(self.runs.others)} fails" if self.runs.others else "")
        return "; ".join(filter(None, texts))


def runs_of(rig: Rig, run: Run, case: Case, subject: Subject, tries: int) -> Runs:
    """Up to so many runs of the case; a run that does not take place ends it. Failures that the subject has besides its
    own are other bugs, of which no switch is asked."""
    sightings: list[Sighting] = []
    statuses: list[Status] = []
    for attempt in attempts(run, rig.judge, case, tries):
        if not attempt.took_place:
            unsupported = attempt.trace.ended.how is Termination.UNSUPPORTED
            state = State.UNSUPPORTED if unsupported else State.ERROR
            return Runs(state=state, judged=len(sightings), why=trouble(attempt.trace.ended))
        sightings.append(sighting(attempt.trace, attempt.verdicts, subject.failure))
        statuses.append(rig.overall(attempt.verdicts))
    failed = sum(seen.bad is True for seen in sightings)
    others = tuple(sorted({text for seen in sightings for text in seen.others} - subject.besides))
    doubt = next((seen.why for seen in sightings if seen.bad is None), "")
    if failed:
        return Runs(state=State.FAILS, failed=failed, judged=len(sightings))
    judged = all(seen.bad is False for seen in sightings)
    if others:
        # A crash before the oracle has something to judge, or its failure elsewhere, does not show that it is gone.
        gone = judged and not any(text.split(" at ")[0] == subject.failure.oracle for text in others)
        return Runs(state=State.OTHERWISE, judged=len(sightings), others=others, gone=gone)
    passes = judged or all(status is Status.PASS for status in statuses)
    state = State.PASSES if passes else State.UNKNOWN
    return Runs(state=state, judged=len(sightings), gone=judged, why=doubt.partition("; ")[0])


def try_all(rig: Rig, subject: Subject, rows: Sequence[Switch], run: Run, tries: int) -> Iterator[Row]:
    """Each switch with its runs, in their order. run: cases on the subject's own target, which stays open."""
    for switch in rows:
        variant = switch.change(subject)
        if isinstance(variant, str):
            yield Row(switch=switch, runs=Runs(state=State.LEFT_OUT, why=variant))
            continue
        target = variant.target
        if lack := rig.lacks(target):
            yield Row(switch=switch, runs=Runs(state=State.UNSUPPORTED, why=lack), target=str(target))
            continue
        with ExitStack() as stack:
            here = run if target == subject.target else stack.enter_context(rig.opened(target))
            runs = runs_of(rig, here, variant.case, subject, tries)
        yield Row(switch=switch, runs=runs, target=str(target), note=_note(variant.note, subject, target, switch))


def try_patches(rig: Rig, subject: Subject, patches: Sequence[Patch], run: Run, tries: int) -> Iterator[Row]:
    """The patches with their runs: several at once as long as the failure stays with all of them, so that none mends
    it; else by halves, down to each alone. A target with a patch is imported anew, which is what explaining costs."""
    if not patches:
        return
    (row,) = try_all(rig, subject, [patch_switch(together(patches), rig)], run, tries)
    if len(patches) == 1 or row.runs.state is State.FAILS:
        yield row
        return
    half = len(patches) // 2
    yield from try_patches(rig, subject, patches[:half], run, tries)
    yield from try_patches(rig, subject, patches[half:], run, tries)


def _note(note: str, subject: Subject, target: Target, switch: Switch) -> str:
    """A release is named; the place of an overlay says nothing to a person."""
    other = str(target) if target != subject.target and switch.kind is Kind.RELEASE else ""
    return ", ".join(filter(None, (note, other)))


def failure_of(candidates: Sequence[Wanted], verdicts: Sequence[Sequence[Verdict]]) -> Verdict | None:
    """The failure to follow: the first candidate that is among those seen, else the most frequent."""
    failures = [v for run in verdicts for v in run if v.status is Status.FAIL]
    for failure in candidates:
        for verdict in failures:
            if verdict.oracle == failure.oracle and failure.where in ("", verdict.where):
                return verdict
    often = Counter(map(named, failures)).most_common(1)
    return next(v for v in failures if named(v) == often[0][0]) if often else None


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """The things that must be on for the case to fail, those that do not matter, those of which nothing is known, and
    where else it fails."""

    def labels(kinds: Collection[Kind], *states: State) -> str:
        of_kind = [row for row in rows if row.switch.kind in kinds and row.runs.state in states]
        return ", ".join(dict.fromkeys(row.switch.needed or row.place for row in of_kind))

    case, elsewhere = (Kind.CASE,), (Kind.BACKEND, Kind.RELEASE)
    clauses = (
        ("needs", labels(case, State.PASSES) or "nothing that was switched off"),
        ("independent of", labels(case, State.FAILS)),
        ("fails otherwise without", labels(case, State.OTHERWISE)),
        ("cannot be judged without", labels(case, State.UNKNOWN)),
        ("not known of", labels(case, State.UNSUPPORTED, State.ERROR)),
        ("fails so on", labels(elsewhere, State.FAILS)),
        ("not on", labels(elsewhere, State.PASSES)),
        ("fails otherwise on", labels(elsewhere, State.OTHERWISE)),
    )
    yield "; ".join(f"{head}: {text}" for head, text in clauses if text)
    left_out = [row for row in rows if row.runs.state is State.LEFT_OUT]
    so_already = ", ".join(row.switch.name for row in left_out if row.runs.why.endswith("already"))
    reasons = ", ".join(
        f"{row.switch.name} ({row.runs.why})" for row in left_out if not row.runs.why.endswith("already")
    )
    yield "; ".join(f"{head}: {text}" for head, text in (("so already", so_already), ("not switched", reasons)) if text)


def conclusion(rows: Sequence[Row], patches: Sequence[Patch], baseline: Runs) -> str:
    """A paragraph: the cause if a patch mends the failure, else what is not known."""
    by_name = {f"patch {patch.name}": patch for patch in patches}
    tried = [row for row in rows if row.switch.kind is Kind.PATCH and row.runs.judged]
    mending = [row for row in tried if row.runs.gone]
    free = [row for row in rows if row.switch.kind is Kind.RELEASE and row.runs.gone]
    base = next((row.target for row in free if row.switch.name == BASE), "")
    texts = [_mends(by_name[row.switch.name], row) for row in mending]
    if len(mending) > 1:
        texts.append("Each mends it alone, so these runs do not say which of them is the cause.")
    if base:
        texts.append(f"A change of the checkout brings it: {base} does not fail so.")
    elif not mending:
        names = ", ".join(row.switch.name.removeprefix("patch ") for row in tried)
        reason = f"no known patch that was tried mends it ({names})" if tried else "no known patch concerns it here"
        texts.append(f"The cause is not known: {reason}.")
    texts += [
        f"It does not fail so on {row.target}: python -m repro bisect finds the change."
        for row in free
        if row.switch.name != BASE
    ]
    if baseline.failed < baseline.judged:
        luck = (1 - baseline.failed / baseline.judged) ** baseline.judged
        seen = f"{baseline.failed} of {baseline.judged}"
        texts.append(f"It fails in {seen} runs, so that as many runs pass by luck with a chance of {luck:.0%}.")
    return " ".join(texts)


def _mends(patch: Patch, row: Row) -> str:
    issue = f" Known issue: {patch.title} ({patch.link})." if patch.title else ""
    runs = f"{row.runs.failed} of {row.runs.judged} runs fail so"
    rest = f", but {', '.join(row.runs.others)} fails" if row.runs.others else ""
    return f"Cause: {patch.name} mends it ({runs} with it{rest}): {patch.why}; at {'; '.join(patch.places)}.{issue}"


def to_json(rows: Sequence[Row]) -> list[dict[str, object]]:
    """All of it as plain dicts, lists, texts and numbers."""
    return [
        {
            "switch": row.switch.name,
            "kind": row.switch.kind.value,
            "needed": row.switch.needed,
            "target": row.target,
            "note": row.note,
            "state": row.runs.state.value,
            "failed": row.runs.failed,
            "judged": row.runs.judged,
            "others": list(row.runs.others),
            "gone": row.runs.gone,
            "why": row.runs.why,
        }
        for row in rows
    ]
