"""Several workers on one campaign: the same cases, each bug settled once, one record; and shards that go wrong."""

from __future__ import annotations

import dataclasses
import io
import json
import signal
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fuzz import __main__ as fuzz
from fuzz.campaign import campaign
from fuzz.case_source import CaseSource, CaseStream
from fuzz.commands import context
from fuzz.draw.rounds import round_cases, rounds
from fuzz.parallel.coordinator import Coordinator
from fuzz.parallel.merge import merged, with_seeds
from fuzz.parallel.scheduler import AHEAD, LeaseRequest, RoundScheduler
from fuzz.parallel.shard import Channel, LeasedRounds, plan_from_json, plan_to_json
from fuzz.stats import Plan
from fuzz.triage import Hooks
from repro.cases.case import Case, Setup, Target
from repro.traces.campaign import Campaign, CampaignFinding, Progress, loads
from repro.traces.finding import Finding, Status, Verdict, worst
from repro.traces.trace import End, Termination, Trace
from tests.builders import sample_record
from tests.builders.waiting import comes
from tests.test_fuzz_main import process

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parent.parent
PLAN = Plan(target=Target("clean", "toy"), runner="toy", backend="triton", seed=1, stop_at_first=True, seconds=2.5)


def run(out: Path, *arguments: str) -> tuple[int, Campaign]:
    """The exit code of this command line and what it recorded."""
    code = fuzz.main([*arguments, "--out", str(out)])
    (one,), _ = loads((out / "record.json").read_text())
    return code, one


def test_the_same_cases_and_findings_whatever_the_number_of_workers(tmp_path: Path) -> None:
    arguments = ("run", "--target", "stale_padding/toy", "--cases", "40", "--seed", "3")
    code, alone = run(tmp_path / "alone", *arguments)
    assert code == 1
    code, together = run(tmp_path / "together", *arguments, "--workers", "2")
    assert code == 1
    assert (together.workers, together.stopped, together.error) == (2, "cases", "")
    for name in ("cases", "judged", "replays", "setups", "verdicts", "endings", "unknown", "transitions_missing"):
        assert getattr(together, name) == getattr(alone, name), name
    assert together.transitions == alone.transitions
    counts = [
        {found.fingerprint: (found.cases, {*found.consequences}) for found in one.findings} for one in (alone, together)
    ]
    assert counts[0] == counts[1] and counts[0]
    # The bug fails several oracles, whose failures are put down to its one cause by each worker alike.
    assert all(cases > 1 and consequences for cases, consequences in counts[0].values())
    for found in together.findings:
        assert (found.failed, found.tried) == (5, 5)
        assert Path(found.seed).is_file()
    # One form of each bug, and the one in which it was first seen: nobody else kept it too.
    kept = [path.name for path in (tmp_path / "together" / "stale-padding-toy").iterdir()]
    assert len(kept) == 2 * len(together.findings)


def test_the_first_finding_stops_all(tmp_path: Path) -> None:
    start = time.monotonic()
    arguments = ("--minutes", "5", "--stop-at-first", "--workers", "2")
    code, campaign = run(tmp_path, "run", "--target", "stale_req_pool/toy", *arguments)
    assert (code, campaign.stopped, campaign.error) == (1, "first finding", "")
    assert any(found.failed == 5 for found in campaign.findings)
    assert all(Path(found.seed).is_file() for found in campaign.findings)
    assert time.monotonic() - start < 60


def test_interrupted_workers_keep_and_tell_what_they_have(tmp_path: Path) -> None:
    arguments = ("--target", "stale_req_pool/toy", "--minutes", "5", "--workers", "2", "--out", "here")
    one = process(tmp_path, "run", *arguments)
    comes(lambda: any(tmp_path.glob("here/*/*.json")))
    one.send_signal(signal.SIGTERM)  # which reaches nobody but the one that was started
    out, err = one.communicate(timeout=30)
    assert (one.returncode, err) == (1, ""), (out, err)
    (campaign,), _ = loads((tmp_path / "here" / "record.json").read_text())
    assert (campaign.stopped, campaign.error) == ("interrupted", "")
    assert campaign.findings and campaign.workers == 2


class Recording(Coordinator):
    """Remembers what it is to do, and does nothing."""

    tasks: ClassVar[list[Mapping[str, Any]]] = []

    def work(self, command: Sequence[str], tasks: Sequence[Mapping[str, Any]]) -> Campaign:
        self.tasks.extend(tasks)
        return dataclasses.replace(sample_record.campaign(), workers=len(tasks))


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """The tasks that coordinators got."""
    Recording.tasks.clear()
    monkeypatch.setattr(context, "Coordinator", Recording)
    return Recording.tasks


def test_bench_compares_several_workers_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tasks: list[Mapping[str, Any]]
) -> None:
    arguments = ("--target", "clean/toy", "--cases", "8", "--cases-per-setup", "2", "--workers", "2")
    assert fuzz.main(["bench", *arguments, "--out", str(tmp_path)]) == 0
    assert [(task["mix"], task["warm"]) for task in tasks] == [("small", True)] * 2 + [("rounds", True)] * 2
    campaigns, _ = loads((tmp_path / "record.json").read_text())
    assert [one.cases for one in campaigns[:2]] == [16, 16], "whole rounds for all"
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  2 workers are ")]
    rates = [one.cases / one.seconds for one in campaigns]
    assert told == [f"  2 workers are {rates[n + 2] / rates[n]:.2f} times as fast as one" for n in range(2)]


@pytest.mark.parametrize(("mix", "measured"), [((), ["small", "rounds"]), (("--mix", "rounds"), ["rounds"])])
def test_bench_measures_several_workers_without_one_before(
    mix: tuple[str, ...], measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], tasks: list[Any]
) -> None:
    fuzz.main(["bench", "--target", "clean/toy", "--workers", "2", "--only-together", *mix, "--out", str(tmp_path)])
    assert [task["mix"] for task in tasks] == [name for name in measured for _ in range(2)]
    said = capsys.readouterr().out
    assert "cases/s" in said and "as fast as one" not in said and "first case" not in said


def test_a_worker_on_a_gpu_serves_many_setups_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: list[Mapping[str, Any]]
) -> None:
    monkeypatch.setattr(fuzz, "lacks", lambda target: "")
    arguments = ("run", "--workers", "2", "--out", str(tmp_path), "--target")
    for target in (("0.5.13/cuda",), ("0.5.13/emulated",), ("0.5.13/cuda", "--setups-per-session", "3")):
        fuzz.main([*arguments, *target])
    assert [task["setups_per_session"] for task in tasks] == [200, 200, 1, 1, 3, 3]


def test_each_worker_gets_a_gpu_of_the_callers_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: list[Mapping[str, Any]]
) -> None:
    monkeypatch.setattr(fuzz, "lacks", lambda target: "")
    monkeypatch.setattr(context, "gpus", lambda: ("H200",) * 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-x")
    fuzz.main(["run", "--target", "0.5.13/cuda", "--workers", "3", "--out", str(tmp_path)])
    fuzz.main(["run", "--target", "0.5.13/emulated", "--workers", "2", "--out", str(tmp_path)])
    assert [task["device"] for task in tasks] == ["5", "GPU-x", "5", "", ""]
    assert len({task["log"] for task in tasks}) == 5


class Shared(Channel):
    """The line of one shard to a scheduler that several share, all in this process and one after the other."""

    def __init__(self, scheduler: RoundScheduler, number: int) -> None:
        super().__init__(io.StringIO(), io.StringIO())
        self.scheduler, self.number = scheduler, number

    def ask(self, **message: Any) -> dict[str, Any]:
        message.pop("say")
        ((_, lease),) = self.scheduler.ask(self.number, LeaseRequest(**message))
        return dataclasses.asdict(lease)


def test_a_shard_of_an_endless_campaign_knows_the_setups_of_its_next_rounds() -> None:
    """So that their sessions are opened ahead; and nobody else runs these rounds."""
    scheduler = RoundScheduler(None, lambda place: 2)
    run: list[list[Setup]] = []
    for number in range(2):
        source = LeasedRounds(Shared(scheduler, number), lambda number: round_cases(1, number, "toy", "triton", 2))
        setups: list[Setup] = []
        announced: list[Setup] = []
        for ran in range(8):
            case = source.next_case(ran)
            assert isinstance(case, Case)
            if case.setup not in setups:
                assert case.setup in announced or not setups
                setups.append(case.setup)
                announced = [some[0].setup for some in source.coming()]
                assert len(announced) == AHEAD
        run.append(setups)
    assert len(run[0]) == len(run[1]) == 4
    assert not set(run[0]) & set(run[1])


def test_cases_that_cannot_be_run_do_not_count() -> None:
    """One shard takes all rounds here; tests/test_scheduler.py has several, at all speeds."""

    def trace_of(case: Case) -> Trace:
        # Every other setup cannot be built.
        fits = case.setup.slots % 2 == 0
        return Trace(ended=End(how=Termination.DONE) if fits else End(how=Termination.UNSUPPORTED, step=-1, what="no"))

    def ran(source: CaseSource, plan: Plan) -> tuple[list[Case], Campaign]:
        done: list[Case] = []

        def run(case: Case) -> Trace:
            done.append(case)
            return trace_of(case)

        hooks = Hooks(
            run=run,
            run_fresh=run,
            judge=lambda case, trace: [Verdict(oracle="o", status=Status.PASS)],
            overall=worst,
            keep=lambda finding: "",
            tell=lambda progress: None,
            clock=time.monotonic,
        )
        return done, campaign(plan, source, hooks)

    plan = dataclasses.replace(PLAN, seconds=None)
    alone, told = ran(CaseStream(rounds(1, "toy", "triton", 5)), dataclasses.replace(plan, cases=31))
    assert told.skipped
    scheduler = RoundScheduler(31, lambda place: 5)
    leased = LeasedRounds(Shared(scheduler, 0), lambda number: round_cases(1, number, "toy", "triton", 5))
    dealt, also = ran(leased, plan)
    assert dealt == alone
    assert (also.cases, also.skipped, also.stopped) == (31, told.skipped, "cases")


def coordinated(script: str, shards: int, folder: Path) -> tuple[Campaign, list[Progress]]:
    """The campaign of a coordinator with shards that do this. `report()` there is a line that tells of one case."""
    told: list[Progress] = []
    path = folder / "shard.py"
    sample = dataclasses.replace(sample_record.campaign(), cases=1, findings=()).to_json()
    (folder / "sample.json").write_text(json.dumps(sample))
    # It imports nothing of ours: that would take longer than all it does.
    path.write_text(
        textwrap.dedent("""
            import json, os, signal, sys, time
            from pathlib import Path
            sample = json.loads(Path(__file__).with_name("sample.json").read_text())
            number = json.loads(sys.stdin.readline())["number"]
            def tell(**message):
                print(json.dumps(message), flush=True)
            def report(say="report", **changes):
                tell(say=say, doing="running", campaign={**sample, **changes})
            def go():
                tell(say="ready")
                sys.stdin.readline()
        """)
        + textwrap.dedent(script)
    )
    coordinator = Coordinator(PLAN, RoundScheduler(None, lambda place: 4), told.append)
    return coordinator.work([sys.executable, str(path)], [{"number": number} for number in range(shards)]), told


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "worker 2 of 2: it ended: SIGKILL"),
        ("sys.exit(3)", "worker 2 of 2: it ended: exit 3"),
        ("print('hello', flush=True); time.sleep(60)", "worker 2 of 2: it sent an invalid message: 'hello\\n'"),
        ("tell(say='what'); time.sleep(60)", "worker 2 of 2: it sent an invalid message"),
        ("tell(say='report', campaign={}); time.sleep(60)", "worker 2 of 2: it sent an invalid message"),
    ],
)
def test_a_member_that_goes_wrong_is_told_of_and_costs_nobody_elses_work(
    script: str, error: str, tmp_path: Path
) -> None:
    start = time.monotonic()
    whole, told = coordinated(
        f"""
        if number == 1:
            {script}
        go()  # although the other never is
        report()
        report("done", stopped="cases")
        """,
        2,
        tmp_path,
    )
    assert whole.error.startswith(error)
    assert (whole.stopped, whole.cases) == ("error", 1)
    assert [progress.cases for progress in told] == [1, 1]
    assert time.monotonic() - start < 30


def test_what_a_killed_member_had_told_counts(tmp_path: Path) -> None:
    script = """
        go()
        report()
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        report("done", stopped="time")
    """
    whole, _ = coordinated(script, 2, tmp_path)
    assert (whole.cases, whole.stopped, whole.error) == (2, "error", "worker 2 of 2: it ended: SIGKILL")


def test_clocks_start_when_all_are_ready(tmp_path: Path) -> None:
    script = """
        time.sleep(0.5 * number)
        before = time.time()
        go()
        report("done", stopped="time", seconds=time.time() - before)
    """
    whole, _ = coordinated(script, 2, tmp_path)
    assert whole.error == ""
    assert 0.25 < whole.seconds < 20, "the first one waited for the second"


def test_a_bug_is_settled_by_the_first_who_meets_it(tmp_path: Path) -> None:
    script = """
        go()
        if number:
            time.sleep(0.3)
        tell(say="claim", fingerprint="abc")
        mine = json.loads(sys.stdin.readline())["claimed"]
        tell(say="claim", fingerprint=f"own{number}")
        own = json.loads(sys.stdin.readline())["claimed"]
        report("done", stopped="cases", facts={"claims": f"{number} {mine} {own}"})
    """
    whole, _ = coordinated(script, 2, tmp_path)
    assert whole.facts == {"claims": "0 True True, 1 False True"}


def test_a_plan_survives_the_way_to_a_member() -> None:
    assert plan_from_json(json.loads(json.dumps(plan_to_json(PLAN)))) == PLAN


def found(**changes: Any) -> CampaignFinding:
    return dataclasses.replace(sample_record.stale_found(), **changes)


def test_of_each_bug_the_best_known_form_and_all_its_cases() -> None:
    settled = found(failed=5, tried=5, cases=3, at_case=9, at_seconds=4.0, seed="a.json")
    noted = found(failed=0, tried=0, cases=2, at_case=1, at_seconds=1.5, seed="")
    other = found(fingerprint="0123456789ab", at_seconds=0.5)
    parts = [sample_record.campaign(findings=(noted, other)), sample_record.campaign(findings=(settled,))]
    whole = merged(parts)
    assert whole.findings == (other, dataclasses.replace(settled, cases=5, at_case=1, at_seconds=1.5))
    assert whole.workers == 2
    assert whole.cases == 2 * parts[0].cases
    assert whole.transitions_possible == parts[0].transitions_possible
    assert {one.transition: one.count for one in whole.transitions} == {
        one.transition: 2 * one.count for one in parts[0].transitions
    }


def test_what_nobody_stored_is_stored() -> None:
    kept: list[Finding] = []

    def keep(finding: Finding) -> str:
        kept.append(finding)
        return "new.json"

    lost, safe = found(seed="", fingerprint="0123456789ab"), found(seed="old.json")
    whole = with_seeds(sample_record.campaign(findings=(lost, safe)), keep)
    assert [one.seed for one in whole.findings] == ["new.json", "old.json"]
    (finding,) = kept
    assert (finding.case, finding.verdict.where, finding.verdict.cell) == (lost.case, lost.where, lost.cell)
    assert finding.target == whole.target


@pytest.mark.parametrize(
    ("reasons", "whole"),
    [
        (("cases", "cases"), "cases"),
        (("time", "cases"), "time"),
        (("cases", "error"), "error"),
        (("cannot run", "cases"), "cases"),
        (("cannot run", "cannot run"), "cannot run"),
        (("interrupted", "time"), "interrupted"),
        (("interrupted", "first finding"), "first finding"),
        (("interrupted", "first finding", "error"), "error"),
    ],
)
def test_why_the_whole_stopped(reasons: tuple[str, ...], whole: str) -> None:
    parts = [dataclasses.replace(sample_record.campaign(), stopped=reason) for reason in reasons]
    assert merged(parts).stopped == whole


def test_what_one_covered_the_other_did_not_miss() -> None:
    one, other = sample_record.campaign(), sample_record.campaign()
    moved = one.transitions[0]
    other = dataclasses.replace(
        other,
        transitions=other.transitions[1:],
        transitions_missing=(*other.transitions_missing, moved.transition),
    )
    whole = merged([one, other])
    assert moved.transition not in whole.transitions_missing
    assert whole.transitions_possible == one.transitions_possible
