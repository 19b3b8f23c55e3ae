"""The pytest plugin behind `pytest -m nightly`: one run of the ledger for a whole session, whatever its workers do, and
at its end why it is green or red.

Only conftest.py imports it, and only where a nightly run was asked for.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from fuzz.draw.profiles import NIGHTLY, PROFILES, Profile
from repro.cases.atomic_file import write_text
from repro.cases.case import Target
from repro.cases.places import log, markdown
from repro.commands.interrupts import interruptible
from repro.commands.last_resort import limit_ending
from repro.ledger.known import BadIssues, Issue, load
from repro.ledger.read import History, read
from repro.ledger.rows import FindingRow
from repro.ledger.run import LedgerRun, asked_for, new_run, same_run
from repro.ledger.schema import BadLedger
from repro.ledger.states import State, measurements, states
from repro.traces.exit_codes import ExitCode
from repro.upstream.fixes import FIXES
from runners.targets.environments import lacks, release_under
from runners.targets.usable import fetch
from tests.nightly.gate import Color, Judgement, changes, measured, summary
from tests.nightly.junit import Row, unfinished
from tests.nightly.plan import MINUTES_MIN, Plan, costs, is_campaign, plan

NAME = "eagleeye-nightly"
FOLDER = "nightly"
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
# The findings seen last that are run again on every target. Older ones stay in the ledger, and in its states.
FINDINGS_MAX = 40
# Seconds that workers of xdist have to end after an interrupt, so that the summary has what they came to.
STOP_S = 6.0
# Seconds after which an interrupted run ends without its summary, should it still be at work.
SUMMARY_S = 9.0
# Said by the JUnit XML until the run has ended.
RUNNING = "killed, or still running: not every job has ended"


def asked(config: pytest.Config) -> bool:
    """True if the command line is about nightly tests."""
    return bool(re.search(r"(?<!not )\bnightly\b", config.getoption("markexpr")))


class Nightly:
    """One process's part in a nightly run. Mutable. The first process begins the run and ends it; the workers of
    xdist are told of it and add to it."""

    def __init__(self, config: pytest.Config, targets: Sequence[Target]) -> None:
        self.config = config
        self.targets = targets
        self.told: dict[str, Any] = json.loads(getattr(config, "workerinput", {}).get(NAME, "{}"))
        self.is_first = not hasattr(config, "workerinput")
        self._stack = ExitStack()
        self._workers: list[int] = []  # processes of xdist
        self.interrupted = False
        self.red: list[str] = []
        self.known: list[str] = []
        self.skipped: list[str] = []
        self.rows: list[Row] = []
        self.plan: Plan | None = None
        self.until: float | None = self.told.get("until") or (time.time() + 60 * self.limit if self.limit else None)
        try:
            self.known_issues = Path(config.getoption("--known-issues")).absolute()
            self.issues: tuple[Issue, ...] = load(self.known_issues)
            if self.is_first and config.getoption("--install") and not config.getoption("collectonly"):
                self._fetch()
            self.path = self._path()
            # Where tests are only listed, nothing is run.
            self.listing = bool(config.getoption("collectonly"))
            path = None if self.listing else self.path
            self.book: LedgerRun = self._stack.enter_context(
                new_run(path, NIGHTLY) if self.is_first else same_run(path, self.told["run"])
            )
            if not self.listing:
                self._stack.enter_context(interruptible())
                limit_ending(SUMMARY_S)
        except (BadLedger, BadIssues) as error:
            pytest.exit(f"error: {error}", returncode=ExitCode.ERROR)

    def _fetch(self) -> None:
        """The releases of named targets and of the proofs of fixes: on a GPU those have environments of their own, made
        by hand, as each is 11 GB."""
        releases = [target.sglang for target in self.targets if target.engine == "emulated" and not target.is_checkout]
        if any(target.engine == "emulated" for target in self.targets):
            releases += [release for fix in FIXES for release in (fix.buggy, fix.fixed)]
        self.skipped += fetch(releases, say=lambda text: None)

    def _path(self) -> Path:
        path = asked_for(self.config.getoption("--ledger"))
        lacking = [f"{target}: {lack}" for target in self.targets if (lack := lacks(target))]
        if self.is_first and lacking:
            raise pytest.UsageError("; ".join(lacking))
        if not path:
            raise pytest.UsageError("a nightly run is kept in a ledger: --ledger DB, or EAGLEEYE_LEDGER")
        return path.absolute()

    @property
    def run(self) -> str:
        return self.book.run

    @property
    def profile_name(self) -> str:
        return str(self.config.getoption("--hypothesis-profile", None) or NIGHTLY)

    @property
    def profile(self) -> Profile:
        return PROFILES[self.profile_name]

    @property
    def limit(self) -> float | None:
        """Minutes of the whole run."""
        limit: float | None = self.config.getoption("--max-minutes")
        return limit

    @property
    def minutes(self) -> float:
        """Minutes of each campaign: as the plan has it, and no more than are left."""
        if self.plan:
            left = (self.until - time.time()) / 60 if self.until else self.plan.minutes
            return max(MINUTES_MIN, min(self.plan.minutes, left))
        chosen: float | None = self.config.getoption("--minutes")
        return self.profile.minutes if chosen is None else chosen

    @property
    def seed(self) -> int:
        """The number from which this night's cases are drawn: another one every day, and told in the ledger."""
        return int(self.told.get("seed") or datetime.now(UTC).strftime("%Y%m%d"))

    @property
    def out(self) -> Path:
        return Path("out") / f"nightly-{self.run[:12]}"

    @cached_property
    def seeds(self) -> list[Path]:
        return sorted(Path(self.config.getoption("--seeds")).glob("*.json"))

    @cached_property
    def before(self) -> History:
        """The ledger as it was when this process first asked, or later; this run's rows are for nobody to see yet."""
        return History(path=self.path) if self.listing and not self.path.exists() else read(self.path)

    @cached_property
    def findings(self) -> dict[str, FindingRow]:
        """The findings to run again, by fingerprint: those that the first process saw when it began."""
        latest = {row.fingerprint: row for row in self.before.findings if row.run != self.run}
        return {name: latest[name] for name in self.told.get("findings", list(latest)[-FINDINGS_MAX:])}

    @cached_property
    def _states(self) -> dict[tuple[str, str], State]:
        return dict(states(row for row in measurements(self.before) if row.run != self.run))

    def state(self, subject: str, target: Target) -> State | None:
        """The state before this run."""
        return self._states.get((subject, str(target)))

    def conclude(self, judgement: Judgement, item: pytest.Item) -> None:
        """End a test as its judgement says, which is in its report and in the JUnit XML, too."""
        text = log(judgement.text)
        match judgement.color:
            case Color.RED:
                item.user_properties += [(Color.RED.value, line) for line in text.splitlines()]
                pytest.fail(text, pytrace=False)
            case Color.KNOWN:
                pytest.xfail(text)  # text names the known issue
            case Color.SKIPPED:
                pytest.skip(text)  # text says why nothing was judged

    def release(self, target: Target) -> str:
        return release_under(target)

    @property
    def today(self) -> date:
        return datetime.now(UTC).date()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        start = {"run": self.run, "seed": self.seed, "findings": list(self.findings), "until": self.until}
        node.workerinput[NAME] = json.dumps(start)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: Any) -> None:
        self._workers.append(node.gateway._io.popen.pid)

    def pytest_keyboard_interrupt(self) -> None:
        """Also what ends a session early by pytest.exit. xdist would have its workers go on for five seconds more."""
        self.interrupted = True
        self.red.append("interrupted: not every job has ended")
        if self.is_first:
            for worker in self._workers:
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGTERM)
            until = time.monotonic() + STOP_S
            while any(map(_is_running, self._workers)) and time.monotonic() < until:
                time.sleep(0.05)

    def pytest_unconfigure(self) -> None:
        if self.interrupted and not self.is_first:
            os._exit(ExitCode.ERROR)  # else it waits for xdist, which waits for it
        if self.interrupted:
            self._write_junit("interrupted: not every job has ended")  # pytest's own says nothing of it

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Drop the skipped test that pytest makes where there is nothing to run a test on (no findings yet, say)."""
        items[:] = [item for item in items if "NOTSET" not in item.name]
        if self.limit:
            items.sort(key=lambda item: not is_campaign(item.nodeid))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not (self.is_first and self._side_by_side):  # else its workers collect
            self._make_plan([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        if not self.plan:
            self._make_plan(ids)

    @property
    def _side_by_side(self) -> int:
        """The workers of xdist; 0 without it."""
        if not self.is_first:
            return int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        return len(getattr(self.config.option, "tx", None) or ())

    def _make_plan(self, ids: Sequence[str]) -> None:
        self.plan = plan(ids, max(1, self._side_by_side), costs(self.before), self.minutes, self.limit)
        if self.is_first:
            self._write_junit(RUNNING)
            terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
            for line in self.plan.lines():
                terminal.write_line(log(line))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self.until and time.time() > self.until and "test_known_issue" not in item.nodeid:
            pytest.skip(f"{item.name}: not begun, as {self.limit:g} minutes are over")

    def _write_junit(self, why: str) -> None:
        if (path := self.config.getoption("xmlpath", None)) and not self.listing:
            write_text(Path(path), unfinished(self.rows, why))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self.is_first:
            return
        if report.when == "call" or not report.passed:
            self.rows.append(_row(report))
            self._write_junit(RUNNING)
        if report.failed:
            texts = [str(value) for name, value in report.user_properties if name == Color.RED]
            self.red += texts or [_crash(report)]
        elif report.skipped and hasattr(report, "wasxfail"):
            self.known.append(str(report.wasxfail).removeprefix("reason: "))
        elif report.skipped:
            self.skipped.append(_reason(report))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if not self.is_first or self.listing:
            self._stack.close()
            return
        try:
            history = read(self.path)
            if not measured(history, self.run):
                self.red.append("nothing was measured")
            self.changes = changes(history, self.run)
            text = "\n".join(summary(history, self.run, self.red, self.skipped)) + "\n"
            self._stack.close()
        except BadLedger as error:
            self.red.append(str(error))
            self.changes, text = [], f"## eagleeye nightly: red\n\n{markdown(str(error))}\n"
        if self.red and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if os.environ.get(STEP_SUMMARY):
            with Path(os.environ[STEP_SUMMARY]).open("a", encoding="utf-8") as file:
                file.write(text)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.is_first and not self.listing:
            terminalreporter.section("nightly")
            for line in self.lines():
                terminalreporter.write_line(log(line))

    def lines(self) -> Iterator[str]:
        for title, texts in (
            ("skipped", self.skipped),
            ("known", self.known),
            ("since the last run", getattr(self, "changes", [])),
            ("red because", self.red),
        ):
            if texts:
                yield f"{title}:"
                yield from (f"  {text}" for text in dict.fromkeys(texts))
        again = f"{Path(sys.executable).name} -m repro ledger show {self.path}"
        yield f"run {self.run} is {'RED' if self.red else 'GREEN'}; {again}"


def _row(report: pytest.TestReport) -> Row:
    failed = ("failure" if report.when == "call" else "error") if report.failed else ""
    tag = failed or ("skipped" if report.skipped else "")
    text = str(report.wasxfail) if hasattr(report, "wasxfail") else _reason(report) if tag else ""
    return Row(name=report.nodeid, seconds=report.duration, tag=tag, text=text)


def _crash(report: pytest.TestReport) -> str:
    """A test that ended by an accident of its own, or its worker's."""
    lines = [line for line in report.longreprtext.splitlines() if line.strip()]
    errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E  ")]
    return f"{report.nodeid}: {(errors or lines[-1:] or ['failed'])[0]}"


def _is_running(child: int) -> bool:
    """True if this child has not ended; it stays for whoever started it to wait for."""
    with suppress(ChildProcessError):
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    return False


def _reason(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return str(reason).removeprefix("Skipped: ")
