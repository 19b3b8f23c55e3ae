"""The plan of a check: which cases are run, in which order, and what is left out. By numbers alone, so that it is the
same on every machine, however busy that is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, zip_longest

from fuzz.check.costs import seconds
from fuzz.mutation.directed import setups, written
from repro.cases.case import Case, Setup, problems
from repro.cases.codec import Seed
from repro.cases.families import family_facts
from repro.cases.options import OPTIONS
from repro.cases.runner_facts import RUNNER_FACTS, TOY

# Processor seconds of all setups: enough for every stored seed and every setup that shows an option with a runner or a
# backend that no other does, and for some five seeds more.
BUDGET = 400.0
# The cases of a plain setup, of another kind or size of setup, and of a setup of whole rounds.
CASES_PLAIN, CASES_OTHER, CASES_SERVED = 3, 2, 1
# Options in which setups of a pair differ in kind, and not in size alone.
KINDS = ("algorithm", "topk", "page_size", *(option.field for option in OPTIONS if option.sets_apart))

# A runner and its backend.
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Cases of one setup. name: its seed's file, or its pair and what sets it apart from the pair's earlier setups."""

    name: str
    cases: tuple[Case, ...]
    seed: Seed | None = None

    @property
    def setup(self) -> Setup:
        return self.cases[0].setup

    @property
    def pair(self) -> Pair:
        return self.setup.runner, self.setup.backend

    @property
    def cost(self) -> float:
        """Processor seconds."""
        return seconds(self.cases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """left_out: what the budget has no room for."""

    items: tuple[Item, ...]
    left_out: tuple[Item, ...] = ()

    def of(self, chosen: Iterable[Pair]) -> Plan:
        """The part of these pairs alone."""
        kept = frozenset(chosen)
        items, left_out = ([item for item in part if item.pair in kept] for part in (self.items, self.left_out))
        return Plan(items=tuple(items), left_out=tuple(left_out))


def pairs() -> tuple[Pair, ...]:
    """Every runner and backend that sglang still has."""
    return tuple(
        (runner, backend)
        for runner, facts in RUNNER_FACTS.items()
        if runner != TOY and not facts.until
        for backend in facts.backends
    )


def plan(stored: Sequence[tuple[str, Seed]], budget: float = BUDGET) -> Plan:
    """A plain setup of each pair; then, as far as the budget goes, stored seeds and setups of other kinds in turn, then
    setups of other sizes. Seeds of a runner that compiles its buckets, which is dear, come last. So they are chosen;
    they are run so that one process can serve many."""
    seeds: dict[Pair, list[Item]] = {pair: [] for pair in pairs()}
    for name, seed in stored:
        item = Item(name=name, cases=(seed.case,), seed=seed)
        seeds.setdefault(item.pair, []).append(item)
    plain, kinds, sizes = zip(*(directed(*pair) for pair in pairs()), strict=True)
    dear = [item for pair, items in seeds.items() for item in items if RUNNER_FACTS[pair[0]].compiled]
    cheap = ([item for item in items if item not in dear] for items in seeds.values())
    taken, left_out = [*plain], list[Item]()
    budget -= sum(item.cost for item in plain)
    for item in chain(in_turn((in_turn(cheap), telling(in_turn(kinds)))), in_turn(sizes), dear):
        fits = item.cost <= budget
        budget -= item.cost if fits else 0
        (taken if fits else left_out).append(item)
    return Plan(items=tuple(together(taken)), left_out=tuple(left_out))


def telling(items: Iterable[Item]) -> Iterator[Item]:
    """In order of how many options each shows with a runner or a backend that none before it has shown with them."""
    waiting, met = list(items), set[tuple[str, str]]()
    while waiting:
        item = max(waiting, key=lambda item: len(shows(item) - met))
        waiting.remove(item)
        met |= shows(item)
        yield item


def shows(item: Item) -> set[tuple[str, str]]:
    """Its options, each with its runner and with its backend."""
    return {(part, option) for part in item.pair for option in _options(item.setup)}


def together(items: Iterable[Item]) -> list[Item]:
    """Ordered so that setups that a process may serve one after the other are neighbours."""
    places = {pair: place for place, pair in enumerate(pairs())}

    def place(item: Item) -> tuple[int, str, bool, bool, bool]:
        setup = item.setup
        return places[item.pair], family_facts(setup).what, setup.swa, setup.dp_attention, setup.deterministic

    return sorted(items, key=place)


def in_turn(lists: Iterable[Iterable[Item]]) -> Iterator[Item]:
    """The first of each, the second of each, and so on."""
    return (item for row in zip_longest(*lists) for item in row if item)


def directed(runner: str, backend: str) -> tuple[Item, list[Item], list[Item]]:
    """The small setups of a pair: the plain one; those with options that none before them has, those with most of these
    first; then other sizes and options together. A runner that compiles its buckets has one, with one bucket."""
    plain, *waiting = setups(runner, backend)
    if RUNNER_FACTS[runner].compiled:
        return _item(replace(plain, capture_bs=plain.capture_bs[-1:]), "plain", CASES_PLAIN), [], []
    seen, kinds = _options(plain), []
    while new := max((_options(setup) - seen for setup in waiting), key=len, default=None):
        setup = next(setup for setup in waiting if _options(setup) - seen == new)
        waiting.remove(setup)
        kinds.append(_item(setup, ", ".join(sorted(new))))
        seen |= new
    return (
        _item(plain, "plain", CASES_PLAIN),
        kinds,
        [_item(setup, ", ".join((_size(setup), *sorted(_options(setup))))) for setup in waiting],
    )


def _item(setup: Setup, kind: str, first: int = CASES_OTHER) -> Item:
    """With so many of its first cases, and those in which another rank is busier."""
    first = CASES_SERVED if RUNNER_FACTS[setup.runner].serves else first
    valid = [case for case in written(setup) if not problems(case)]
    busier = [case for case in valid[first:] if any(step.elsewhere for step in case.steps)]
    return Item(name=f"{setup.runner}/{setup.backend} {kind}", cases=(*valid[:first], *busier))


def _options(setup: Setup) -> frozenset[str]:
    """The options in which this setup differs from sglang's defaults, in its words."""
    defaults = {field.name: field.default for field in fields(setup)}
    chosen = {name: getattr(setup, name) for name in KINDS if getattr(setup, name) != defaults[name]}
    return frozenset(name if value is True else f"{name}={value}" for name, value in chosen.items())


def _size(setup: Setup) -> str:
    buckets = "+".join(map(str, setup.capture_bs))
    width = f"{setup.num_heads} heads of {setup.head_dim}"
    return f"buckets {buckets}, topk {setup.topk}, {setup.num_steps} steps, context {setup.context_len}, {width}"
