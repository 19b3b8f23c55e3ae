"""Shrinking a seed file: what is on disk at every moment, and which smaller cases are not to be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from repro.cases import codec
from repro.cases.case import Case, Request, Setup, Step, Target
from repro.cases.codec import Seed
from repro.shrinking.seed_file import InTheWay, SeedFile
from repro.shrinking.triage import Budget, TriageHooks
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.trace import End, Termination, Trace

SETUP = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(2, 4), slots=6)


def batches(*sizes: int, setup: Setup = SETUP) -> Case:
    steps = (Step(requests=tuple(Request(slot=n + 2, seq_len=9, data=n + 40) for n in range(size))) for size in sizes)
    return Case(setup=setup, steps=tuple(steps))


START = batches(4, 3, 2)
ABOUT = {"name": "written by hand", "found": "a long night", "cell": "step 9 of the large case"}
TWO_ONE = [2, 1]


def sizes(case: Case) -> list[int]:
    return [len(step.requests) for step in case.steps]


def stale(case: Case) -> bool:
    """A smaller batch behind a larger one, in a bucket that it does not fill."""
    return any(max(sizes(case)[:n], default=0) > size < case.setup.bucket(size) for n, size in enumerate(sizes(case)))


def verdict(case: Case) -> Verdict:
    return Verdict(
        oracle="slot0_padding",
        status=Status.FAIL,
        where="topk_p",
        detail=f"case {codec.digest(case)}",
        cell=Cell(step=1, buffer="topk_p", row=len(case.steps[-1].requests), column=0, got="7", want="0"),
    )


class Machine:
    """Stands for a pool: a fresh process fails where `stale` says so, a kept session also where `kept` says so."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.fresh: list[Case] = []
        self.kept: list[Case] = []
        self.lines: list[str] = []
        self.now = 0.0
        self.interrupt_at = -1

    def kept_fails(self, case: Case) -> bool:
        return stale(case)

    def fresh_fails(self, case: Case) -> bool:
        return stale(case)

    def run(self, case: Case) -> Trace:
        self.kept.append(case)
        return self._trace(self.kept_fails(case))

    def run_fresh(self, case: Case) -> Trace:
        self.fresh.append(case)
        return self._trace(self.fresh_fails(case))

    def judge(self, case: Case, trace: Trace) -> Sequence[Verdict]:
        return [verdict(case)] if trace.facts["fails"] else [Verdict(oracle="slot0_padding", status=Status.PASS)]

    def _trace(self, fails: bool) -> Trace:
        self.now += 1
        if len(self.fresh) + len(self.kept) == self.interrupt_at:
            raise KeyboardInterrupt
        return Trace(ended=End(how=Termination.DONE), facts={"fails": "yes" if fails else ""})

    def shrinking(self, start: Case = START, runs: int = 500, seconds: float = 1e9) -> SeedFile:
        hooks = TriageHooks(
            run=self.run, run_fresh=self.run_fresh, judge=self.judge, say=self.lines.append, clock=lambda: self.now
        )
        budget = Budget(runs=runs, seconds=seconds, tries=3)
        seed = Seed(about=ABOUT, case=start)
        return SeedFile(seed, Target("0.5.13", "emulated"), verdict(start), self.out, hooks, budget)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "small.json")


def test_the_smallest_case_is_confirmed_and_on_disk(machine: Machine) -> None:
    finding = machine.shrinking().shrink()
    assert sizes(finding.case) == TWO_ONE
    assert (finding.failed, finding.tried) == (3, 3)
    assert machine.fresh == [finding.case] * 3, "only what is confirmed needs processes of its own"
    seed = codec.read(machine.out)
    assert seed.case == finding.case
    assert seed.about["failed"] == "3 of 3 runs in fresh processes"
    assert seed.about["shrunk_from"] == codec.digest(START)


def test_what_was_written_by_hand_stays_and_what_was_said_of_the_larger_case_goes(machine: Machine) -> None:
    case = machine.shrinking().shrink().case
    about = codec.read(machine.out).about
    assert about["name"] == "written by hand"
    assert about["found"] == "a long night"
    assert about["cell"] == "step 1 topk_p[1,0] is 7, expected 0"
    assert about["detail"] == f"case {codec.digest(case)}"


@pytest.mark.parametrize("interrupt_at", range(1, 40, 3))
def test_the_best_so_far_is_on_disk_whenever_it_is_interrupted(machine: Machine, interrupt_at: int) -> None:
    machine.interrupt_at = interrupt_at
    with pytest.raises(KeyboardInterrupt):
        machine.shrinking().shrink()
        raise KeyboardInterrupt  # where it was done before that
    failing = [case for case in machine.kept[: interrupt_at - 1] if stale(case)]
    assert codec.read(machine.out).case == (failing or [START])[-1]


def test_a_failure_that_only_a_used_session_shows_is_not_taken(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the kept session a single step seems to fail, as an earlier case left the stale rows behind."""
    monkeypatch.setattr(machine, "kept_fails", lambda case: True)
    finding = machine.shrinking().shrink()
    assert sizes(finding.case) == TWO_ONE
    assert (finding.failed, finding.tried) == (3, 3)
    assert codec.read(machine.out).case == finding.case


def test_a_failure_that_a_used_session_hides_is_shrunk_in_fresh_ones(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "kept_fails", lambda case: False)
    assert sizes(machine.shrinking().shrink().case) == TWO_ONE
    assert len(machine.kept) == 1


def test_what_never_fails_again_is_given_back_as_it_was(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "kept_fails", lambda case: False)
    monkeypatch.setattr(machine, "fresh_fails", lambda case: False)
    finding = machine.shrinking().shrink()
    assert (finding.case, finding.failed) == (START, 0)
    assert codec.read(machine.out).case == START


def test_the_budget_counts_over_both_ways(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "kept_fails", lambda case: True)
    work = machine.shrinking(runs=20)
    finding = work.shrink()
    assert work.runs == 20
    assert stale(finding.case)
    assert finding.failed == 3
    machine.out.unlink()
    begun = machine.now
    machine.shrinking(seconds=10).shrink()
    assert machine.now - begun <= 10 + 2 * 3, "beside the confirmations"


def test_it_goes_on_from_an_earlier_result(machine: Machine) -> None:
    machine.shrinking(runs=4).shrink()
    earlier = codec.read(machine.out).case
    assert earlier != START
    machine.kept.clear()
    assert sizes(machine.shrinking().shrink().case) == TWO_ONE
    assert machine.kept[0] == earlier
    assert codec.read(machine.out).about["shrunk_from"] == codec.digest(START)


@pytest.mark.parametrize("case", [batches(4, 4, 3, 2), batches(1)], ids=["larger", "not failing"])
def test_a_seed_of_another_kind_is_not_replaced(machine: Machine, case: Case) -> None:
    codec.write(machine.out, Seed(case=case))
    with pytest.raises(InTheWay, match=r"small\.json holds another case"):
        machine.shrinking().shrink()
    assert codec.read(machine.out).case == case


def test_a_file_that_is_no_seed_is_not_replaced(machine: Machine) -> None:
    machine.out.write_text("my notes")
    with pytest.raises(InTheWay, match="not a seed"):
        machine.shrinking().shrink()
    assert machine.out.read_text() == "my notes"


def test_shrinking_in_place(machine: Machine) -> None:
    codec.write(machine.out, Seed(about=ABOUT, case=START))
    finding = machine.shrinking().shrink()
    assert sizes(finding.case) == TWO_ONE
    assert codec.read(machine.out).case == finding.case
