"""Trials of mutants: killed by what fails with a mutant and not without it, survived, untried; what that comes to."""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fuzz.mutation import equivalents, scope
from fuzz.mutation.command import Tools, mutate
from fuzz.mutation.directed import plan
from fuzz.mutation.mutant import Mutant
from fuzz.mutation.scope import Ran
from fuzz.mutation.sites import mutants
from fuzz.mutation.summary import Report, alone
from fuzz.mutation.trial import KILLED, SESSION, SURVIVED, UNTRIED, Clean, Outcome, Trial
from repro.cases.case import Case, Target
from repro.commands.cli import BadInput
from repro.traces.finding import Status, Verdict
from repro.traces.trace import End, RecordedArray, Termination, Trace

SOURCE = "def f(a, b):\n    return a + b\n"
FILE = "sglang/srt/speculative/x.py"
MUTANT = mutants(FILE, SOURCE)[0]
CASES = plan("draft", "triton")[:3]
DONE = Trace(ended=End(how=Termination.DONE))


def verdict(oracle: str, where: str) -> Verdict:
    return Verdict(oracle=oracle, status=Status.FAIL, where=where)


class World:
    """Stands in for sessions. failing: of a case's number, with and without a mutant, what fails."""

    def __init__(self, mutated: Mapping[int, Sequence[Verdict]], clean: Mapping[int, Sequence[Verdict]]) -> None:
        self.failing = {True: mutated, False: clean}
        self.ends = dict.fromkeys((True, False), DONE)
        self.ran: list[tuple[int, bool]] = []
        self.time = 0.0

    def run(self, case: Case, change: Mapping[str, object]) -> Trace:
        self.ran.append((CASES.index(case), bool(change)))
        self.time += 1.0
        return self.ends[bool(change)]

    def judge(self, case: Case, trace: Trace) -> Sequence[Verdict]:
        number, mutated = self.ran[-1]
        return self.failing[mutated].get(number, ())

    def outcome(self, limit_s: float = 100.0) -> Outcome:
        trial = self.trial(limit_s)
        return trial.of(MUTANT, list(trial.plans), self.run)

    def trial(self, limit_s: float = 100.0) -> Trial:
        plans = {"draft/triton": CASES[:2], "verify/triton": CASES[2:]}
        ran: Ran = {name: {case.setup: {FILE: frozenset({2})} for case in cases} for name, cases in plans.items()}
        return Trial(
            plans=plans,
            ran=ran,
            clean=Clean(self.judge),
            judge=self.judge,
            clock=lambda: self.time,
            limit_s=limit_s,
        )


@pytest.fixture(autouse=True)
def planned_cases_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further cases of setups that a mutant's line needs."""
    monkeypatch.setattr(scope, "REACHING_MIN", 0)


def test_killed_by_the_first_failure_of_its_own() -> None:
    known, new, other = verdict("staged", "row 1"), verdict("kv_writes", "slots"), verdict("ended", "raised")
    world = World({0: [known], 1: [known, new, other]}, {0: [known], 1: [known]})
    outcome = world.outcome()
    assert (outcome.state, outcome.oracle, outcome.oracles) == (KILLED, "kv_writes", ("kv_writes", "ended"))
    assert (outcome.runner, outcome.cases, outcome.where) == ("draft/triton", 3, "slots")
    assert world.ran == [(0, True), (0, False), (2, True), (1, True), (1, False)], "the runners take turns"
    assert outcome.seconds == 4.0  # until it failed, not until that was compared


def test_killed_by_an_end_in_another_function_than_the_usual_one() -> None:
    stops = [verdict("ended", "raised TypeError in verify")]
    world = World({0: stops, 1: stops, 2: stops}, {0: stops, 1: stops, 2: stops})
    frame = '  File "/c/sglang/srt/a.py", line 3, in '
    for mutated, function in ((True, "verify"), (False, "forward")):
        world.ends[mutated] = Trace(
            ended=End(how=Termination.RAISED, detail=f"{frame}outer\n    x()\n{frame}{function}\n")
        )
    assert (world.outcome().state, world.outcome().where) == (KILLED, "raised TypeError in verify in verify")
    world.ends[False] = world.ends[True]
    assert world.outcome().state == SURVIVED


def test_killed_by_another_runner() -> None:
    outcome = World({2: [verdict("staged", "row 1")]}, {}).outcome()
    assert (outcome.state, outcome.runner, outcome.cases) == (KILLED, "verify/triton", 2)


def test_where_the_unchanged_sglang_stops_comes_last_once_that_is_known() -> None:
    stops = [verdict("ended", "raised")]
    world = World({0: stops}, {0: stops})
    trial = world.trial()
    for _ in range(2):
        trial.of(MUTANT, list(trial.plans), world.run)
    assert [number for number, mutated in world.ran if mutated] == [0, 2, 1, 2, 1, 0]


def test_survives_what_fails_without_it_as_well_and_is_not_tried_for_ever() -> None:
    known = verdict("staged", "row 1")
    world = World({0: [known], 1: [known], 2: [known]}, {0: [known], 1: [known], 2: [known]})
    outcome = world.outcome()
    assert (outcome.state, outcome.runner, outcome.cases) == (SURVIVED, "draft/triton", 3)
    assert outcome.reason == ""
    late = World({}, {}).outcome(limit_s=0.5)
    assert (late.cases, late.reason) == (1, "not tried on all cases: 0.5 s were over")


@pytest.mark.parametrize(
    ("detail", "oracle"),
    [
        ('  File "/x/runners/sessions/captured.py", line 3\n  File "/c/0.5.13/sglang/srt/a.py", line 3\n', "ended"),
        ('  File "/c/0.5.13/sglang/srt/a.py", line 3\n  File "/x/runners/sessions/step.py", line 3\n', SESSION),
    ],
)
def test_a_session_that_breaks_kills_where_it_is_whole_without_the_mutant(detail: str, oracle: str) -> None:
    world = World({}, {})
    world.ends[True] = Trace(ended=End(how=Termination.ERROR, what="IndexError: x", detail=detail))
    assert (world.outcome().state, world.outcome().oracle) == (KILLED, oracle)
    world.ends[False] = world.ends[True]  # such a setup is not for this release
    assert world.outcome().state == SURVIVED


def test_a_mutant_that_cannot_be_swapped_in_is_not_tried() -> None:
    world = World({}, {})
    world.ends[True] = Trace(
        ended=End(how=Termination.UNSUPPORTED, what="the change of f cannot be swapped in: 1 free variable")
    )
    assert world.outcome().state == UNTRIED


class Sessions:
    """A release of one file, whose mutants that drop `+ b` are noticed."""

    def __init__(self) -> None:
        self.changed: Mapping[str, object] = {}

    def change(self, change: Mapping[str, object]) -> None:
        self.changed = change

    def abort(self) -> None:
        """Nothing of it takes long."""

    def run(self, case: Case) -> Trace:
        if "trace" in self.changed:
            return Trace(ended=DONE.ended, seen=(RecordedArray(step=-1, path="lines", name=FILE, array=np.array([2])),))
        edit = self.changed.get("edit")
        what = str(edit["text"]) if isinstance(edit, dict) else ""
        return Trace(ended=End(how=Termination.DONE, what=what))


@contextmanager
def opened(target: Target, silence_s: float, log: Path) -> Iterator[Sessions]:
    yield Sessions()


def judge(case: Case, trace: Trace) -> Sequence[Verdict]:
    return [verdict("staged", "sum")] if trace.ended.what in ("(a)", "(b)") else []


def command(folder: Path, **changed: object) -> argparse.Namespace:
    options: dict[str, object] = {
        "target": [Target("0.5.13", "emulated")],
        "runner": "draft",
        "backend": "triton",
        "sample": None,
        "seed": 0,
        "only": None,
        "cases": 2,
        "limit": 9.0,
        "timeout": 9.0,
        "workers": 2,
        "try_equivalent": False,
        "having": [],
        "json": folder / "out.json",
        "markdown": folder / "out.md",
        "out": folder / "logs",
        "cluster": None,
        "trace": None,
        "part": None,
    }
    return argparse.Namespace(**(options | changed))


@pytest.mark.slow
def test_an_unexplained_survivor_makes_it_red_and_a_reason_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text(SOURCE)
    tools = Tools(sessions=opened, judge=judge, sources=lambda target: tmp_path, processor_seconds=time.process_time)
    assert mutate(command(tmp_path), tools) == 1
    record = json.loads((tmp_path / "out.json").read_text())
    states = {mutant["new"]: mutant["state"] for mutant in record["mutants"]}
    assert states == {"return a": "killed", "return b": "killed", "return a - b": "survived"}
    assert record["kill_rate"] == pytest.approx(2 / 3, abs=1e-3)
    assert record["alone"] == {"staged": 2}
    fields = {"id", "file", "line", "operator", "runner", "state", "oracle", "cases", "seconds"}
    assert all(fields <= set(mutant) for mutant in record["mutants"])
    assert "return a - b" in (tmp_path / "out.md").read_text()
    key = (FILE, "f", "return a + b", "return a - b")
    kept = equivalents.Equivalents(reasons={key: "b is always zero"})
    monkeypatch.setattr(equivalents, "read", lambda: kept)
    assert mutate(command(tmp_path), tools) == 0
    # A claim that does not hold is red, once it is tried.
    wrong = equivalents.Equivalents(reasons={**kept.reasons, (*key[:3], "return a"): "b is always zero"})
    monkeypatch.setattr(equivalents, "read", lambda: wrong)
    assert mutate(command(tmp_path), tools) == 0
    assert mutate(command(tmp_path, try_equivalent=True), tools) == 1


@pytest.mark.slow
@pytest.mark.parametrize("place", [MUTANT.id, "x.py:2", "speculative/x.py"])
def test_only_those_that_are_asked_for(tmp_path: Path, place: str) -> None:
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text(SOURCE)
    tools = Tools(sessions=opened, judge=judge, sources=lambda target: tmp_path, processor_seconds=time.process_time)
    mutate(command(tmp_path, only=[place]), tools)
    record = json.loads((tmp_path / "out.json").read_text())
    assert len(record["mutants"]) == (1 if place == MUTANT.id else 3)
    with pytest.raises(BadInput, match=r"only y\.py: no mutant"):
        mutate(command(tmp_path, only=[place, "y.py"]), tools)


class Slow(Sessions):
    """Whose mutants take for ever, until they are aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = threading.Event()

    def abort(self) -> None:
        self.aborted.set()

    def run(self, case: Case) -> Trace:
        if "edit" in self.changed:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            assert self.aborted.wait(20)
        return super().run(case)


class Stuck(Slow):
    """A pool that nothing aborts, as one whose worker is not there yet."""

    def abort(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [Slow, Stuck])
def test_an_interrupt_ends_mutants_that_run(
    sessions: type[Slow], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text(SOURCE)

    @contextmanager
    def slow(target: Target, silence_s: float, log: Path) -> Iterator[Sessions]:
        yield sessions()

    tools = Tools(sessions=slow, judge=judge, sources=lambda target: tmp_path, processor_seconds=time.process_time)
    start = time.monotonic()
    mutate(command(tmp_path, workers=1), tools)
    assert time.monotonic() - start < 10
    assert json.loads((tmp_path / "out.json").read_text())["mutants"] == []
    assert "interrupted after 0 mutants" in capsys.readouterr().out


def test_figures() -> None:
    def outcome(state: str, *oracles: str) -> Outcome:
        first = oracles[0] if oracles else ""
        return Outcome(mutant=MUTANT, runner="r", state=state, oracle=first, oracles=oracles, seconds=2.0)

    outcomes = (outcome("killed", "a"), outcome("killed", "a", "b"), outcome("survived"), outcome("equivalent"))
    report = Report(target="t", seed=0, sites={}, outcomes=outcomes, seconds=1.0, cpu_seconds=1.0, workers=1)
    assert report.kill_rate == pytest.approx(2 / 3)
    assert alone(outcomes) == {"a": 1}
    assert report.exit_code == 1
    assert "66.7 %" in report.to_markdown()


def test_a_mutants_identity_is_its_text_and_place() -> None:
    assert isinstance(MUTANT, Mutant)
    assert MUTANT.key == (FILE, "f", "return a + b", "return a")
