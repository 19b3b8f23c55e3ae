"""The jobs of a nightly run: known issues, stored seeds and known findings on every target, the fixes table, campaigns.

Each test ends as its judgement says (tests/nightly/gate.py): passed is green, xfailed is known, failed is red.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from oracles.catalogue import judge_all, overall
from repro.cases import codec
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case, Target
from repro.cases.places import log
from repro.cases.runner_facts import RUNNER_FACTS, TOY
from repro.ledger.explain import Explained, Explainer
from repro.ledger.known import Issue, probed
from repro.ledger.read import read
from repro.ledger.rows import FINDING, SEED
from repro.ledger.write import RUN_VARIABLE
from repro.shrinking.replay import Outcome, outcome_of
from repro.shrinking.store import keep
from repro.traces.campaign import loads
from repro.traces.finding import Finding
from repro.upstream.fixes import FIXES
from runners.processes.experiments import experiments
from runners.processes.pool import Pool
from tests.builders.project import PROJECT, in_front
from tests.nightly.gate import Color, Judgement, judge_campaign, judge_check, judge_fix, judge_issue
from tests.nightly.plugin import NAME, Nightly

pytestmark = pytest.mark.nightly

SILENCE_S = 120.0
# Cases whose lines of sglang are noted, each of a setup of its own.
LINES_CASES = 12
# A command that has not ended by then never will: the longest thing it waits for is a worker's silence.
PATIENCE_S = 3600.0


def plugin(config: pytest.Config) -> Nightly:
    registered = config.pluginmanager.get_plugin(NAME)
    assert isinstance(registered, Nightly)
    return registered


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    nightly = plugin(metafunc.config)
    if "issue" in metafunc.fixturenames:
        metafunc.parametrize("issue", nightly.issues, ids=[known.title for known in nightly.issues])
    if "path" in metafunc.fixturenames:
        metafunc.parametrize("path", nightly.seeds, ids=[path.stem for path in nightly.seeds])
    if "fingerprint" in metafunc.fixturenames:
        metafunc.parametrize("fingerprint", list(nightly.findings))
    if "engine" in metafunc.fixturenames:
        used = {target.engine for target in nightly.targets}
        engines = [engine for engine in ("emulated", "cuda") if engine in used]
        metafunc.parametrize("engine", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in engines])
    if "job" in metafunc.fixturenames:
        metafunc.parametrize("job", [_job(*entry) for target in nightly.targets for entry in jobs(target)])
    if "traced" in metafunc.fixturenames:
        traced = [target for target in nightly.targets if target.engine != TOY]
        metafunc.parametrize("traced", [_job(*entry) for target in traced for entry in jobs(target)])


def jobs(target: Target) -> Iterator[tuple[Target, str, str]]:
    """Every runner with each of its backends; the toy engine runs the toy alone, and nobody else does."""
    for runner, facts in RUNNER_FACTS.items():
        if (runner == TOY) == (target.engine == "toy"):
            yield from (
                (target, runner, backend)
                for backend in facts.backends
                if target.engine in BACKEND_FACTS[backend].engines
            )


def _job(target: Target, runner: str, backend: str) -> object:
    marks = [] if target.engine == "toy" else [getattr(pytest.mark, target.engine)]
    return pytest.param((target, runner, backend), id=f"{target} {runner} {backend}", marks=marks)


Conclude = Callable[[Judgement], None]
# A target, a runner and its backend.
Job = tuple[Target, str, str]


@pytest.fixture
def conclude(nightly: Nightly, request: pytest.FixtureRequest) -> Conclude:
    """Ends the test as a judgement says."""
    return partial(nightly.conclude, item=request.node)


@pytest.fixture(scope="session")
def nightly(pytestconfig: pytest.Config) -> Nightly:
    return plugin(pytestconfig)


class Pools:
    """One pool, on the target that was asked for last: importing a release takes seconds, and memory. Mutable."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._pool: Pool | None = None

    def on(self, target: Target) -> Pool:
        if self._pool is None or self._pool.target != target:
            self.close()
            self._pool = self._made(target)
        return self._pool

    @contextmanager
    def disposable(self, target: Target) -> Iterator[Pool]:
        """A worker that nobody else will need, for what may take it along."""
        self.close()
        with self._made(target) as pool:
            yield pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.__exit__(None, None, None)
        self._pool = None

    def _made(self, target: Target) -> Pool:
        return Pool(target, timeout_s=SILENCE_S, log=self.log)


@pytest.fixture(scope="session")
def explainer(nightly: Nightly, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explainer]:
    """Puts known issues to the test: in a worker of its own, which stays open on one release."""
    log = tmp_path_factory.mktemp("mended") / "log"
    with experiments(nightly.issues, judge_all, overall, timeout_s=SILENCE_S, log=log) as experimenting:
        yield experimenting


def explain(outcome: Outcome, nightly: Nightly, explainer: Explainer) -> Explained | None:
    """The explanation of a failure by known issues. What they leave is a finding: kept, counted, and run again from now
    on."""
    explained = explainer.of_outcome(outcome)
    for verdict in explained.left if explained and explained.mended and not explained.doubt else ():
        finding = Finding(case=outcome.case, target=outcome.target, verdict=verdict, failed=1, tried=1)
        nightly.book.finding(finding)
        keep(nightly.out, finding)
    return explained


@pytest.fixture(scope="session")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pools]:
    opened = Pools(tmp_path_factory.mktemp("workers") / "log")
    yield opened
    opened.close()


def run(name: str, case: Case, target: Target, nightly: Nightly, pools: Pools, issue: Issue | None) -> Outcome:
    """A stored case, in fresh processes: of one worker, or of one that is thrown away if it may crash."""

    def ran(pool: Pool) -> Outcome:
        return outcome_of(Path(name), case, target, pool.run_fresh, judge_all, overall, nightly.profile.tries)

    if issue and issue.crashes:
        with pools.disposable(target) as pool:
            return ran(pool)
    return ran(pools.on(target))


def test_known_issue(issue: Issue, nightly: Nightly, conclude: Conclude) -> None:
    conclude(judge_issue(issue, nightly.today))


def test_seed(
    path: Path, target: Target, nightly: Nightly, pools: Pools, explainer: Explainer, conclude: Conclude
) -> None:
    seed, subject = codec.read(path), f"{SEED}{path.name}"
    issue = probed(nightly.issues, subject, nightly.release(target), target.engine)
    outcome = run(path.name, seed.case, target, nightly, pools, issue)
    row = nightly.book.outcome(outcome, seed.about)
    conclude(judge_check(row, nightly.state(subject, target), issue, explain(outcome, nightly, explainer)))


def test_finding(
    fingerprint: str, target: Target, nightly: Nightly, pools: Pools, explainer: Explainer, conclude: Conclude
) -> None:
    subject, release = f"{FINDING}{fingerprint}", nightly.release(target)
    case = codec.loads(nightly.findings[fingerprint].seed_text).case
    issue = probed(nightly.issues, subject, release, target.engine)
    outcome = run(subject, case, target, nightly, pools, issue)
    row = nightly.book.found_again(outcome, fingerprint)
    conclude(judge_check(row, nightly.state(subject, target), issue, explain(outcome, nightly, explainer)))


@pytest.mark.parametrize("number", [fix.number for fix in FIXES])
def test_fix(number: int, engine: str, nightly: Nightly, conclude: Conclude) -> None:
    words = ["repro", "fixes", "--fix", str(number), "--engine", engine, "--installed"]
    ended = command(words, nightly, PATIENCE_S)
    rows = [
        row for row in read(nightly.path).fixes if (row.run, row.number, row.engine) == (nightly.run, number, engine)
    ]
    conclude(judge_fix(rows, ended.returncode, last_line(ended.stderr)))


def test_campaign(job: Job, nightly: Nightly, conclude: Conclude) -> None:
    conclude(_campaign(job, nightly, ["--minutes", str(nightly.minutes)], nightly.minutes * 60))


def test_lines(traced: Job, nightly: Nightly, conclude: Conclude) -> None:
    """A short campaign that notes which lines of sglang its cases run, for the report."""
    words = ["--lines", "--cases", str(LINES_CASES), "--cases-per-setup", "1"]
    conclude(_campaign(traced, nightly, words, 0.0))


def _campaign(job: Job, nightly: Nightly, options: list[str], seconds: float) -> Judgement:
    """The judgement of a campaign with these options, which takes about so long."""
    target, runner, backend = job
    words = ["fuzz", "run", "--target", str(target), "--runner", runner, "--backend", backend, *options]
    words += ["--profile", nightly.profile_name, "--seed", str(nightly.seed)]
    name = f"{target}-{runner}-{backend}{'-lines' * ('--lines' in options)}".replace("/", "-")
    folder = nightly.out / name
    words += ["--known-issues", str(nightly.known_issues), "--out", str(folder)]
    ended = command(words, nightly, seconds + PATIENCE_S)
    record = folder / "record.json"
    campaigns = loads(record.read_text())[0] if record.exists() else ()
    if not campaigns:
        text = f"{target} {runner}/{backend}: code {ended.returncode}: {last_line(ended.stderr)}"
        return Judgement(color=Color.RED, text=text)
    before = [row.campaign for row in read(nightly.path).campaigns if row.run != nightly.run]
    return judge_campaign(campaigns[-1], [c for c in before if (c.target, c.runner, c.backend) == job])


def command(words: list[str], nightly: Nightly, seconds: float) -> subprocess.CompletedProcess[str]:
    """One of ours, as a part of this run of the ledger. What it prints is kept in the test's report."""
    environment = {**os.environ, RUN_VARIABLE: nightly.run, "PYTHONPATH": in_front(PROJECT)}
    line = [sys.executable, "-m", *words, "--ledger", str(nightly.path)]
    print(" ".join(line))
    with subprocess.Popen(
        line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail(f"{' '.join(words)}: had not ended after {seconds:.0f} s", pytrace=False)
        except KeyboardInterrupt:
            process.terminate()  # it keeps its findings, and ends its workers
            process.communicate()
            raise
    print(log(out), log(err), sep="\n")
    return subprocess.CompletedProcess(line, process.returncode, out, err)


def last_line(text: str) -> str:
    return ([line for line in text.splitlines() if line.strip()] or ["said nothing"])[-1]
