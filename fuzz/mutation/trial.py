"""The trial of a mutant: cases are run on it until an oracle fails that does not fail without it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from fuzz.mutation.mutant import Mutant
from fuzz.mutation.scope import Ran, ordered
from repro.cases.case import Case
from repro.cases.codec import digest
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Termination, Trace

KILLED, SURVIVED, EQUIVALENT, UNTRIED = "killed", "survived", "equivalent", "untried"
# Where a session does not come to its first replay: sglang raised while its workers were built, or the harness's part
# of the session broke. A campaign counts both as errors, loudly; only the first is the oracle's of that name.
ENDED, SESSION = "ended", "session"

# Runs a case with this change of sglang, {} for none.
Run = Callable[[Case, Mapping[str, object]], Trace]
Judge = Callable[[Case, Trace], Sequence[Verdict]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a mutant. runner: the pair of runner and backend that killed it, else the
    one that it was drawn for. state: one of the four above. oracle: the first of `oracles`, all that failed in the
    case that killed it, in the catalogue's order. cases: how many were run. seconds: until it was killed, or all.
    reason: why it is equivalent, why nothing could be tried, or why not all cases were."""

    mutant: Mutant
    runner: str
    state: str
    oracle: str = ""
    oracles: tuple[str, ...] = ()
    where: str = ""
    case: str = ""
    cases: int = 0
    seconds: float = 0.0
    reason: str = ""

    @property
    def operator(self) -> str:
        return self.mutant.operator

    def to_json(self) -> dict[str, object]:
        form = asdict(self)
        of_mutant = {name: form["mutant"][name] for name in ("file", "function", "line", "operator", "old", "new")}
        del form["mutant"]
        return {"id": self.mutant.id, **of_mutant, **form}

    @classmethod
    def from_json(cls, form: Mapping[str, Any], mutant: Mutant) -> Outcome:
        """The reverse of to_json(), for this mutant."""
        known = {field.name: form[field.name] for field in fields(cls) if field.name != "mutant"}
        return cls(mutant=mutant, **(known | {"oracles": tuple(known["oracles"])}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The verdicts by which a mutant was killed in one case."""

    oracles: tuple[str, ...]
    where: str


class Clean:
    """The failures of unchanged sglang in each case. Mutable, and shared by threads: each case is run once, when it is
    first asked for."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._lock = threading.Lock()
        self._failures: dict[str, frozenset[tuple[str, str]] | None] = {}

    def failures(self, case: Case, run: Run) -> frozenset[tuple[str, str]] | None:
        """The oracle and the `where` of each failure; None if the case cannot be run here."""
        name = digest(case)
        with self._lock:
            if name in self._failures:
                return self._failures[name]
        trace = run(case, {})
        failures = None
        if trace.ended.how.took_place:
            failures = frozenset(_failed(self._judge, case, trace))
        with self._lock:
            return self._failures.setdefault(name, failures)

    def stops(self, case: Case) -> bool:
        """True if unchanged sglang is known not to reach the end of this case."""
        failures = self._failures.get(digest(case), frozenset())
        return failures is None or any(oracle == ENDED for oracle, _ in failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """plans: for each runner and backend its cases, in order. ran: the lines that each of their setups runs. limit_s:
    after so long no further case is begun."""

    plans: Mapping[str, Sequence[Case]]
    ran: Ran
    clean: Clean
    judge: Judge
    clock: Callable[[], float]
    limit_s: float

    def of(self, mutant: Mutant, runners: Sequence[str], run: Run) -> Outcome:
        """Try a mutant on these runners, in their order. run: of the calling thread."""
        start, count = self.clock(), 0
        late = ""
        change = {"edit": mutant.change()}
        cases = ordered(mutant, {name: self.plans[name] for name in runners}, self.ran)
        for runner, case in sorted(cases, key=lambda entry: self.clean.stops(entry[1])):
            if self.clock() - start > self.limit_s:
                late = f"not tried on all cases: {self.limit_s:g} s were over"
                break
            trace = run(case, change)
            count += 1
            if _not_swapped(trace):
                return Outcome(mutant=mutant, runner=runners[0], state=UNTRIED, reason=trace.ended.what)
            suspects = self._failures(case, trace)
            seconds = self.clock() - start
            failure = self._of_the_mutant(case, suspects, run) if suspects else None
            if failure:
                return Outcome(
                    mutant=mutant,
                    runner=runner,
                    state=KILLED,
                    oracle=failure.oracles[0],
                    oracles=failure.oracles,
                    where=failure.where,
                    case=digest(case),
                    cases=count,
                    seconds=round(seconds, 2),
                )
        return Outcome(
            mutant=mutant,
            runner=runners[0],
            state=SURVIVED,
            cases=count,
            seconds=round(self.clock() - start, 2),
            reason=late,
        )

    def _failures(self, case: Case, trace: Trace) -> list[tuple[str, str]]:
        if not trace.ended.how.took_place:
            return [(ENDED if _in_sglang(trace.ended.detail) else SESSION, trace.ended.what)]
        return _failed(self.judge, case, trace)

    def _of_the_mutant(self, case: Case, suspects: Sequence[tuple[str, str]], run: Run) -> Failure | None:
        """The suspects that unchanged sglang does not show in the same case."""
        usual = self.clean.failures(case, run)
        if usual is None:  # not a case for this release
            return None
        new = [suspect for suspect in suspects if suspect not in usual]
        return Failure(oracles=tuple(dict.fromkeys(oracle for oracle, _ in new)), where=new[0][1]) if new else None


def _failed(judge: Judge, case: Case, trace: Trace) -> list[tuple[str, str]]:
    """The oracle and the `where` of each failure; of an end also in which of sglang's functions it came: what ends
    elsewhere than usual is something else."""
    inside = [line.rpartition(" in ")[2] for line in trace.ended.detail.splitlines() if "/sglang/" in line]
    place = f" in {inside[-1]}" if inside else ""
    failures = [verdict for verdict in judge(case, trace) if verdict.status is Status.FAIL]
    return [(v.oracle, v.where + place * (v.oracle == ENDED)) for v in failures]


def _not_swapped(trace: Trace) -> bool:
    return trace.ended.how is Termination.UNSUPPORTED and any(
        text in trace.ended.what for text in ("cannot be swapped in", "cannot be compiled", "no function ")
    )


def _in_sglang(detail: str) -> bool:
    """True if an exception came out of sglang: its code was called after our last frame that builds."""
    frames = [line for line in detail.splitlines() if line.lstrip().startswith('File "')]
    ours = max((n for n, line in enumerate(frames) if "/runners/sessions/" in line), default=-1)
    return any("/sglang/" in line for line in frames[ours + 1 :])
