"""python -m repro fidelity: the same cases on two targets, side by side or over two hosts, and how far they agree."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

from rich.console import Console

from fuzz.draw.rounds import rounds
from oracles.catalogue import OF_SOME_ENGINES, judge_all, overall
from oracles.tolerance import across_engines
from reports.fidelity import show_fidelity
from repro.cases.atomic_file import write_text
from repro.cases.case import BACKENDS, RUNNERS, Case
from repro.cases.codec import read
from repro.cases.own_place import own_folder
from repro.cases.runner_facts import RUNNER_FACTS
from repro.commands import cli
from repro.commands.cli import BadInput, Commands, complain, count, say, seed_file
from repro.commands.options import watched
from repro.fidelity.compare import Agreement, conclusion, summary, to_json
from repro.fidelity.observation import Observation, observe
from repro.fidelity.recording import BadRecording, Recording, load, save
from repro.shrinking.store import keep_disagreement
from repro.traces.exit_codes import ExitCode, of_status, severest
from repro.traces.finding import Status
from runners.processes.pool import Pool
from runners.targets.environments import lacks, whole_record
from runners.targets.hypothesis_pin import warn_of_hypothesis_version

ALL = "all"
_PROGRESS_EVERY = 10.0  # seconds

Observer = Callable[[Case], Observation]


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("fidelity", parents=[watched()], help="compare two targets on the same cases")
    parser.add_argument("seeds", nargs="*", type=seed_file, metavar="SEED.json")
    parser.add_argument("--drawn", type=count, metavar="N", help="compare on N drawn cases instead of stored ones")
    cli.add_seed_number(parser, 1, "with --drawn: ")
    parser.add_argument("--runner", choices=(*RUNNERS, ALL), help="with --drawn; default: draft, toy on toys")
    parser.add_argument(
        "--backend", choices=(*BACKENDS, ALL), help="with --drawn; default: the runner's first, all for all runners"
    )
    parser.add_argument(
        "--cases-per-setup", type=count, default=8, metavar="N", help="with --drawn (default: %(default)s)"
    )
    parser.add_argument(
        "--target",
        "--targets",
        dest="targets",
        action="extend",
        nargs="+",
        type=cli.target,
        required=True,
        metavar="T",
        help="two targets; one with --record or --against",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="OUT.npz",
        help="store what the target shows, for --against; with several runners or backends: a folder of files",
    )
    parser.add_argument(
        "--against",
        type=Path,
        nargs="+",
        metavar="OUT.npz",
        help="run the recorded cases and compare with the recordings: files, or a folder of files",
    )
    cli.add_json(parser, "the agreement")
    cli.add_out(parser, "cases that disagree", "fidelity")


def need_a_comparison(options: argparse.Namespace) -> None:
    """BadInput unless it is clear which cases are run where and what is compared with what."""
    hosts = [name for name in ("record", "against") if getattr(options, name)]
    if len(hosts) > 1:
        raise BadInput("--record and --against are for two different hosts")
    if len(options.targets) != (1 if hosts else 2):
        raise BadInput(f"{'one target is' if hosts else 'two targets are'} needed, not {len(options.targets)}")
    sources = [bool(options.seeds), bool(options.drawn), bool(options.against)]
    if sum(sources) != 1:
        raise BadInput("cases come from seed files, or from --drawn N, or from the recording that --against names")


def go(options: argparse.Namespace) -> ExitCode:
    need_a_comparison(options)
    for target in options.targets:
        if lack := lacks(target):
            raise BadInput(f"{target}: {lack}")
    if options.drawn:
        warn_of_hypothesis_version()
    return _record(options) if options.record else _compare(options)


@contextmanager
def _observers(options: argparse.Namespace) -> Iterator[list[Observer]]:
    """For each target what it shows of a case, in a pool of its own."""
    with ExitStack() as stack:
        pools = [
            Pool(target, timeout_s=options.timeout, log=options.log, variables=whole_record(target))
            for target in options.targets
        ]
        yield [partial(_observed, stack.enter_context(pool)) for pool in pools]


def _observed(pool: Pool, case: Case) -> Observation:
    trace = pool.run(case)
    verdicts = judge_all(case, trace)
    if any(verdict.status is Status.FAIL for verdict in verdicts):
        pool.renew()  # what was written outside its memory may lie in what the next case uses
    return observe(case, trace, verdicts, overall(verdicts))


def _record(options: argparse.Namespace) -> ExitCode:
    """Each pair of runner and backend into a file of its own, so that what is done is kept and no file is large."""
    (target,) = options.targets
    parts = list(_parts(options))
    paths: list[Path] = [options.record / f"{name}.npz" if len(parts) > 1 else options.record for name, _ in parts]
    # Once before anything is run, so that a bad path shows at once.
    if len(parts) > 1:
        options.record.mkdir(parents=True, exist_ok=True)
    for path in paths:
        save(path, Recording(target=target, observations=()))
    codes: list[ExitCode] = []
    with _observers(options) as observers:
        for path, (_, cases) in zip(paths, parts, strict=True):
            seen: list[Observation] = []
            try:
                seen.extend(shown for _, (shown,) in _run(cases, observers))
            except KeyboardInterrupt:
                complain("interrupted")
                codes.append(ExitCode.ERROR)
            save(path, Recording(target=target, observations=tuple(seen)))
            say(f"{path}: {len(seen)} cases on {target}, {path.stat().st_size / 1e6:.1f} MB")
            codes.append(ExitCode.PASS if any(observation.took_place for observation in seen) else ExitCode.UNKNOWN)
            if ExitCode.ERROR in codes:
                return ExitCode.ERROR
    # A runner that the release does not have leaves nothing to compare; the others do.
    return min(codes, default=ExitCode.UNKNOWN)


def _compare(options: argparse.Namespace) -> ExitCode:
    recordings = [load(path) for path in _files(options.against or ())]
    recorded = [observation for recording in recordings for observation in recording.observations]
    targets = [*{str(recording.target): recording.target for recording in recordings}.values(), *options.targets]
    if len(targets) != 2:
        raise BadInput(f"the recordings are of several targets: {', '.join(map(str, targets[:-1]))}")
    cases = [record.case for record in recorded] or [case for _, cases in _parts(options) for case in cases]
    names = str(targets[0]), str(targets[1])
    agreement = Agreement(names=names, limit=across_engines, overall=overall, of_some=OF_SOME_ENGINES)
    codes: list[ExitCode] = []
    try:
        with _observers(options) as observers:
            out: Path | None = options.out
            for number, shown in _run(cases, observers, recorded):
                differing = agreement.add(*(recorded[number], *shown) if recorded else shown)
                for text in summary(differing):
                    say(text)
                if differing:
                    out = out or own_folder(Path("out"), "fidelity")
                    keep_disagreement(out / f"{differing[0].case}.json", cases[number], summary(differing))
    except KeyboardInterrupt:
        complain("interrupted")
        codes.append(ExitCode.ERROR)
    show_fidelity(Console(), agreement)
    if options.json:
        write_text(options.json, json.dumps(to_json(agreement), indent=1) + "\n")
    return severest([*codes, of_status(conclusion(agreement))])


def _files(places: Sequence[Path]) -> list[Path]:
    """The recordings named, and those in the folders named."""
    files = [path for place in places for path in (sorted(place.glob("*.npz")) if place.is_dir() else [place])]
    if places and not files:
        raise BadRecording(f"{places[0]}: no recording in this folder")
    return files


def _parts(options: argparse.Namespace) -> Iterator[tuple[str, list[Case]]]:
    """The cases by pair of runner and backend, drawn; or those of the seed files: one bad file is enough to stop, as
    the rest would not be the same."""
    if not options.drawn:
        yield "seeds", [read(path).case for path in dict.fromkeys(options.seeds)]
        return
    for runner, backend in _pairs(options):
        cases = rounds(options.seed, runner, backend, options.cases_per_setup)
        yield f"{runner}-{backend}", list(islice(cases, options.drawn))


def _pairs(options: argparse.Namespace) -> list[tuple[str, str]]:
    """The runners and backends asked for; default: all of sglang's runners, all backends of a runner. BadInput if
    none fits."""
    toy = all(target.engine == "toy" for target in options.targets)
    runner = options.runner or ("toy" if toy else "draft")
    runners = [name for name in RUNNERS if name != "toy"] if runner == ALL else [runner]
    requested = options.backend or (ALL if runner == ALL else "")
    pairs = []
    for name in runners:
        backends = RUNNER_FACTS[name].backends
        pairs += [
            (name, backend) for backend in (backends if requested else backends[:1]) if requested in ("", ALL, backend)
        ]
    if not pairs:
        raise BadInput(f"--backend {requested}: the {runner} runner has {' and '.join(RUNNER_FACTS[runner].backends)}")
    return pairs


def _run(
    cases: Sequence[Case], observers: Sequence[Observer], recorded: Sequence[Observation] = ()
) -> Iterator[tuple[int, list[Observation]]]:
    """The observations of each target, case after case. A case that the other host could not run is not run: there
    is nothing to compare it with."""
    shown_at = time.monotonic()
    for number, case in enumerate(cases):
        if recorded and not recorded[number].took_place:
            yield number, [recorded[number]]
        else:
            yield number, [observed(case) for observed in observers]
        if time.monotonic() - shown_at > _PROGRESS_EVERY:
            shown_at = time.monotonic()
            print(f"{number + 1} of {len(cases)} cases", file=sys.stderr, flush=True)
