"""The code that is mutated: capture, replay, metadata and kernels, as far as the runners of a target run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, zip_longest

from fuzz.mutation.directed import drawn, written
from fuzz.mutation.mutant import Mutant
from fuzz.mutation.sites import mutants
from repro.cases.case import Case, Setup, problems
from repro.traces.trace import Trace

# Not the models, the samplers and the servers: what they get wrong, graph and eager get wrong alike. Of the scheduler
# what makes batches and takes their results, which rounds run.
PREFIXES = (
    "sglang/srt/speculative/",
    "sglang/srt/model_executor/",
    "sglang/srt/layers/attention/",
    "sglang/srt/managers/overlap_utils",
    "sglang/srt/managers/schedule_",
    "sglang/srt/managers/scheduler.py",
    "sglang/srt/managers/scheduler_components/batch_result_processor",
    "sglang/srt/managers/scheduler_output_processor_mixin",
    "sglang/srt/managers/tp_worker",
    "sglang/srt/mem_cache/",
    "sglang/kernels/ops/attention/",
    "sglang/kernels/ops/kvcache/",
    "sglang/kernels/ops/mamba/",
    "sglang/kernels/ops/speculative/",
)
# Where what runs before the capture counts, too: backends and runners, which allocate what is replayed on.
BUILT = ("sglang/srt/layers/attention/", "sglang/srt/speculative/")
# Cases of a plan's first setup that lines are traced with; of every other one the first alone, as tracing takes longer
# than running.
TRACED = 3

# Fewest cases of setups that run a mutant's line: where a runner's plan has fewer, as of a family of models, more of
# these setups are drawn.
REACHING_MIN = 6

# The lines that ran, by file.
Lines = Mapping[str, frozenset[int]]
# Of functions that are not kernels, also which parts of a line: first line and column, last line and column.
Places = Mapping[str, frozenset[tuple[int, int, int, int]]]
# For each runner and backend, those of each setup.
Ran = Mapping[str, Mapping[Setup, Lines]]
# A case, with the runner that it is tried on.
Tried = tuple[str, Case]


def traced_cases(plan: Sequence[Case]) -> dict[Setup, list[Case]]:
    """The first cases of each setup."""
    by_setup: dict[Setup, list[Case]] = {}
    for case in plan:
        by_setup.setdefault(case.setup, []).append(case)
    return {setup: of_setup[: 1 if number else TRACED] for number, (setup, of_setup) in enumerate(by_setup.items())}


def lines_of(traces: Iterable[Trace]) -> Lines:
    """The lines that ran in these traced sessions."""
    lines: dict[str, set[int]] = {}
    for trace in traces:
        for path in ("built_lines", "lines"):
            for file, numbers in trace.path(-1, path).items():
                if path == "lines" or file.startswith(BUILT):
                    lines.setdefault(file, set()).update(numbers.tolist())
    return {file: frozenset(numbers) for file, numbers in lines.items()}


def places_of(traces: Iterable[Trace]) -> Places:
    """The parts of lines that ran in these traced sessions."""
    places: dict[str, set[tuple[int, int, int, int]]] = {}
    for trace in traces:
        for path in ("built_places", "places"):
            for file, rows in trace.path(-1, path).items():
                if path == "places" or file.startswith(BUILT):
                    places.setdefault(file, set()).update((a, b, c, d) for a, b, c, d in rows.tolist())
    return {file: frozenset(spans) for file, spans in places.items()}


def mutants_of(ran: Ran, source: Callable[[str], str], places: Places | None = None) -> dict[str, list[Mutant]]:
    """For each runner and backend the mutants of code that it runs. source: the text of a file. places: what any of
    them ran; an expression that none ever evaluates (one branch of a conditional, what follows an `and`) is as code
    that does not run."""
    together = {runner: _joined(by_setup.values()) for runner, by_setup in ran.items()}
    files = sorted({file for lines in together.values() for file in lines})
    everything = {file: _evaluated(mutants(file, source(file)), (places or {}).get(file, ())) for file in files}
    return {
        runner: [m for file in sorted(lines) for m in everything[file] if runs(m, lines)]
        for runner, lines in together.items()
    }


def ordered(mutant: Mutant, plans: Mapping[str, Sequence[Case]], ran: Ran) -> list[tuple[str, Case]]:
    """The cases on which a mutant is tried, with the runner that each belongs to, those that reach most first: the
    first cases of the setups that run its line, and after every second one another case of these setups; then the rest.
    The runners take turns, and each begins with another setup than the one before it: what several of them run (a
    kernel) is soon tried with windows, pages, long prefixes and odd heads. Setups that take another way through the
    mutant's function come before those that take one that was tried. plans: of the runners that may try it, in their
    order."""
    groups: tuple[list[list[Tried]], ...] = ([], [], [])
    for turn, (runner, cases) in enumerate(plans.items()):
        reaching = [setup for setup, lines in ran[runner].items() if runs(mutant, lines)]
        cases = [*cases, *_more(cases, reaching)]
        first = {id(of_setup[0]) for of_setup in traced_cases(cases).values()}
        tiers: tuple[list[Tried], ...] = ([], [], [])
        for case in cases:
            tiers[2 if case.setup not in reaching else int(id(case) not in first)].append((runner, case))
        begin = turn % max(1, len(tiers[0]))
        for group, entries in zip(groups, (tiers[0][begin:] + tiers[0][:begin], *tiers[1:]), strict=True):
            group.append(entries)
    firsts, others, rest = (_in_turn(group) for group in groups)
    return [*_every_third(_new_ways_first(mutant, firsts, ran), others, len(plans)), *rest]


def _more(cases: Sequence[Case], reaching: Sequence[Setup]) -> Iterator[Case]:
    """Cases of these setups that a plan lacks."""
    count = sum(case.setup in reaching for case in cases)
    each = zip_longest(*(chain(written(setup), drawn(setup)) for setup in reaching))
    others = (case for row in each for case in row if case and case not in cases and not problems(case))
    return islice(others, max(0, REACHING_MIN - count))


def _in_turn(groups: Iterable[Sequence[Tried]]) -> list[Tried]:
    return [entry for row in zip_longest(*groups) for entry in row if entry is not None]


def _new_ways_first(mutant: Mutant, firsts: Sequence[Tried], ran: Ran) -> list[Tried]:
    """A condition is soon tried on setups that it tells apart: as often as each way, by the lines of the mutant's
    function that a setup runs, has been taken before."""
    inside = range(mutant.first_line, mutant.last_line + 1)
    taken: Counter[frozenset[int]] = Counter()
    ranked: list[tuple[int, Tried]] = []
    for runner, case in firsts:
        way = ran[runner][case.setup].get(mutant.file, frozenset()) & frozenset(inside)
        ranked.append((taken[way], (runner, case)))
        taken[way] += 1
    return [entry for _, entry in sorted(ranked, key=lambda pair: pair[0])]


def _every_third(firsts: Sequence[Tried], others: Sequence[Tried], each: int) -> list[Tried]:
    """The first cases of setups, and after every two rounds of them one of the others, for as long as there are both.
    each: how many runners have their turn in a round."""
    merged: list[Tried] = []
    for start in range(0, max(len(others), -(-len(firsts) // 2)), each):
        merged += [*firsts[2 * start : 2 * (start + each)], *others[start : start + each]]
    return merged


def runs(mutant: Mutant, lines: Lines) -> bool:
    """True if its statement is among these lines."""
    first, last = mutant.lines
    numbers = lines.get(mutant.file, frozenset())
    return any(number in numbers for number in range(first, last + 1))


def _evaluated(every: Iterable[Mutant], places: Iterable[tuple[int, int, int, int]]) -> list[Mutant]:
    """The mutants whose place was evaluated; all of a statement of which only the lines are known."""
    by_line: dict[int, list[tuple[tuple[int, int], tuple[int, int]]]] = {}
    for first, begin, last, end in places:
        by_line.setdefault(first, []).append(((first, begin), (last, end)))
    kept = []
    for mutant in every:
        first, last = mutant.lines
        known = [place for line in range(first, last + 1) for place in by_line.get(line, ())]
        if not known or any(mutant.start <= begin and end <= mutant.end for begin, end in known):
            kept.append(mutant)
    return kept


def _joined(every: Iterable[Lines]) -> Lines:
    together: dict[str, frozenset[int]] = {}
    for lines in every:
        for file, numbers in lines.items():
            together[file] = together.get(file, frozenset()) | numbers
    return together
