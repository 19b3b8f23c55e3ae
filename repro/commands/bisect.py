"""python -m repro bisect: over releases, or over the commits of a checkout."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from repro.cases.atomic_file import write_text
from repro.cases.case import Case, Target
from repro.cases.codec import Seed, read
from repro.cases.releases import release_order
from repro.commands import cli
from repro.commands.cli import BadInput, Commands, count, positive, say, seed_file
from repro.commands.options import watched
from repro.shrinking.confirm import Run
from repro.traces.exit_codes import ExitCode
from repro.traces.trace import Trace
from repro.upstream.bisect import Bisection, Candidate, Range, summary, to_json
from repro.upstream.history import History, history, names
from repro.upstream.rig import Refused, Rig, Sighting, Wanted, runs_of, took_place
from repro.upstream.script_runs import Command


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "bisect", parents=[watched()], help="find the release or commit that brought a failure, or removed it"
    )
    parser.add_argument("seed", type=seed_file, nargs="?", metavar="SEED.json")
    parser.add_argument(
        "--cmd",
        metavar="COMMAND",
        help="instead of a seed: 0 is good, 125 cannot be judged, any other exit code is bad",
    )
    parser.add_argument("--from", dest="since", metavar="R", help="the oldest release (default: that is installed)")
    parser.add_argument("--to", metavar="R", help="the newest release (default: that is installed)")
    parser.add_argument("--repo", type=Path, metavar="PATH", help="over the commits of this checkout of sglang")
    parser.add_argument("--good", metavar="REV", help="with --repo: a commit that passes")
    parser.add_argument("--bad", metavar="REV", help="with --repo: a later commit that fails")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="with --repo: clones stay here for the next search")
    cli.add_engine(parser)
    cli.add_tries(parser, 5, "runs of the first look")
    parser.add_argument(
        "--runs", type=count, default=1000, metavar="N", help="the most runs to spend (default: %(default)s)"
    )
    parser.add_argument(
        "--confidence",
        type=positive,
        default=0.99,
        metavar="P",
        help="posterior that is enough (default: %(default)g)",
    )
    cli.add_json(parser, "the runs of each candidate")
    parser.set_defaults(fresh=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The failure that is followed. words: for a person; form: for JSON. origin: the release on which it was seen;
    empty if that is not known. release, commit: up to so many runs there, which the first failure may end."""

    words: str
    form: Mapping[str, str]
    origin: str
    release: Callable[[Target, int, bool], Sequence[Sighting]]
    commit: Callable[[History, str, int, bool], Sequence[Sighting]]


def go(options: argparse.Namespace, rig: Rig) -> ExitCode:
    """PASS if the range was found, UNKNOWN if there is nothing to be found; BadInput, Refused, BadSeed."""
    if bool(options.seed) == bool(options.cmd):
        raise BadInput("a seed or --cmd COMMAND, one of the two")
    if bool(options.repo) != bool(options.good and options.bad):
        raise BadInput("over commits, --repo, --good and --bad go together")
    if options.repo and (options.since or options.to):
        raise BadInput("--from and --to are releases; with --repo the range is --good and --bad")
    if options.keep and not options.repo:
        raise BadInput("--keep is for the clones of --repo")
    subject = _of_command(options, rig) if options.cmd else _of_seed(options, rig)
    located, candidates = (_commits if options.repo else _releases)(options, subject, rig)
    for text in summary(located, subject.words, "commit" if options.repo else "release"):
        say(text)
    if options.json:
        write_text(options.json, json.dumps(to_json(located, subject.form, candidates), indent=1) + "\n")
    return ExitCode.PASS if located.bad else ExitCode.UNKNOWN


def _of_seed(options: argparse.Namespace, rig: Rig) -> Subject:
    seed = read(options.seed)
    failure = wanted_of(seed)

    def on_release(target: Target, most: int, until_bad: bool) -> Sequence[Sighting]:
        with rig.opened(target) as run:
            return runs_of(rig, run, seed.case, failure, most, until_bad)

    def on_commit(past: History, commit: str, most: int, until_bad: bool) -> Sequence[Sighting]:
        with ExitStack() as stack:
            run = partial(_run_as_any, stack, past, commit, options.engine, rig, {})
            return runs_of(rig, run, seed.case, failure, most, until_bad)

    form = {"oracle": failure.oracle, "where": failure.where}
    return Subject(words=str(failure), form=form, origin=found_on(seed), release=on_release, commit=on_commit)


def _of_command(options: argparse.Namespace, rig: Rig) -> Subject:
    command = Command.of(options.cmd)

    def on_release(target: Target, most: int, until_bad: bool) -> Sequence[Sighting]:
        return list(command.sightings(rig, target, most, until_bad))

    def on_commit(past: History, commit: str, most: int, until_bad: bool) -> Sequence[Sighting]:
        target = Target(str(past.go_to(commit, past.releases(commit)[0])), options.engine)
        return on_release(target, most, until_bad)

    return Subject(words=str(command), form={"cmd": str(command)}, origin="", release=on_release, commit=on_commit)


def wanted_of(seed: Seed) -> Wanted:
    """The failure that the seed was stored for. BadInput if it does not say."""
    oracle, where = (seed.about.get(name, "") for name in ("oracle", "where"))
    if not (isinstance(oracle, str) and oracle):
        raise BadInput("the seed lacks about.oracle; run it and add about.oracle and about.where")
    return Wanted(oracle=oracle, where=where if isinstance(where, str) else "")


def found_on(seed: Seed) -> str:
    """The release on which the seed was found; empty if it does not say."""
    try:
        return Target.parse(str(seed.about.get("found", ""))).sglang
    except ValueError:
        return ""


def _releases(options: argparse.Namespace, subject: Subject, rig: Rig) -> tuple[Range, Sequence[Candidate]]:
    chosen = _between(options, rig.releases(options.engine))
    lacking: Mapping[str, str] = {name: rig.lacks(Target(name, options.engine)) for name in chosen}
    candidates = [Candidate(name=name, skipped=lacking[name]) for name in chosen]
    usable = [name for name in chosen if not lacking[name]]
    if not usable:
        raise BadInput(f"no release of the range can be used: {next(iter(lacking.values()))}")
    search = Bisection(
        candidates=candidates,
        see=lambda name, most, until_bad: subject.release(Target(name, options.engine), most, until_bad),
        tell=rig.tell,
        confidence=options.confidence,
        runs=options.runs,
        tries=options.tries,
    )
    return search.go(subject.origin if subject.origin in usable else usable[-1]), candidates


def _between(options: argparse.Namespace, known: Sequence[str]) -> list[str]:
    """The releases of the range, oldest first."""
    ends = []
    for flag, end in (("--from", options.since), ("--to", options.to)):
        try:
            ends.append(release_order(end) if end else None)
        except ValueError as error:
            raise BadInput(f"{flag}: {error}") from error
    low, high = ends
    if low and high and low > high:
        raise BadInput(f"the range is the wrong way round: --from {options.since} is newer than --to {options.to}")
    chosen = [
        release
        for release in known
        if (not low or low <= release_order(release)) and (not high or release_order(release) <= high)
    ]
    if not chosen:
        raise BadInput(f"no release of the range is installed; installed: {', '.join(known) or 'none'}")
    return chosen


def _commits(options: argparse.Namespace, subject: Subject, rig: Rig) -> tuple[Range, Sequence[Candidate]]:
    with history(options.repo, options.good, options.bad, options.keep) as past:
        commits = dict(zip(names(past.commits), past.commits, strict=True))
        search = Bisection(
            candidates=[Candidate(name=name) for name in commits],
            see=lambda name, most, until_bad: subject.commit(past, commits[name], most, until_bad),
            tell=rig.tell,
            to_the_end=True,
            confidence=options.confidence,
            runs=options.runs,
            tries=options.tries,
        )
        say(f"{len(commits)} commits change {past.package}")
        search.ends()
        if not search.candidates[-1].failed:
            return Range(), search.candidates
        located = search.go(search.candidates[-1].name)
        say(f"first bad commit: {past.title(commits[located.bad])}")
        return located, search.candidates


def _run_as_any(
    stack: ExitStack, past: History, commit: str, engine: str, rig: Rig, runs: dict[str, Run], case: Case
) -> Trace:
    """Run the case on this commit, driven as the release before it or, where that cannot run it, the one behind it.
    runs: for each commit a run that worked, reused; the stack owns its worker."""
    for release in past.releases(commit) if not runs else ():
        target = Target(str(past.go_to(commit, release)), engine)
        if lack := rig.lacks(target):
            raise Refused(f"{commit}: {lack}")
        stack.close()
        run = stack.enter_context(rig.opened(target))
        trace = run(case)
        if took_place(trace):
            runs["run"] = run
            break
    else:
        return runs["run"](case) if runs else trace
    return trace
