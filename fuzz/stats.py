"""The statistics of a campaign that is running: what was run, what the oracles concluded, what it cost."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fuzz.aiming import aim_of
from fuzz.draw import states
from fuzz.draw.aim import possible_states
from fuzz.draw.near import possible_near
from fuzz.draw.transitions import exercised, possible
from fuzz.lines import lines_of
from fuzz.reasons import Reasons
from repro.cases.case import Case, Setup, Target
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.campaign import Campaign, CampaignFinding, Covered, Progress, Transition
from repro.traces.finding import Status, Verdict, by_oracle
from repro.traces.line_ranges import line_ranges
from repro.traces.trace import NOTHING, STALE, Termination, Trace

FACTS_MAX = 5  # different values of one fact that are worth listing
WORKER_STAGES = ("build", "graph", "eager", "record", "reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The task of a campaign. cases and seconds: its limits; None is no limit. triage: whether a new failure is
    confirmed and shrunk, or only kept. confirm_tries: fresh processes for the final count. shrink_runs and
    shrink_seconds: the budget for making one case small. aim: what all setups have, as options of a command line
    (fuzz/aiming.py); empty: whatever is drawn."""

    target: Target
    runner: str
    backend: str
    seed: int
    cases: int | None = None
    seconds: float | None = None
    stop_at_first: bool = False
    triage: bool = True
    confirm_tries: int = 5
    shrink_runs: int = 60
    shrink_seconds: float = 20.0
    aim: str = ""


class CampaignStats:
    """Mutable: a campaign adds to it and reads it at the end."""

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        self.plan = plan
        self.findings: dict[str, CampaignFinding] = {}
        self.cases = self.judged = self.replays = self.skipped = 0
        self._clock = clock
        self._start = clock()
        self._started = datetime.now(UTC)
        self._setups: set[Setup] = set()
        self._possible: set[Transition] = set()
        self._transitions: Counter[Transition] = Counter()
        self._states: Counter[str] = Counter()
        self._lines: defaultdict[str, set[int]] = defaultdict(set)
        self._verdicts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._endings: Counter[str] = Counter()
        self._unknown = Reasons()
        self._not_run = {how: Reasons() for how in (Termination.UNSUPPORTED, Termination.ERROR)}
        self.known: Counter[str] = Counter()  # cases that showed a known issue, by issue
        self._stale: Counter[str] = Counter()  # cases in which each value was
        self.only_mended: Counter[str] = Counter()  # failures that showed only where known issues are mended
        self.only_mended_seeds: dict[str, str] = {}  # where the first case of each is stored
        self._stages: defaultdict[str, float] = defaultdict(float)
        self._facts: defaultdict[str, list[str]] = defaultdict(list)

    @property
    def seconds(self) -> float:
        return self._clock() - self._start

    @property
    def nothing_runs(self) -> bool:
        """True if none of the runs so far took place."""
        return sum(count for how, count in self._endings.items() if not Termination(how).took_place) == self.cases

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to this stage, however the block is left."""
        start = self._clock()
        try:
            yield
        finally:
            self._stages[name] += self._clock() - start

    def add(
        self, case: Case, trace: Trace, verdicts: Sequence[Verdict], overall: Status
    ) -> frozenset[Transition | str]:
        """Count one run of a case, its verdicts and their overall status. The transitions that it made, and the states
        that its replays were in."""
        transitions, reached = exercised(case, trace.replayed), states.reached(case, trace.replayed)
        self.cases += 1
        self.replays += trace.replays
        self._setups.add(case.setup)
        if not RUNNER_FACTS[case.setup.runner].serves:  # its scheduler chooses the batches
            self._possible |= possible(case.setup)
        self._transitions.update(transitions)
        self._states.update(reached)
        for file, numbers in lines_of([trace]).items():
            self._lines[file] |= numbers
        self._endings[trace.ended.how.value] += 1
        if not trace.ended.how.took_place:
            self._not_run[trace.ended.how].add(trace.ended.what or trace.ended.detail)
        for oracle, status in by_oracle(verdicts).items():
            self._verdicts[oracle][status.name.lower()] += 1
        for verdict in verdicts:
            # A run that could not be made leaves every oracle in doubt, for the one reason just counted.
            if verdict.status is Status.UNKNOWN and trace.ended.how.took_place:
                self._unknown.add(f"{verdict.oracle}: {verdict.where or verdict.detail}")
        self.judged += overall is not Status.UNKNOWN
        self._stale.update(stale_values(trace, verdicts))
        for name, text in trace.facts.items():
            if name != STALE and text not in self._facts[name] and len(self._facts[name]) < FACTS_MAX:
                self._facts[name].append(text)
        return frozenset(transitions) | reached

    def doubt(self, reason: str) -> None:
        """Count that a failure could not be compared, for this reason: it stays a finding."""
        self._unknown.add(reason)

    def triage_run(self, trace: Trace) -> None:
        """Count a run that confirms or shrinks a failure, if it ended in an error of the harness."""
        if trace.ended.how is Termination.ERROR:
            self._not_run[Termination.ERROR].add(trace.ended.what or trace.ended.detail)

    def worker_time(self, trace: Trace, seconds: float) -> None:
        """Split the time of one run into the stages that the worker measured and the rest."""
        for stage in WORKER_STAGES:
            self._stages[stage] += trace.seconds.get(stage, 0.0)
        rest = seconds - sum(trace.seconds.get(stage, 0.0) for stage in WORKER_STAGES)
        self._stages["pass"] += max(0.0, rest)

    def progress(self, doing: str) -> Progress:
        return Progress(
            target=self.plan.target,
            cases=self.cases,
            replays=self.replays,
            seconds=self.seconds,
            transitions=len(self._transitions),
            transitions_possible=len(self._possible),
            findings=tuple(self.findings.values()),
            doing=doing,
        )

    def campaign(self, stopped: str, error: str = "") -> Campaign:
        """Everything counted so far, as a value."""
        return Campaign(
            target=self.plan.target,
            runner=self.plan.runner,
            backend=self.plan.backend,
            seed=self.plan.seed,
            started=self._started.isoformat(timespec="seconds"),
            ended=datetime.now(UTC).isoformat(timespec="seconds"),
            stopped=stopped,
            error=error,
            seconds=self.seconds,
            cases=self.cases,
            judged=self.judged,
            replays=self.replays,
            setups=len(self._setups),
            skipped=self.skipped,
            verdicts={oracle: dict(counts) for oracle, counts in sorted(self._verdicts.items())},
            endings=dict(self._endings),
            unknown=self._unknown.counted(),
            unsupported=self._not_run[Termination.UNSUPPORTED].counted(),
            errors=self._not_run[Termination.ERROR].counted(),
            transitions=tuple(Covered(transition=t, count=n) for t, n in sorted(self._transitions.items())),
            transitions_possible=len(self._possible),
            transitions_missing=tuple(sorted(self._possible - self._transitions.keys())),
            states=dict(sorted(self._states.items())),
            states_missing=tuple(sorted(self._possible_states() - self._states.keys())),
            lines={file: line_ranges(numbers) for file, numbers in sorted(self._lines.items())},
            findings=tuple(self.findings.values()),
            known=dict(self.known.most_common()),
            stale=dict(self._stale.most_common()),
            only_mended=dict(self.only_mended.most_common()),
            only_mended_seeds=dict(self.only_mended_seeds),
            stages=dict(self._stages),
            facts={name: ", ".join(texts) for name, texts in self._facts.items()},
            aim=self.plan.aim,
        )

    def _possible_states(self) -> frozenset[str]:
        """The states that replays may be in, under the aim."""
        plan = self.plan
        possible = states.possible(plan.runner, plan.backend)
        aim = aim_of(plan.aim)
        if aim.near:
            return possible_near(aim, possible)
        return possible_states(plan.runner, plan.backend, aim, possible) if plan.aim else possible


def stale_values(trace: Trace, verdicts: Sequence[Verdict]) -> set[str]:
    """The values that an earlier batch had left in a case and that have no known reader: what kernels were seen not to
    read, by the last part of its name, and what oracles let pass."""
    unread = trace.facts.get(STALE, NOTHING)
    seen = () if unread == NOTHING else unread.split(", ")
    names = (next(part for part in reversed(name.split(".")) if not part.isdigit()) for name in seen)
    return {*names, *(name for verdict in verdicts for name in verdict.stale)}
