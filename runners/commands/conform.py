"""python -m runners conform: whether releases can be driven, runner by runner."""

from __future__ import annotations

import argparse
import os

from oracles.catalogue import judge_all, overall
from repro.cases.atomic_file import write_text
from repro.cases.case import Target
from repro.ledger.known import load
from repro.traces.exit_codes import ExitCode
from runners.commands.install import aside
from runners.conformance import conform, report
from runners.conformance.rows import Row
from runners.targets.install import install, newest


def go(options: argparse.Namespace) -> ExitCode:
    """FAIL where a runner could not be driven or judged that was not declared unsupported."""
    names = [newest(options.pip) if name == "latest" else name for name in options.releases]
    options.log.parent.mkdir(parents=True, exist_ok=True)
    if options.cache:
        os.environ["EAGLEEYE_CACHE"] = str(options.cache)  # the worker's side looks there
    command = f"python -m runners conform {' '.join(options.releases)}"
    done: list[report.Release] = []
    for name in dict.fromkeys(names):
        if "/" not in name:
            install(name, options.cache, pip=options.pip, say=aside)
        target = Target(name, "emulated")
        done.append(conform.release(target, judge_all, overall, log=options.log, tell=_show, issues=load()))
        print("\n".join(report.summary(done[-1])), flush=True)
        # As it grows: many releases take a while.
        if options.json:
            write_text(options.json, report.to_json(done))
        if options.markdown:
            write_text(options.markdown, report.to_markdown(done, f"{command} --markdown {options.markdown}"))
    return ExitCode.FAIL if any(release.red for release in done) else ExitCode.PASS


def _show(row: Row) -> None:
    print(report.line(row), flush=True)
