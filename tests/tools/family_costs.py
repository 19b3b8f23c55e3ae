"""The cost of each model family beside Llama's: opening a session, a step, and memory, as rows of Markdown.

python -m tests.tools.family_costs TARGET [RUNNER/BACKEND ...]

Processor seconds of the session's process. A step is that of the last of three runs of one case. Exit code 2 if no
family ran.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fuzz.mutation.directed import setups, written
from repro.cases.case import Setup, Target
from repro.cases.families import families, fitted
from repro.cases.runner_facts import RUNNER_FACTS
from runners.processes.pool import Pool

# Facts of a session that says its cost; cost_session.py says the same, and cannot be imported here.
OPENING, CASE, RESIDENT = "seconds of the opening", "seconds of the case", "MiB resident"
_SESSION = "tests.tools.cost_session"
LLAMA = "Llama"
PAIRS = ("decode/triton", "verify/triton", "draft/triton", "draft_extend/triton")
RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """opening, step: processor seconds. memory: GiB."""

    opening: float
    step: float
    memory: float

    def row(self, pair: str, family: str, llama: Cost | None) -> str:
        """In times of Llama's, where there is one."""
        times = [f" ({mine / base:.1f})" if llama else "" for mine, base in self._beside(llama or self)]
        numbers = (f"{self.opening:.2f} s{times[0]}", f"{1000 * self.step:.0f} ms{times[1]}", f"{self.memory:.1f} GiB")
        return f"| {pair} | {family} | {' | '.join(numbers)} |"

    def _beside(self, llama: Cost) -> list[tuple[float, float]]:
        return [(self.opening, llama.opening), (self.step, llama.step)]


def alike(runner: str, backend: str) -> dict[str, Setup]:
    """The same small setup of each family, Llama's first; chains, which all families have."""
    plain = setups(runner, backend)[0]
    if RUNNER_FACTS[runner].speculative:
        plain = replace(plain, topk=1, num_steps=3, num_draft_tokens=4)
    return {LLAMA: plain} | {name: fitted(replace(plain, family=name)) for name in families(runner, backend)}


def measured(pool: Pool, setup: Setup) -> Cost | None:
    """None if it does not run here."""
    case = next(iter(written(setup)))
    traces = [pool.run(case) for _ in range(RUNS)]
    if not all(trace.ended.how.took_place and OPENING in trace.facts for trace in traces):
        return None
    facts = traces[-1].facts
    return Cost(
        opening=float(facts[OPENING]),
        step=float(facts[CASE]) / len(case.steps),
        memory=float(facts[RESIDENT]) / 1024,
    )


def rows(target: Target, pairs: Sequence[str]) -> Iterator[str]:
    """One for each family that runs, once it is measured."""
    with tempfile.TemporaryDirectory() as folder, Pool(target, log=Path(folder) / "log", session=_SESSION) as pool:
        for pair in pairs:
            llama: Cost | None = None
            for family, setup in alike(*pair.split("/")).items():
                if cost := measured(pool, setup):
                    yield cost.row(pair, family, llama)
                    llama = llama or cost


def main(target: str, *pairs: str) -> int:
    print("| runner | family | opening | step | memory |\n|---|---|---|---|---|")
    count = 0
    for row in rows(Target.parse(target), pairs or PAIRS):
        print(row, flush=True)
        count += 1
    return 0 if count else 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
