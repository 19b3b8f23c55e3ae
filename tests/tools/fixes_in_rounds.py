"""The known fixes, taken out of a release that rounds drive, and found from nothing: by the runner that proves the fix,
and by rounds: python -m tests.tools.fixes_in_rounds [--fix N...] [--release 0.5.13] [--seeds 3] [--cases 60].

Cases are drawn as a campaign draws them. The first that fails where the fix is out, and not in the same way in the
release as it is, ends a search. Time is processor time of the changed release, its first session included; the release
as it is is asked only where a case fails.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from fuzz.draw.rounds import rounds
from fuzz.search import CASES_PER_SETUP
from oracles.catalogue import judge_all
from repro.cases.case import Case, Target
from repro.cases.runner_facts import RUNNER_FACTS
from repro.commands.fixes import changed
from repro.traces.finding import Status
from repro.traces.paths import Recorded
from repro.traces.trace import Trace
from repro.upstream.fixes import FIXES, Fix
from runners.processes.fork_servers import processor_seconds
from runners.processes.pool import Pool

ROUND = "round"
Places = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search's result. calls: of the runner, of rounds the decode rounds by graph. places: (oracle, where) of the
    failures that the fix prevents; none if nothing was found."""

    cases: int
    calls: int
    seconds: float
    places: Places


def ways(fix: Fix) -> Iterator[tuple[str, str, bool]]:
    """The runners and backends that prove a fix, and whether with chains alone; then rounds over these backends."""
    proofs = [proof for proof in fix.proofs if not RUNNER_FACTS[proof.runner].compiled]
    yield from ((proof.runner, proof.backend, proof.chains) for proof in proofs)
    yield from ((ROUND, backend, False) for backend in dict.fromkeys(proof.backend for proof in proofs))


def failures(case: Case, trace: Trace) -> Places:
    verdicts = judge_all(case, trace)
    return frozenset((each.oracle, each.where) for each in verdicts if each.status is Status.FAIL)


def calls_of(case: Case, trace: Trace) -> int:
    if case.setup.runner != ROUND:
        return len(case.steps)
    return len({array.step for array in trace.seen if array.path == Recorded.ROUND_GRAPH})


def search(cases: Iterator[Case], without: Pool, as_is: Pool) -> Search:
    """The first of these cases that only the release without the fix fails."""
    spent, count, calls = 0.0, 0, 0
    for case in cases:
        start = processor_seconds()
        trace = without.run(case)
        places = failures(case, trace)
        spent += processor_seconds() - start
        count, calls = count + 1, calls + calls_of(case, trace)
        new = places - failures(case, as_is.run(case)) if places else places
        if new:
            return Search(cases=count, calls=calls, seconds=spent, places=new)
    return Search(cases=count, calls=calls, seconds=spent, places=frozenset())


def row(fix: Fix, runner: str, backend: str, done: Sequence[Search]) -> str:
    successes = [each for each in done if each.places]
    unit = "rounds" if runner == ROUND else "calls"
    if not successes:
        last = done[-1]
        figures = f"not found | {last.cases} cases | {last.calls} {unit} | {last.seconds:.0f} s"
    else:
        cases, calls, seconds = (
            median(getattr(each, name) for each in successes) for name in ("cases", "calls", "seconds")
        )
        figures = f"{len(successes)} of {len(done)} | {cases:g} | {calls:g} {unit} | {seconds:.1f} s"
    by = sorted(frozenset().union(*(each.places for each in successes)))
    return f"| #{fix.number} | {runner}/{backend} | {figures} | {'; '.join(f'{o}: {w}' for o, w in by)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fix", type=int, nargs="+", default=[fix.number for fix in FIXES])
    parser.add_argument("--release", default="0.5.13", help="the release that the fixes are taken out of")
    parser.add_argument("--runner", help="only with this runner")
    parser.add_argument("--seeds", type=int, default=3, help="searches for each row")
    parser.add_argument("--cases", type=int, default=60, help="of one search at most")
    options = parser.parse_args()
    target = Target(options.release, "emulated")
    print(f"| fix | by | found | cases | until then | time | what only {options.release} without it fails |")
    for fix in (fix for fix in FIXES if fix.number in options.fix):
        with ExitStack() as stack:
            edited = changed(target, f"without #{fix.number}", fix.edits(target.sglang))
            pools = [stack.enter_context(Pool(each, timeout_s=120.0)) for each in (edited, target)]
            for runner, backend, chains in ways(fix):
                if options.runner not in (None, runner):
                    continue
                done = []
                for seed in range(1, options.seeds + 1):
                    drawn = rounds(seed, runner, backend, CASES_PER_SETUP)
                    fitting = (case for case in drawn if case.setup.topk == 1 or not chains)
                    done.append(search(itertools.islice(fitting, options.cases), pools[0], pools[1]))
                print(row(fix, runner, backend, done), flush=True)


if __name__ == "__main__":
    main()
