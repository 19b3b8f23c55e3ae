"""python -m fuzz check, with sglang's workers, the oracles and the cache of releases."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from fuzz.check.command import Tools, command_check
from fuzz.check.compare import Explain
from fuzz.check.guard import Ways
from fuzz.check.plan import pairs
from fuzz.check.results import Results
from fuzz.check.touched import PACKAGE
from oracles.catalogue import judge_all, overall, oversteps
from repro.cases.case import Case, Target
from repro.commands import cli
from repro.commands.cli import Commands
from repro.commands.settings import NAME, settings
from repro.ledger.explain import Explained
from repro.ledger.known import load
from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Verdict
from runners.processes.experiments import experiments
from runners.processes.pool import Pool
from runners.processes.warm import room_for
from runners.targets.environments import cache_directory, lacks, sglang_path
from runners.targets.identity import identity
from runners.targets.mended import counts_as

# More than the plan has of a kind.
SETUPS_PER_SESSION = 16


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("check", help="check a change of sglang: which failures does it bring?")
    parser.add_argument(
        "checked", type=checkout, metavar="PATH|RELEASE", help="a checkout, its python folder, or a release"
    )
    parser.add_argument(
        "--base", type=checkout, metavar="RELEASE|PATH", help="failures that this one has, too, are not the change's"
    )
    parser.add_argument(
        "--unknown",
        choices=("pass", "fail"),
        default="",
        help="end with 0 or 1 if not all could be judged (default: with 2)",
    )
    parser.add_argument(
        "--only-changed",
        nargs="+",
        metavar="FILES|REV",
        help="check only what runs these files of sglang, or those that differ from this git revision",
    )
    known = tuple(dict.fromkeys(runner for runner, _ in pairs()))
    parser.add_argument(
        "--runners",
        nargs="+",
        choices=known,
        metavar="RUNNER",
        default=[runner for runner in settings().runners if runner in known],
        help=f"check only these runners (default: those of {NAME}, else all)",
    )
    _add_reports(parser)
    cli.add_out(parser, "findings and logs", "check")
    cli.add_timeout(parser)


def _add_reports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="F",
        default=os.environ.get("GITHUB_STEP_SUMMARY"),
        help="write the table here (default: GITHUB_STEP_SUMMARY)",
    )
    parser.add_argument("--summary", type=Path, metavar="F", help="write the table here, short enough for a comment")
    parser.add_argument("--junit", type=Path, metavar="F", help="write JUnit's XML here: a test case for each setup")
    parser.add_argument("--sarif", type=Path, metavar="F", help="write SARIF 2.1.0 here: a result for each cause")
    parser.add_argument(
        "--annotate",
        action="store_true",
        default=os.environ.get("GITHUB_ACTIONS") == "true",
        help="print annotations for GitHub (default: where GITHUB_ACTIONS is true)",
    )


def checkout(text: str) -> Target:
    """A release on the emulated engine, or a path: an import path of sglang, or a repository of it."""
    path = Path(text).expanduser().absolute()
    if "/" not in text and not path.is_dir():
        return Target(text, "emulated")
    inner = path / "python"
    return Target(str(inner if (inner / "sglang" / "srt").is_dir() else path), "emulated")


def command(options: argparse.Namespace) -> ExitCode:
    tools = Tools(
        pool=partial(_pool, options.timeout),
        lacks=lacks,
        judge=judge_all,
        overall=overall,
        explaining=partial(_explaining, options.timeout),
        version=counts_as,
        kept=_kept,
        source=sglang_path,
        tracing=partial(_tracing, options.timeout),
    )
    return command_check(options, tools)


@contextmanager
def _pool(timeout_s: float, target: Target, log: Path, noting: bool) -> Iterator[Ways]:
    variables = {"EAGLEEYE_WRITES": "1"} if noting else {}
    with Pool(
        target,
        timeout_s=timeout_s,
        log=log,
        standbys=room_for(target.engine),
        setups_per_session=SETUPS_PER_SESSION,
        variables=variables,
    ) as pool:
        yield _ways(pool)


@contextmanager
def _tracing(timeout_s: float, target: Target, log: Path) -> Iterator[Ways]:
    with Pool(target, timeout_s=timeout_s, log=log, standbys=room_for(target.engine)) as pool:
        pool.change({"files": [PACKAGE]})
        yield _ways(pool)


def _ways(pool: Pool) -> Ways:
    def renew(failures: Sequence[Verdict]) -> None:
        if any(map(oversteps, failures)):
            pool.renew()

    return Ways(
        run=pool.run,
        run_fresh=pool.run_fresh,
        expect=pool.expect,
        foresee=pool.foresee,
        send=pool.send,
        renew=renew,
    )


@contextmanager
def _explaining(timeout_s: float, log: Path) -> Iterator[Explain]:
    """Explains failures by experiments, whose results on mended releases are kept."""
    with experiments(
        load(), judge_all, overall, timeout_s=timeout_s, log=log, standbys=room_for("emulated")
    ) as explainer:
        run = explainer.run

        def kept(target: Target, case: Case, tries: int) -> tuple[Sequence[Sequence[Verdict]], str]:
            why = ""

            def judged() -> Sequence[Verdict] | None:
                nonlocal why
                runs, why = run(target, case, 1)
                return runs[0] if runs else None

            verdicts = Results(folder=_kept(target)).of(case, judged)
            return ([] if verdicts is None else [verdicts]), why

        def explain(case: Case, target: Target, failures: Sequence[Verdict], coming: Sequence[Case]) -> Explained:
            if there := explainer.mended(target):
                results = Results(folder=_kept(there.target))
                explainer.foresee(there.target, [later for later in coming if not results.has(later)])
            return explainer.explain(case, target, failures)

        explainer.run = kept
        yield explain


@cache
def _kept(target: Target) -> Path:
    """The folder of kept verdicts, by all that they depend on: of a tree no other state than this one is meant."""
    return cache_directory() / "verdicts" / identity(target)
