"""The command python -m fuzz check: its target and base, and where it writes the results."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fuzz.check.guard import Check, Checked, Ways, stored_seeds
from fuzz.check.summary import exit_code, markdown
from repro.cases.case import Case, Target
from repro.cases.release_list import ADAPTED
from repro.cases.releases import release_order
from repro.commands.cli import BadInput
from repro.ledger.known import load
from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Trace
from repro.upstream.fixes import SEEDS


def published(release: str, engine: str, lacks: Callable[[Target], str]) -> Target | None:
    """The newest release that is here and no newer than this version; of all, if a tree does not know its version."""
    try:
        order = release_order(ADAPTED[-1] if release.startswith("0.0.0") else release.partition("+")[0])
    except ValueError:
        order = release_order(ADAPTED[-1])
    older = [Target(name, engine) for name in ADAPTED if release_order(name) <= order]
    return next((target for target in reversed(older) if not lacks(target)), None)


def command_check(
    options: argparse.Namespace,
    pool: Callable[..., Any],
    lacks: Callable[[Target], str],
    judge: Callable[[Case, Trace], Sequence[Verdict]],
    overall: Callable[[Sequence[Verdict]], Status],
) -> ExitCode:
    """The exit code. pool: opens a worker on a target, for a with statement. lacks: why a target cannot be used."""
    for target in filter(None, (options.checked, options.base)):
        if lack := lacks(target):
            raise BadInput(f"{target}: {lack}")
    out: Path = options.out or Path("out") / f"check-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    out.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def opened(target: Target) -> Iterator[Ways]:
        with pool(target, timeout_s=options.timeout, log=out / "worker.log") as worker:
            yield Ways(run=worker.run, run_fresh=worker.run_fresh, expect=worker.expect)

    check = Check(
        checked=Checked(target=options.checked, base=options.base),
        opened=opened,
        judge=judge,
        overall=overall,
        issues=load(),
        published=lambda release: published(release, options.checked.engine, lacks),
        out=out,
        seconds=60 * options.minutes,
        seed=options.seed,
    )
    done = check.run(stored_seeds(SEEDS))
    text = markdown(done)
    print(text, end="", flush=True)
    if options.markdown:
        with options.markdown.open("a") as file:  # other steps write on that page as well
            file.write(text)
    return exit_code(done)
