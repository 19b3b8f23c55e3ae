"""python -m repro fidelity: the same cases on two targets, side by side or over two hosts, and how far they agree."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from repro.cases.atomic_file import write_text
from repro.cases.case import RUNNERS, Case, Target
from repro.cases.codec import read
from repro.cases.own_place import own_folder
from repro.cases.runner_facts import RUNNER_FACTS
from repro.commands.cli import BadInput, complain, say
from repro.fidelity.compare import Agreement, Limit, conclusion, summary, to_json
from repro.fidelity.observation import Observation
from repro.fidelity.recording import BadRecording, Recording, load, save
from repro.shrinking.replay import ERROR, EXIT, severest
from repro.shrinking.store import keep_disagreement
from repro.traces.finding import Status

ALL = "all"
_TELL_EVERY = 10.0  # seconds

Observer = Callable[[Case], Observation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """rounds: the cases of a seed, a runner and a backend, so many for each setup. observers: of these targets, what
    each shows of a case. limit: how far values of two engines may be apart. show: to a person."""

    rounds: Callable[[int, str, str, int], Iterable[Case]]
    observers: Callable[[Sequence[Target]], AbstractContextManager[list[Observer]]]
    lacks: Callable[[Target], str]
    limit: Limit
    show: Callable[[Agreement], None]


def go(options: argparse.Namespace, means: Means) -> int:
    """The exit code."""
    for target in options.targets:
        if lack := means.lacks(target):
            raise BadInput(f"{target}: {lack}")
    return _record(options, means) if options.record else _compare(options, means)


def _record(options: argparse.Namespace, means: Means) -> int:
    """Each pair of runner and backend into a file of its own, so that what is done is kept and no file is large."""
    (target,) = options.targets
    parts = list(_parts(options, means))
    paths: list[Path] = [options.record / f"{name}.npz" if len(parts) > 1 else options.record for name, _ in parts]
    # Once before anything is run, so that a bad path shows at once.
    if len(parts) > 1:
        options.record.mkdir(parents=True, exist_ok=True)
    for path in paths:
        save(path, Recording(target=target, observations=()))
    codes = []
    with means.observers(options.targets) as observers:
        for path, (_, cases) in zip(paths, parts, strict=True):
            seen: list[Observation] = []
            try:
                seen.extend(shown for _, (shown,) in _run(cases, observers))
            except KeyboardInterrupt:
                complain("interrupted")
                codes.append(ERROR)
            save(path, Recording(target=target, observations=tuple(seen)))
            say(f"{path}: {len(seen)} cases on {target}, {path.stat().st_size / 1e6:.1f} MB")
            codes.append(EXIT[Status.PASS if any(observation.took_place for observation in seen) else Status.UNKNOWN])
            if ERROR in codes:
                return ERROR
    # A runner that the release does not have leaves nothing to compare; the others do.
    return min(codes, default=EXIT[Status.UNKNOWN])


def _compare(options: argparse.Namespace, means: Means) -> int:
    recordings = [load(path) for path in _files(options.against or ())]
    recorded = [observation for recording in recordings for observation in recording.observations]
    targets = [*{str(recording.target): recording.target for recording in recordings}.values(), *options.targets]
    if len(targets) != 2:
        raise BadInput(f"the recordings are of several targets: {', '.join(map(str, targets[:-1]))}")
    cases = [observation.case for observation in recorded] or [
        case for _, cases in _parts(options, means) for case in cases
    ]
    agreement = Agreement(names=(str(targets[0]), str(targets[1])), limit=means.limit)
    codes = []
    try:
        with means.observers(options.targets) as observers:
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
        codes.append(ERROR)
    means.show(agreement)
    if options.json:
        write_text(options.json, json.dumps(to_json(agreement), indent=1) + "\n")
    return severest([*codes, EXIT[conclusion(agreement)]])


def _files(places: Sequence[Path]) -> list[Path]:
    """The recordings named, and those in the folders named."""
    files = [path for place in places for path in (sorted(place.glob("*.npz")) if place.is_dir() else [place])]
    if places and not files:
        raise BadRecording(f"{places[0]}: no recording in this folder")
    return files


def _parts(options: argparse.Namespace, means: Means) -> Iterator[tuple[str, list[Case]]]:
    """The cases by pair of runner and backend, drawn; or those of the seed files: one bad file is enough to stop, as
    the rest would not be the same."""
    if not options.drawn:
        yield "seeds", [read(path).case for path in dict.fromkeys(options.seeds)]
        return
    for runner, backend in _pairs(options):
        cases = means.rounds(options.seed, runner, backend, options.cases_per_setup)
        yield f"{runner}-{backend}", list(islice(cases, options.drawn))


def _pairs(options: argparse.Namespace) -> list[tuple[str, str]]:
    """The runners and backends asked for; default: all of sglang's runners, all backends of a runner. BadInput if
    none fits."""
    toy = all(target.engine == "toy" for target in options.targets)
    runner = options.runner or ("toy" if toy else "draft")
    runners = [name for name in RUNNERS if name != "toy"] if runner == ALL else [runner]
    asked = options.backend or (ALL if runner == ALL else "")
    pairs = []
    for name in runners:
        backends = RUNNER_FACTS[name].backends
        pairs += [(name, backend) for backend in (backends if asked else backends[:1]) if asked in ("", ALL, backend)]
    if not pairs:
        raise BadInput(f"--backend {asked}: the {runner} runner has {' and '.join(RUNNER_FACTS[runner].backends)}")
    return pairs


def _run(
    cases: Sequence[Case], observers: Sequence[Observer], recorded: Sequence[Observation] = ()
) -> Iterator[tuple[int, list[Observation]]]:
    """What each of the targets shows of one case after the other. What the other host could not run is not run: there
    is nothing to compare it with."""
    reported_at = time.monotonic()
    for number, case in enumerate(cases):
        if recorded and not recorded[number].took_place:
            yield number, [recorded[number]]
        else:
            yield number, [observed(case) for observed in observers]
        if time.monotonic() - reported_at > _TELL_EVERY:
            reported_at = time.monotonic()
            print(f"{number + 1} of {len(cases)} cases", file=sys.stderr, flush=True)
