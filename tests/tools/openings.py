"""The cost of opening a session, part by part: N sessions of drawn setups are opened, one after the other.

python -m tests.tools.openings TARGET N OUT [--runner R] [--backend B] [--setups-per-session N]

OUT/openings.json has what was timed so far. Exit code 2 if no session ran its first case.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from fuzz.draw.rounds import round_cases
from repro.cases.atomic_file import write_text
from repro.cases.case import Target
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.trace import Termination, Trace
from runners.processes.pool import Pool
from runners.processes.served import setups_per_session

# What the stages of a timed session begin with (opening_session.py says the same), and what of the whole time no
# session saw: the fork, and the way there and back.
OPENING, CASE, OUTSIDE = "opening: ", "case: ", "process"
# Of a process that has served another setup: letting go of that.
CLOSE = "close"
FIRST, SECOND = "first case", "second case"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """One session of a setup. whole: seconds from asking for the first case to its end. parts: of them, by part;
    `first case` is what that case took besides its parts in compilers. second: seconds of the next case. ended, what:
    how the first one did."""

    setup: str
    whole: float
    second: float
    parts: dict[str, float] = field(default_factory=dict)
    ended: str = str(Termination.DONE)
    what: str = ""

    @classmethod
    def of(cls, setup: str, first: Trace, whole: float, second: float) -> Opening:
        """The opening of the first case's trace and these times."""
        parts: defaultdict[str, float] = defaultdict(float)
        for stage, seconds in first.seconds.items():
            if stage.startswith(OPENING):
                parts[stage.removeprefix(OPENING)] += seconds
            elif stage.startswith(CASE):
                part = stage.removeprefix(CASE)
                parts[FIRST if part == "other" else f"{part} in it"] += seconds
            elif stage == CLOSE:
                parts[CLOSE] += seconds
        parts[OUTSIDE] = whole - sum(parts.values())
        return cls(
            setup=setup,
            whole=whole,
            second=second,
            parts=dict(parts),
            ended=str(first.ended.how),
            what=first.ended.what,
        )

    @property
    def ran(self) -> bool:
        """True if the first case was run, so that the times are those of an opening."""
        return self.ended == Termination.DONE


def table(name: str, openings: Sequence[Opening]) -> list[str]:
    """The mean and the largest of each part, the largest means first."""
    done = [opening for opening in openings if opening.ran]
    others = [f"  {opening.ended}: {opening.what}" for opening in openings if opening not in done]
    if not done:
        return [f"{name}: none of {len(openings)} sessions ran its first case", *others]
    names = {part for opening in done for part in opening.parts}
    rows = {part: [opening.parts.get(part, 0.0) for opening in done] for part in names}
    rows["whole"] = [opening.whole for opening in done]
    rows[SECOND] = [opening.second for opening in done]
    order = sorted(rows, key=lambda part: -sum(rows[part]))
    lines = [f"{name}: {len(done)} of {len(openings)} sessions ran their first case; seconds, mean and largest"]
    return lines + others + [f"  {part:28}{sum(rows[part]) / len(done):8.3f}{max(rows[part]):8.3f}" for part in order]


def timed(target: Target, runner: str, backend: str, count: int, log: Path, served: int) -> Iterator[Opening]:
    """Setups of rounds, each with its first two cases in a session of its own; the first, which starts the worker and
    may compile kernels, is not counted."""
    with Pool(target, log=log, session="tests.tools.opening_session", setups_per_session=served) as pool:
        for number in range(1 + count):
            cases = list(islice(round_cases(0, number, runner, backend, 2), 2))
            start = time.monotonic()
            trace = pool.run(cases[0])
            whole = time.monotonic() - start
            start = time.monotonic()
            pool.run(cases[-1])
            if number:
                yield Opening.of(str(cases[0].setup), trace, whole, time.monotonic() - start)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.openings", description=__doc__)
    parser.add_argument("target", type=Target.parse)
    parser.add_argument("count", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runner", choices=RUNNER_FACTS, default="draft")
    parser.add_argument("--backend", default="")
    parser.add_argument("--setups-per-session", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    backend = options.backend or RUNNER_FACTS[options.runner].backends[0]
    served = options.setups_per_session or setups_per_session(options.target.engine)
    openings: list[Opening] = []
    for opening in timed(options.target, options.runner, backend, options.count, options.out / "worker.log", served):
        openings.append(opening)
        write_text(options.out / "openings.json", json.dumps([asdict(each) for each in openings], indent=1))
    print("\n".join(table(f"{options.target} {options.runner} {backend}", openings)))
    return 0 if any(opening.ran for opening in openings) else 2


if __name__ == "__main__":
    sys.exit(main())
