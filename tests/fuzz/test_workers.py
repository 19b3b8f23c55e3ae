"""Several processes on one campaign: the same cases as one, each bug settled once, one record; whoever is lost."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fuzz import __main__ as fuzz
from fuzz.campaign import campaign
from fuzz.case_source import CaseStream
from fuzz.cluster.chunk import Chunk, Cutter
from fuzz.cluster.merge import merged
from fuzz.commands import cluster, context
from fuzz.draw.rounds import part, rounds
from fuzz.stats import Plan
from fuzz.triage import Hooks
from repro.cases.case import Case, Target
from repro.cases.codec import digest
from repro.ledger.read import read
from repro.ledger.rows import CaseRow
from repro.traces.campaign import Campaign, CampaignFinding, loads
from repro.traces.finding import Status, Verdict, worst
from repro.traces.trace import End, Termination, Trace
from repro.traces.trace_file import beside
from tests.builders import sample_record
from tests.builders.waiting import comes
from tests.fuzz.test_fuzz_main import process

pytestmark = pytest.mark.slow

PLAN = Plan(target=Target("clean", "toy"), runner="toy", backend="triton", seed=1, stop_at_first=True, seconds=2.5)


def run(out: Path, *arguments: str) -> tuple[int, Campaign]:
    """The exit code of this command line and what it recorded."""
    code = fuzz.main([*arguments, "--out", str(out)])
    (record,), _ = loads((out / "record.json").read_text())
    return code, record


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
        {finding.fingerprint: (finding.cases, {*finding.consequences}) for finding in record.findings}
        for record in (alone, together)
    ]
    assert counts[0] == counts[1] and counts[0]
    # The bug fails several oracles, whose failures are put down to its one cause by each worker alike.
    assert all(cases > 1 and consequences for cases, consequences in counts[0].values())
    for finding in together.findings:
        assert (finding.failed, finding.tried) == (5, 5)
        assert Path(finding.seed).is_file()
    # One form of each bug, and the one in which it was first seen: no other worker kept it too.
    kept = [path.name for path in (tmp_path / "together" / "stale-padding-toy").iterdir()]
    assert len(kept) == 2 * len(together.findings)


def test_the_first_finding_stops_all(tmp_path: Path) -> None:
    start = time.monotonic()
    arguments = ("--minutes", "5", "--stop-at-first", "--workers", "2")
    code, campaign = run(tmp_path, "run", "--target", "stale_req_pool/toy", *arguments)
    assert (code, campaign.stopped, campaign.error) == (1, "first finding", "")
    assert any(finding.failed == 5 for finding in campaign.findings)
    assert all(Path(finding.seed).is_file() for finding in campaign.findings)
    assert time.monotonic() - start < 60


def test_interrupted_workers_keep_and_tell_what_they_have(tmp_path: Path) -> None:
    arguments = ("--target", "stale_req_pool/toy", "--minutes", "5", "--workers", "2", "--out", "here")
    command = process(tmp_path, "run", *arguments)
    comes(lambda: any(tmp_path.glob("here/*/*.json")))
    command.send_signal(signal.SIGTERM)  # it reaches only the process that was started
    out, err = command.communicate(timeout=30)
    assert (command.returncode, err) == (1, ""), (out, err)
    (campaign,), _ = loads((tmp_path / "here" / "record.json").read_text())
    assert (campaign.stopped, campaign.error) == ("interrupted", "")
    assert campaign.findings and campaign.workers == 2


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The jobs of campaigns that would have been shared, each with its devices and the mix of its cutter."""
    jobs: list[dict[str, Any]] = []

    def processes(job: Mapping[str, Any], devices: Sequence[str]) -> Any:
        jobs.append({**job, "devices": list(devices)})
        return nullcontext()

    class Recording:
        """Does nothing."""

        def __init__(self, plan: Plan, cutter: Cutter, nodes: object, office: object) -> None:
            chunk = cutter.next()
            assert chunk
            jobs[-1]["mix"] = chunk.mix

        def work(self) -> Campaign:
            return dataclasses.replace(sample_record.campaign(), workers=len(jobs[-1]["devices"]))

    monkeypatch.setattr(cluster, "processes", processes)
    monkeypatch.setattr(context, "Drive", Recording)
    return jobs


def test_bench_compares_several_workers_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: list[dict[str, Any]]
) -> None:
    arguments = ("--target", "clean/toy", "--cases", "8", "--cases-per-setup", "2", "--workers", "2")
    assert fuzz.main(["bench", *arguments, "--out", str(tmp_path)]) == 0
    assert [(job["mix"], job["warm"]) for job in jobs] == [("small", True), ("rounds", True)]
    campaigns, _ = loads((tmp_path / "record.json").read_text())
    assert [record.cases for record in campaigns[:2]] == [16, 16], "whole rounds for all"
    summary = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  2 workers are ")]
    rates = [record.cases / record.seconds for record in campaigns]
    assert summary == [f"  2 workers are {rates[n + 2] / rates[n]:.2f} times as fast as one" for n in range(2)]


@pytest.mark.parametrize(("mix", "measured"), [((), ["small", "rounds"]), (("--mix", "rounds"), ["rounds"])])
def test_bench_measures_several_workers_without_one_before(
    mix: tuple[str, ...],
    measured: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    jobs: list[dict[str, Any]],
) -> None:
    fuzz.main(["bench", "--target", "clean/toy", "--workers", "2", "--only-together", *mix, "--out", str(tmp_path)])
    assert [job["mix"] for job in jobs] == measured
    output = capsys.readouterr().out
    assert "cases/s" in output and "as fast as one" not in output and "first case" not in output


def test_each_worker_gets_a_gpu_of_the_callers_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(fuzz, "lacks", lambda target: "")
    monkeypatch.setattr(context, "gpus", lambda: ("H200",) * 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-x")
    fuzz.main(["run", "--target", "0.5.13/cuda", "--workers", "3", "--out", str(tmp_path)])
    fuzz.main(["run", "--target", "0.5.13/emulated", "--workers", "2", "--out", str(tmp_path)])
    assert [job["devices"] for job in jobs] == [["5", "GPU-x", "5"], ["", ""]]
    assert len({job["log"] for job in jobs}) == 2


class Shared:
    """Processes that share a campaign: each does one chunk after the other, in whatever order luck has it. In every
    third setup no case can be run."""

    def __init__(self, cutter: Cutter, luck: random.Random, workers: int) -> None:
        self.cutter, self.luck, self.workers = cutter, luck, workers
        self.ran: list[Case] = []
        self.skipped = 0

    def run(self, cases: CaseStream, plan: Plan) -> Campaign:
        def run(case: Case) -> Trace:
            fits = case.setup.slots % 3 > 0
            if fits:
                self.ran.append(case)
            return Trace(ended=End(how=Termination.DONE if fits else Termination.UNSUPPORTED, step=fits - 1, what="no"))

        hooks = Hooks(
            run=run,
            run_fresh=run,
            judge=lambda case, trace: [Verdict(oracle="o", status=Status.PASS)],
            overall=worst,
            keep=lambda finding: "",
            tell=lambda progress: None,
            clock=time.monotonic,
        )
        return campaign(plan, cases, hooks)

    def work(self) -> int:
        """Run the campaign to its end; the number of its cases."""
        under_way: list[Chunk] = []
        total = 0
        while True:
            chunk = self.cutter.next() if len(under_way) < self.workers else None
            if chunk:
                under_way.append(chunk)
                continue
            if not under_way:
                assert self.cutter.ended, "all of them wait for each other"
                return total
            done = under_way.pop(self.luck.randrange(len(under_way)))
            part = self.run(CaseStream(done.rounds()), done.plan)
            self.cutter.ran(done, part.cases, seconds=self.luck.uniform(0.2, 3))
            total += part.cases


@pytest.mark.parametrize("limit", [1, 7, 31, 90])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_same_cases_though_some_cannot_be_run(workers: int, limit: int) -> None:
    plan = dataclasses.replace(PLAN, seconds=None, stop_at_first=False)
    alone = Shared(Cutter(plan, 5, limit, 4), random.Random(0), 1)
    summary = alone.run(CaseStream(rounds(1, "toy", "triton", 5)), dataclasses.replace(plan, cases=limit))
    assert summary.cases == limit and (summary.skipped or limit < 31)
    for seed in range(3):
        shared = Shared(Cutter(plan, 5, limit, 4), random.Random(seed), workers)
        assert shared.work() == limit
        assert Counter(map(digest, shared.ran)) == Counter(map(digest, alone.ran))


def test_a_part_of_a_matrix_is_cut_into_its_own_rounds() -> None:
    plan = dataclasses.replace(PLAN, seconds=None)
    cutter = Cutter(plan, 4, None, 8, numbers=part(18, 4, 2, 3), limit=18)
    chunks = []
    while chunk := cutter.next():
        chunks.append(chunk)
        cutter.ran(chunk, 4, seconds=1)
    assert [number for chunk in chunks for number in chunk.numbers] == [1, 4]
    cases = [digest(case) for chunk in chunks for case in chunk.rounds()]
    assert cases == [digest(case) for case in rounds(1, "toy", "triton", 4, part(18, 4, 2, 3), 18)]


def test_what_is_given_up_keeps_nothing_waiting() -> None:
    cutter = Cutter(PLAN, 4, 9, 1)
    first, second = cutter.next(), cutter.next()
    assert first and second and cutter.next() is None and not cutter.ended
    cutter.ran(first, None)
    cutter.ran(first, None)
    cutter.ran(second, 4)
    last = cutter.next()
    assert last and len(list(last.rounds())) == 1
    cutter.ran(last, 1)
    assert cutter.next() is None and cutter.ended


def rows(path: Path) -> Counter[tuple[str, str]]:
    """The cases of a ledger, each with its verdict."""
    names = [field.name for field in dataclasses.fields(CaseRow)]
    places = names.index("digest"), names.index("status")
    return Counter((str(row[places[0]]), str(row[places[1]])) for row in read(path).case_rows())


@pytest.mark.exhaustive
def test_what_a_killed_worker_was_at_is_done_again(tmp_path: Path) -> None:
    """Each of two is killed while it works: no case is lost or counted twice, and no finding."""
    arguments = ("run", "--target", "stale_padding/toy", "--cases", "150", "--seed", "5")
    alone = process(tmp_path, *arguments, "--out", "alone", "--ledger", "alone.db")
    together = process(tmp_path, *arguments, "--out", "together", "--ledger", "together.db", "--workers", "2")
    for number in range(2):
        assert comes(partial(any, _Working(tmp_path / "together", number)), 60)
        os.kill(next(iter(_Working(tmp_path / "together", number))), signal.SIGKILL)
    output, errors = together.communicate(timeout=120)
    assert (together.returncode, errors) == (1, "") and "lost, and done again: SIGKILL" in output
    assert alone.wait(120) == 1
    campaigns = [loads((tmp_path / name / "record.json").read_text())[0][0] for name in ("alone", "together")]
    assert [(record.cases, record.stopped, record.errors) for record in campaigns] == [(150, "cases", {})] * 2
    assert campaigns[0].verdicts == campaigns[1].verdicts
    assert rows(tmp_path / "alone.db") == rows(tmp_path / "together.db")
    counts = [
        {finding.fingerprint: (finding.cases, finding.failed) for finding in record.findings} for record in campaigns
    ]
    assert counts[0] == counts[1] and counts[0]


@dataclasses.dataclass(frozen=True)
class _Working:
    """The processes of a worker that have a case in flight, as files in the campaign's folder say."""

    folder: Path
    worker: int

    def __iter__(self) -> Iterator[int]:
        for path in self.folder.glob(f"in-flight-worker-stale-padding-toy-{self.worker}-*.json"):
            yield int(path.stem.split("-")[-2])


def test_a_worker_that_does_not_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Found before an installed eagleeye, too.
    (tmp_path / "no/fuzz").mkdir(parents=True)
    (tmp_path / "no/fuzz/__init__.py").write_text("raise ImportError('broken here')\n")
    monkeypatch.setattr("fuzz.cluster.fan.PROJECT", tmp_path / "no")
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.chdir(tmp_path / "no")
    code, record = run(tmp_path / "out", "run", "--target", "clean/toy", "--cases", "3", "--workers", "2")
    assert (code, record.stopped, record.cases) == (3, "error", 0)
    assert "no worker starts: exit 1: " in record.error and "broken here" in record.error


def test_workers_keep_traces_beside_seeds(tmp_path: Path) -> None:
    arguments = ("--target", "stale_padding/toy", "--cases", "12", "--seed", "3", "--keep-traces", "--workers", "2")
    _, record = run(tmp_path, "run", *arguments)
    assert record.findings and all(beside(Path(finding.seed)).is_file() for finding in record.findings)


def finding(**changes: Any) -> CampaignFinding:
    return dataclasses.replace(sample_record.stale_found(), **changes)


def test_of_each_bug_the_best_known_form_and_all_its_cases() -> None:
    settled = finding(failed=5, tried=5, cases=3, at_case=9, at_seconds=4.0, seed="a.json")
    noted = finding(failed=0, tried=0, cases=2, at_case=1, at_seconds=1.5, seed="")
    other = finding(fingerprint="0123456789ab", at_seconds=0.5)
    parts = [sample_record.campaign(findings=(noted, other)), sample_record.campaign(findings=(settled,))]
    whole = merged(parts)
    assert whole.findings == (other, dataclasses.replace(settled, cases=5, at_case=1, at_seconds=1.5))
    assert whole.workers == 2
    assert whole.cases == 2 * parts[0].cases
    assert whole.transitions_possible == parts[0].transitions_possible
    assert {covered.transition: covered.count for covered in whole.transitions} == {
        covered.transition: 2 * covered.count for covered in parts[0].transitions
    }


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
    record, other = sample_record.campaign(), sample_record.campaign()
    moved = record.transitions[0]
    other = dataclasses.replace(
        other,
        transitions=other.transitions[1:],
        transitions_missing=(*other.transitions_missing, moved.transition),
    )
    whole = merged([record, other])
    assert moved.transition not in whole.transitions_missing
    assert whole.transitions_possible == record.transitions_possible
