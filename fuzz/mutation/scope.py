"""Which code is mutated: what the runners of a target run of capture, replay, metadata and kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from fuzz.mutation.mutant import Mutant
from fuzz.mutation.sites import mutants
from repro.cases.case import Case, Setup
from repro.traces.trace import Trace

# Not the models, the samplers and the servers: what they get wrong, graph and eager get wrong alike.
PREFIXES = (
    "sglang/srt/speculative/",
    "sglang/srt/model_executor/",
    "sglang/srt/layers/attention/",
    "sglang/srt/mem_cache/",
    "sglang/kernels/ops/attention/",
    "sglang/kernels/ops/kvcache/",
    "sglang/kernels/ops/speculative/",
)
# Where what runs before the capture counts, too: backends and runners, which allocate what is replayed on.
BUILT = ("sglang/srt/layers/attention/", "sglang/srt/speculative/")
# Cases of each setup that lines are traced with.
TRACED = 2

# The lines that ran, by file.
Lines = Mapping[str, frozenset[int]]


def traced_cases(plan: Sequence[Case]) -> list[Case]:
    """The first cases of each setup, setup after setup."""
    by_setup: dict[Setup, list[Case]] = {}
    for case in plan:
        by_setup.setdefault(case.setup, []).append(case)
    return [case for own in by_setup.values() for case in own[:TRACED]]


def lines_of(traces: Iterable[Trace]) -> Lines:
    """What ran in these traced sessions."""
    lines: dict[str, set[int]] = {}
    for trace in traces:
        for path in ("built_lines", "lines"):
            for file, numbers in trace.path(-1, path).items():
                if path == "lines" or file.startswith(BUILT):
                    lines.setdefault(file, set()).update(numbers.tolist())
    return {file: frozenset(numbers) for file, numbers in lines.items()}


def mutants_of(ran: Mapping[str, Lines], source: Callable[[str], str]) -> dict[str, list[Mutant]]:
    """For each runner and backend the mutants of code that it runs. source: the text of a file."""
    files = sorted({file for lines in ran.values() for file in lines})
    everything = {file: mutants(file, source(file)) for file in files}
    return {
        runner: [m for file, numbers in sorted(lines.items()) for m in everything[file] if _runs(m, numbers)]
        for runner, lines in ran.items()
    }


def _runs(mutant: Mutant, numbers: frozenset[int]) -> bool:
    first, last = mutant.lines
    return any(number in numbers for number in range(first, last + 1))
