"""python -m repro run: stored cases on targets, and which oracle fails, where, in k of n runs."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fuzz.cluster.fan import fan_out
from fuzz.cluster.piece import Piece
from oracles.catalogue import judge_all, overall
from reports.outcome import show_outcome
from repro.cases.case import Target
from repro.cases.codec import AboutValue, Seed, dumps
from repro.cases.places import printed_json
from repro.cases.runner_facts import RUNNER_FACTS
from repro.commands import cli
from repro.commands.cli import Commands, complain, say, seed_file
from repro.commands.options import ran
from repro.commands.show import stored
from repro.ledger import known
from repro.ledger.explain import to_json as explanation_to_json
from repro.ledger.run import LedgerRun, asked_for, new_run
from repro.shrinking.replay import AS_EXPECTED, Outcome, beside_expected, from_json, line, outcome_of, to_json
from repro.traces.exit_codes import ExitCode, severest
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.processes.diagnose import extra_notes
from runners.processes.experiments import experiments
from runners.processes.pool import Pool
from runners.processes.sanitizer import Reports, observed_pool
from runners.targets.environments import lacks

# Opening a worker takes longer than running a case; what is lost with a node is done again.
SEEDS_A_PIECE = 4
SANITIZERS = ("memcheck", "initcheck", "racecheck", "synccheck")


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("run", parents=[ran()], help="run cases and say which oracle fails, where, and k of n")
    parser.add_argument("seeds", nargs="+", type=seed_file, metavar="SEED.json")
    cli.add_targets(parser)
    cli.add_tries(parser, 1, "runs of each case on each target")
    parser.add_argument("--json", action="store_true", help="print all verdicts as JSON")
    cli.add_known_issues(
        parser,
        known.KNOWN_ISSUES,
        "say whether a failing case passes where the known issues (default: repro/known_issues.toml) are mended, "
        "and what still fails there",
    )
    parser.add_argument("--quiet", action="store_true", help="no table of verdicts")
    parser.add_argument(
        "--sanitizer",
        choices=SANITIZERS,
        metavar="TOOL",
        help=f"under NVIDIA's compute-sanitizer: {', '.join(SANITIZERS)}; names the kernel of a bad access",
    )
    cli.add_ledger(parser)
    cli.add_cluster(parser)


def go(options: argparse.Namespace) -> ExitCode:
    with new_run(asked_for(options.ledger), "seeds") as ledger:
        return replay(options, ledger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A stored case on one target. notes: besides its verdicts. known: whether known issues explain it, as JSON; None
    where nobody asked, or nothing failed."""

    outcome: Outcome
    about: Mapping[str, AboutValue]
    notes: Sequence[str]
    known: Mapping[str, object] | None

    def to_json(self) -> dict[str, object]:
        extra = {"notes": list(self.notes), "expectation": beside_expected(self.outcome, self.about)}
        return to_json(self.outcome) | extra | ({"known": self.known} if self.known else {})


Stored = Sequence[tuple[Path, Seed]]


def replay(options: argparse.Namespace, ledger: LedgerRun) -> ExitCode:
    seeds, codes = stored(options.seeds)
    done: list[Replayed] = []
    targets = []
    for target in dict.fromkeys(options.target):
        if lack := lacks(target):
            complain(f"{target}: {lack}")
            codes.append(ExitCode.ERROR)
        elif seeds:
            targets.append(target)
    try:
        spread = bool(options.cluster and targets)
        for replayed in _spread(options, targets, seeds, codes) if spread else _here(options, targets, seeds):
            done.append(replayed)
            ledger.outcome(replayed.outcome, replayed.about)
            _show(replayed, options)
            if replayed.notes and options.sanitizer and replayed.outcome.status is Status.PASS:
                codes.append(ExitCode.FAIL)
    except KeyboardInterrupt:
        complain("interrupted")
        codes.append(ExitCode.ERROR)
    code = severest([*codes, *(replayed.outcome.exit_code for replayed in done)])
    if options.json:
        print(printed_json({"exit_code": code, "replays": [replayed.to_json() for replayed in done]}))
    elif len(done) > 1:
        say(_total(done))
    return code


def _here(options: argparse.Namespace, targets: Sequence[Target], seeds: Stored) -> Iterator[Replayed]:
    issues = known.load(options.known_issues) if options.known_issues else ()
    captures = any(RUNNER_FACTS[seed.case.setup.runner].graph for _, seed in seeds)
    for target in targets:
        asking = experiments(issues, judge_all, overall, timeout_s=options.timeout, log=options.log)
        with (
            opened(options, target, options.sanitizer or "", captures=captures) as (pool, reports),
            asking as explainer,
        ):
            for path, seed in seeds:
                if options.fresh:
                    pool.expect((seed.case.setup,) * options.tries)
                outcome = outcome_of(path, seed.case, target, pool.run, judge_all, overall, options.tries)
                notes = extra_notes(pool, outcome, judge_all, reports.fresh())
                explained = explainer.of_outcome(outcome) if issues else None
                yield Replayed(
                    outcome=outcome,
                    about=seed.about,
                    notes=notes,
                    known=explanation_to_json(explained) if explained else None,
                )


def _spread(
    options: argparse.Namespace, targets: Sequence[Target], seeds: Stored, codes: list[ExitCode]
) -> Iterator[Replayed]:
    """The same from the nodes of a cluster. codes: takes that of what could not be done."""
    if options.known_issues:
        known.load(options.known_issues)  # it can be read, and so it can there
    parts = [seeds[start : start + SEEDS_A_PIECE] for start in range(0, len(seeds), SEEDS_A_PIECE)]
    work = {_piece(options, target, part): (target, part) for target in targets for part in parts}
    with fan_out(options.cluster, options.slots, targets) as fan:
        for done in fan.work(work):
            target, part = work[done.piece]
            for (path, seed), form in zip(part, done.result["replays"], strict=True):
                yield Replayed(
                    outcome=from_json(form, path, seed.case, target, overall),
                    about=seed.about,
                    notes=form["notes"],
                    known=form.get("known"),
                )
        codes += [ExitCode.ERROR] * bool(fan.errors)


def _piece(options: argparse.Namespace, target: Target, part: Stored) -> Piece:
    """These seeds on this target. Files are named by number: of two folders they may have the same name."""
    files = {f"{number}.json": dumps(seed) for number, (_, seed) in enumerate(part)}
    words = ["repro", "run", *files, "--target", str(target), "--json"]
    words += ["--tries", str(options.tries), "--timeout", str(options.timeout)]
    words += [f"--{name}" for name in ("fresh", "probes") if getattr(options, name)]
    words += ["--sanitizer", options.sanitizer] if options.sanitizer else []
    if options.known_issues:
        files["known_issues.toml"] = options.known_issues.read_text()
        words += ["--known-issues", "known_issues.toml"]
    names = ", ".join(path.name for path, _ in part)
    return Piece(name=f"{names} on {target}", arguments=tuple(words), files=files)


def opened(
    options: argparse.Namespace, target: Target, tool: str = "", *, captures: bool = True
) -> AbstractContextManager[tuple[Pool, Reports]]:
    return observed_pool(
        target, tool, timeout_s=options.timeout, fresh=options.fresh, log=options.log, captures=captures
    )


def _total(done: Sequence[Replayed]) -> str:
    """One line of all of them: how each ended, and which did not end as their seeds expect."""
    beside = [(replayed.outcome, beside_expected(replayed.outcome, replayed.about)) for replayed in done]
    words = ", ".join(f"{count} {word}" for word, count in sorted(Counter(o.word for o, _ in beside).items()))
    others = [(o, text) for o, text in beside if text not in ("", AS_EXPECTED)]
    named = "".join(f"\n  {o.seed} on {o.target}: {text}" for o, text in others)
    expected = sum(text == AS_EXPECTED for _, text in beside)
    return f"{len(done)} in all: {words}; {expected} as expected, {len(others)} not{named}"


def _show(replayed: Replayed, options: argparse.Namespace) -> None:
    outcome, beside = replayed.outcome, beside_expected(replayed.outcome, replayed.about)
    for error in outcome.errors:
        complain(f"{outcome.seed} on {outcome.target}: could not be run: {error}")
    if options.json:
        return
    if outcome.word != Termination.ERROR.name:
        say(f"{line(outcome)}; {beside}" if beside else line(outcome))
        if outcome.status is not None and not options.quiet:
            show_outcome(Console(), outcome)
    if not options.quiet:
        for note in (*replayed.notes, *([replayed.known["line"]] if replayed.known else [])):
            say(f"  {note}")
