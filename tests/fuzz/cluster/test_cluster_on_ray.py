"""Campaigns and commands on real processes: an agent and its slots, Ray on this machine, and what survives kill -9."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from fuzz.cluster.agent import Agent
from fuzz.cluster.chunk import Chunk, settling
from fuzz.cluster.slot import code_version
from fuzz.draw.rounds import rounds
from fuzz.stats import Plan
from repro.cases.case import Target
from repro.cases.codec import Seed, dumps
from repro.commands.last_resort import descendants
from repro.ledger.read import read
from repro.traces.campaign import Campaign, loads
from tests.builders.project import PROJECT, in_front
from tests.builders.waiting import comes
from tests.fuzz.test_fuzz_main import process
from tests.runners.targets.test_hypothesis_pin import put_hypothesis

pytestmark = pytest.mark.slow

PLAN = Plan(target=Target("stale_padding", "toy"), runner="toy", backend="triton", seed=3)
CHUNK = Chunk(plan=PLAN, cases_per_setup=6, first=0, last=4)
KILLS = 20
SEEDS = 48
CASES = 1000


def job(**more: Any) -> dict[str, Any]:
    return {
        "campaign": f"test{os.getpid()}",
        "checkout": str(PROJECT),
        "code": code_version(),
        "cuda": False,
        "environment": {},
        "target": str(PLAN.target),
        "timeout": 60.0,
        "standbys": None,
        "setups_per_session": None,
        "known_issues": "",
        "run": "r",
        **more,
    }


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    started = Agent(job(), 1)
    yield started
    started.close()


def part_of(message: Mapping[str, Any]) -> Campaign:
    return Campaign.from_json(message["campaign"])


def environment_of(pid: int) -> dict[str, str]:
    texts = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(text.split("=", 1) for text in texts if "=" in text)


def test_an_agent_runs_chunks_in_processes_of_our_own_and_replaces_those_that_die(agent: Agent) -> None:
    assert agent.start() == {"say": "ready", "code": code_version()}
    (first,) = agent.pids()
    assert environment_of(first)["CUDA_VISIBLE_DEVICES"] == "", "no GPU was reserved"
    done = agent.run(CHUNK.to_json(), None)
    assert part_of(done).cases == len(done["rows"]) == 24
    assert 0 < done["seconds"] < part_of(done).seconds
    assert all(failure.tried == 0 and not failure.seed for failure in part_of(done).findings)
    family = descendants(first)
    assert family
    os.kill(first, signal.SIGKILL)
    assert agent.run(CHUNK.to_json(), None) == {"lost": "SIGKILL"}
    again = agent.run(CHUNK.to_json(), None)
    counts = [{failure.fingerprint: failure.cases for failure in part_of(part).findings} for part in (done, again)]
    assert counts[0] == counts[1] != {}
    assert agent.pids() != [first]
    assert comes(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))


def test_one_chunk_settles_one_failure(agent: Agent) -> None:
    failure = part_of(agent.run(CHUNK.to_json(), None)).findings[-1]
    settled = agent.run(settling(CHUNK, failure.fingerprint, failure.case).to_json(), None)
    forms = {form.fingerprint: form for form in part_of(settled).findings}
    assert (forms[failure.fingerprint].failed, forms[failure.fingerprint].tried) == (5, 5)
    assert all(form.tried == 0 for name, form in forms.items() if name != failure.fingerprint)
    assert settled["rows"] == []


def test_an_agent_stops_when_asked(agent: Agent) -> None:
    assert part_of(agent.run(CHUNK.to_json(), 0.0)).cases == 0
    agent.interrupt()
    assert agent.run(CHUNK.to_json(), None) == {"say": "stopped"}


def test_what_a_node_lacks_is_said_at_its_start() -> None:
    absent = Agent(job(target="0.0.1/emulated"), 1)
    try:
        assert "0.0.1/emulated" in absent.start()["lacks"]
    finally:
        absent.close()


def test_a_node_that_would_draw_other_cases_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", in_front(put_hypothesis(tmp_path, "5.0")))
    other = Agent(job(), 1)
    try:
        assert other.start()["code"] == code_version().replace(metadata.version("hypothesis"), "5.0")
    finally:
        other.close()


def test_a_node_without_a_reserved_gpu_takes_no_part_in_a_campaign_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(RuntimeError, match="no GPU is reserved"):
        Agent(job(cuda=True), 1)


def started(folder: Path, cases: int, *more: str) -> subprocess.Popen[str]:
    pytest.importorskip("ray", reason="Ray is not installed: make setup-checks")
    target = ("--target", "stale_padding/toy", "--cases", str(cases), "--seed", "3", "--cases-per-setup", "16")
    return process(folder, "run", *target, "--out", "here", "--ledger", "ledger.db", *more)


def verdicts(path: Path) -> Counter[tuple[str, str]]:
    """The number of runs of each case, by result."""
    return Counter((row[6], row[7]) for row in read(path).case_rows())


def victims(driver: int) -> list[int]:
    """Raylets but for the head's, agents, and slots."""
    processes = []
    for pid in descendants(driver):
        line = _command(pid)
        raylet = "raylet/raylet " in line and "--head" not in line
        if raylet or line.startswith("ray::Agent") or "-m fuzz slot" in line:
            processes.append(pid)
    return processes


@pytest.mark.skipif(
    not os.environ.get("EAGLEEYE_KILLS"),
    reason="a chunk that chance kills four times is given up, as it should be: run by EAGLEEYE_KILLS=1",
)
def test_twenty_kills_of_raylets_agents_and_slots_cost_no_case_and_no_finding(tmp_path: Path) -> None:
    choices = random.Random(7)
    for name in ("alone", "cluster"):
        (tmp_path / name).mkdir()
    alone = started(tmp_path / "alone", CASES)
    out, err = alone.communicate(timeout=400)
    assert (alone.returncode, err) == (1, ""), (out, err)
    driver = started(tmp_path / "cluster", CASES, "--cluster", "local:4", "--chunk-seconds", "1.5")
    kinds: Counter[str] = Counter()
    while sum(kinds.values()) < KILLS and driver.poll() is None:
        time.sleep(choices.uniform(0.1, 1.0))
        # Spread over the campaign, however fast this machine is.
        if stored(tmp_path / "cluster" / "ledger.db") < CASES * sum(kinds.values()) / (KILLS + 5):
            continue
        if alive := victims(driver.pid):
            victim = choices.choice(alive)
            kinds[_kind(victim)] += 1
            os.kill(victim, signal.SIGKILL)
    out, err = driver.communicate(timeout=600)
    print(dict(kinds), *out.splitlines()[-8:], sep="\n")
    assert sum(kinds.values()) == KILLS, "the campaign was over too soon"
    assert (driver.returncode, err) == (1, ""), (out, err)
    assert verdicts(tmp_path / "cluster" / "ledger.db") == verdicts(tmp_path / "alone" / "ledger.db")
    on_one_host, many = (
        loads((tmp_path / name / "here" / "record.json").read_text())[0][0] for name in ("alone", "cluster")
    )
    counts = [{failure.fingerprint: failure.cases for failure in campaign.findings} for campaign in (on_one_host, many)]
    assert counts[0] == counts[1] and len(many.findings) == len(counts[1]) > 1
    for name in ("cases", "judged", "replays", "verdicts", "endings", "unknown", "transitions"):
        assert getattr(many, name) == getattr(on_one_host, name), name
    assert all((settled.failed, settled.tried) == (5, 5) and settled.seed for settled in many.findings)
    with sqlite3.connect(tmp_path / "cluster" / "ledger.db") as ledger:
        rows = ledger.execute("SELECT fingerprint, failed FROM findings").fetchall()
    assert Counter(rows) == Counter({(name, failed): 1 for name in counts[1] for failed in (0, 5)})


def stored(path: Path) -> int:
    """Cases in a ledger that is being written."""
    if not path.exists():
        return 0
    with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as ledger:
        return int(ledger.execute("SELECT count(*) FROM cases").fetchone()[0])


def _kind(pid: int) -> str:
    line = _command(pid)
    return "agent" if line.startswith("ray::") else "slot" if "-m fuzz slot" in line else "raylet"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def replaying(folder: Path, *more: str) -> subprocess.Popen[str]:
    """Many runs of cases of the toy, as JSON."""
    words = [sys.executable, "-m", "repro", "run", *(f"{number}.json" for number in range(SEEDS)), "--json"]
    words += ["--target", "stale_padding/toy", "--target", "clean/toy", "--tries", "60", *more]
    environment = {**os.environ, "PYTHONPATH": in_front(PROJECT)}
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=PIPE, stderr=PIPE, text=True)


@pytest.mark.exhaustive
def test_seeds_come_out_as_on_one_host_though_a_node_an_agent_and_a_slot_are_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: make setup-checks")
    cases = rounds(3, "toy", "triton", 4, range(SEEDS // 4))
    for number, case in enumerate(cases):
        (tmp_path / f"{number}.json").write_text(dumps(Seed(about={}, case=case)))
    alone, _ = replaying(tmp_path).communicate(timeout=300)
    driver = replaying(tmp_path, "--cluster", "local:2", "--slots", "1")
    kinds: set[str] = set()
    while len(kinds) < 3 and driver.poll() is None:
        time.sleep(0.5)
        pids = {_kind(pid): pid for pid in victims(driver.pid)}
        # The slots are there once all else is, and there is something to lose once one of them has a worker.
        at_work = any("runners.processes." in _command(pid) for pid in descendants(driver.pid))
        if "slot" in pids and at_work and (kind := next((name for name in pids if name not in kinds), "")):
            kinds.add(kind)
            os.kill(pids[kind], signal.SIGKILL)
    out, err = driver.communicate(timeout=300)
    assert kinds == {"raylet", "agent", "slot"}, "it was over too soon"
    assert "lost and done again: " in err and "error" not in err
    forms = [json.loads(text) for text in (alone, out)]
    for replay in (replay for form in forms for replay in form["replays"]):
        del replay["seconds"]
    assert driver.returncode == 1 and forms[0] == forms[1]


@pytest.mark.exhaustive
def test_an_interrupt_ends_all_and_keeps_what_is_there(tmp_path: Path) -> None:
    driver = started(tmp_path, 100_000, "--cluster", "local:2", "--chunk-seconds", "2")
    comes(lambda: any(tmp_path.glob("here/*/*.json")), 120)
    family = descendants(driver.pid)
    driver.send_signal(signal.SIGTERM)
    out, err = driver.communicate(timeout=90)
    assert (driver.returncode, err) == (1, ""), (out, err)
    ((campaign,), _) = loads((tmp_path / "here" / "record.json").read_text())
    assert (campaign.stopped, campaign.error) == ("interrupted", "")
    assert campaign.findings and campaign.cases == sum(verdicts(tmp_path / "ledger.db").values()) > 0

    def left() -> list[int]:
        # A forked worker's command line is that of its server.
        return [pid for pid in family if "fuzz slot" in _command(pid) or "runners.processes." in _command(pid)]

    comes(lambda: not left(), 10)
    assert left() == []
