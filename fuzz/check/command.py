"""The command python -m fuzz check: what a target is held against, where results are kept and written."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fuzz.check.annotations import github_errors
from fuzz.check.compare import Explain, with_base, with_known_issues
from fuzz.check.guard import Check, Checked, Compare, Ways
from fuzz.check.junit import junit
from fuzz.check.location import names_of
from fuzz.check.plan import Plan, pairs, plan
from fuzz.check.results import Results
from fuzz.check.sarif import sarif
from fuzz.check.summary import comment, exit_code, lines, markdown
from fuzz.check.touched import Touched, changes, ran, touched
from fuzz.check.written import Written, wrote
from repro.cases import codec
from repro.cases.atomic_file import append_text, write_text
from repro.cases.case import Case, Target
from repro.cases.codec import Seed
from repro.cases.own_place import own_folder
from repro.cases.release_list import ADAPTED
from repro.cases.releases import release_order
from repro.commands.cli import BadInput, say
from repro.suspects.changed_lines import changed_lines
from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Finding, Status, Verdict
from repro.traces.trace import Trace
from repro.upstream.fixes import SEEDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Functions that are passed in. pool: opens a worker on a target, with its log; True: it notes who writes input
    buffers. lacks: why a target cannot be used. explaining: opens what puts failing cases of a release down to known
    issues. version: the release that a tree counts as. kept: the folder in which results on a target may be kept.
    source: a target's import path. tracing: as pool, of sessions whose traces say which files they ran."""

    pool: Callable[[Target, Path, bool], AbstractContextManager[Ways]]
    lacks: Callable[[Target], str]
    judge: Callable[[Case, Trace], Sequence[Verdict]]
    overall: Callable[[Sequence[Verdict]], Status]
    explaining: Callable[[Path], AbstractContextManager[Explain]]
    version: Callable[[Target], str]
    kept: Callable[[Target], Path]
    source: Callable[[Target], Path]
    tracing: Callable[[Target, Path], AbstractContextManager[Ways]]


def command_check(options: argparse.Namespace, tools: Tools) -> ExitCode:
    for named in filter(None, (options.checked, options.base)):
        if lack := tools.lacks(named):
            raise BadInput(f"{named}: {lack}")
    target: Target = options.checked
    base: Target | None = options.base or _base_of(target, tools)
    out: Path = options.out or own_folder(Path("out"), "check")
    out.mkdir(parents=True, exist_ok=True)
    log = out / "worker.log"
    _need_places(options)
    every = plan(stored_seeds(SEEDS))
    if options.runners:
        every = every.of(pair for pair in pairs() if pair[0] in options.runners)
    of_change = (
        _touched(options.only_changed, target, base or target, every, tools, log) if options.only_changed else None
    )
    done = Check(
        checked=Checked(
            target=target,
            plan=every.of(of_change.pairs) if of_change else every,
            against=str(base or "the known issues of this release"),
            changed=of_change.reasons if of_change else (),
            names=names_of(target, base, tools.source),
        ),
        opened=lambda: tools.pool(target, log, False),
        comparing=partial(_comparing, target, base, tools, log),
        judge=tools.judge,
        overall=tools.overall,
        wrote=partial(_lines_of, target, base, tools, log),
        out=out,
        tell=say,
    ).run()
    _report(done, options)
    return exit_code(done, options.unknown)


def _need_places(options: argparse.Namespace) -> None:
    """BadInput, before anything is run, if a result could not be written where it is wanted."""
    if options.markdown:
        append_text(options.markdown, "")
    for path in filter(None, (options.junit, options.sarif, options.summary)):
        if not path.absolute().parent.is_dir():
            raise BadInput(f"{path}: there is no such folder")


@contextmanager
def _comparing(target: Target, base: Target | None, tools: Tools, log: Path) -> Iterator[Compare]:
    if base is None:
        with tools.explaining(log) as explain:
            yield with_known_issues(explain, target)
        return
    with tools.pool(base, log, False) as ways:
        yield with_base(base, ways, tools.judge, Results(folder=tools.kept(base)))


def _lines_of(
    target: Target, base: Target | None, tools: Tools, log: Path, findings: Sequence[Finding]
) -> list[Written]:
    """The lines that write what is wrong in each finding, on the target and on its base."""
    changed = changed_lines(tools.source(base), tools.source(target)) if base else []
    with tools.pool(target, log, True) as here, tools.pool(base, log, True) if base else nullcontext() as there:
        run_there = there.run_fresh if there else None
        return [wrote(finding, tools.judge, here.run_fresh, base, run_there, changed) for finding in findings]


def _report(done: Checked, options: argparse.Namespace) -> None:
    elsewhere = done.names.elsewhere
    for line in lines(done, elsewhere=options.annotate):
        say(elsewhere(line) if options.annotate else line)
    if options.annotate:
        for line in github_errors(done):
            print(elsewhere(line), flush=True)  # a command for the runner, of which only the texts in it are others'
    if options.markdown:
        append_text(options.markdown, elsewhere(markdown(done)))  # other steps write on that page as well
    if options.summary:
        write_text(options.summary, elsewhere(comment(done)))
    if options.junit:
        write_text(options.junit, elsewhere(junit(done, options.unknown)))
    if options.sarif:
        write_text(options.sarif, elsewhere(sarif(done, options.unknown)))


def _touched(named: Sequence[str], target: Target, base: Target, plan: Plan, tools: Tools, log: Path) -> Touched:
    """The runners and backends that a change touches."""
    changed = changes(named, tools.source(target), tools.source(base))
    with tools.tracing(base, log) as ways:
        files = ran(tools.kept(base), plan.items, ways, say)
    of_change = touched(changed, files)
    for reason in of_change.reasons:
        say(reason)
    return of_change


def _base_of(target: Target, tools: Tools) -> Target | None:
    """The base of a tree for which none is given: the newest release that is here and no newer than the tree's
    version; of all, if it does not know its version. None for a release. BadInput if none is here."""
    if not target.is_checkout:
        return None
    base = published(tools.version(target), target.engine, tools.lacks)
    if base is None:
        raise BadInput(f"no release is installed that {target} can be held against; --base names one, or a tree")
    say(f"{target} is held against {base}; --base names another")
    return base


def published(version: str, engine: str, lacks: Callable[[Target], str]) -> Target | None:
    """The newest release that is here and no newer than this version; of all, if it is no version."""
    order = release_order(ADAPTED[-1])
    with contextlib.suppress(ValueError):
        order = release_order(version.partition("+")[0])
    older = [Target(name, engine) for name in ADAPTED if release_order(name) <= order]
    return next((target for target in reversed(older) if not lacks(target)), None)


def stored_seeds(folder: Path) -> list[tuple[str, Seed]]:
    """All seeds, by the name of their file."""
    return [(path.name, codec.read(path)) for path in sorted(folder.glob("*.json"))]
