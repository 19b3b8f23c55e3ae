"""The part of a campaign that a change of sglang can reach: runners and backends, and the options without which the
changed lines do not run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from fuzz.check.plan import KINDS, Pair
from fuzz.check.touched import Change, only_functions
from fuzz.draw.aim import plain
from fuzz.mutation.scope import Lines
from repro.cases.case import Setup

# All lines of a file.
WHOLE = frozenset({0})
# The changed lines of each file.
Changed = Mapping[str, frozenset[int]]
# Ways to reach a change of which a campaign each is made.
WAYS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A campaign that reaches a change: a runner and its backend, and options at drawn values."""

    pair: Pair
    having: tuple[str, ...] = ()


def changed(changes: Iterable[Change]) -> Changed:
    """The changed lines of each file of sglang, by their numbers in the changed text; WHOLE where a change may reach
    all that the file does: outside of functions, in a file that is new, and where nothing differs but was named."""
    return {change.path: _lines(change) for change in changes if change.path.endswith(".py") and change.after}


def _lines(change: Change) -> frozenset[int]:
    before, after = change.before, change.after
    if before is None or after is None or before == after or not only_functions(before, after):
        return WHOLE
    old, new = before.splitlines(), after.splitlines()
    numbers: set[int] = set()
    for tag, _, _, first, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            # The lines around a gap say whether removed ones are reached.
            numbers.update(range(first + 1, end + 1) if end > first else (first, first + 1))
    tree = ast.parse(after)
    return frozenset(line for number in numbers for line in _statement(tree, number)) or WHOLE


def _statement(tree: ast.Module, number: int) -> range:
    """The lines of the innermost statement around this one; of a compound statement those of its head alone."""
    smallest: ast.stmt | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno <= number <= (node.end_lineno or node.lineno):
            smallest = node if smallest is None or node.lineno >= smallest.lineno else smallest
    if smallest is None:
        return range(0)
    body: Sequence[ast.stmt] = getattr(smallest, "body", ())
    last = max(smallest.lineno, body[0].lineno - 1) if body else smallest.end_lineno or smallest.lineno
    return range(smallest.lineno, last + 1)


def reaches(lines: Lines, changes: Changed) -> bool:
    """True if a run of these lines came to a changed one."""
    return any(lines.get(file) and (numbers == WHOLE or lines[file] & numbers) for file, numbers in changes.items())


def ways(setups: Mapping[Setup, bool]) -> tuple[tuple[str, ...], ...]:
    """The options that set those setups that reach a change apart from the others: options that all of them have; else
    options each of which reaches it, one a way. No options where none does that; no way where no setup reaches it."""
    sets = [_options(setup) for setup, reached in setups.items() if reached]
    misses = [_options(setup) for setup, reached in setups.items() if not reached]
    if not sets:
        return ()
    having = _apart(frozenset.intersection(*sets), misses)
    alone = _covering(frozenset.union(*sets).difference(*misses), sets, WAYS_MAX)
    return (having,) if having or not misses else tuple((option,) for option in alone) or ((),)


def _apart(common: frozenset[str], missed: Sequence[frozenset[str]]) -> tuple[str, ...]:
    """The fewest of these options that no setup that misses has together; empty if there are none such."""
    chosen: list[str] = []
    left = list(missed)
    while left and common:
        best = min(sorted(common), key=lambda option: sum(option in options for options in left))
        still = [options for options in left if best in options]
        if len(still) == len(left):
            break
        chosen.append(best)
        left, common = still, common - {best}
    return () if left else tuple(chosen)


def _covering(options: frozenset[str], sets: Sequence[frozenset[str]], most: int) -> tuple[str, ...]:
    """Up to so many of these options, of which each set has one; empty if there are none such."""
    chosen: list[str] = []
    left = list(sets)
    while left and options and len(chosen) < most:
        best = max(sorted(options), key=lambda option: sum(option in each for each in left))
        chosen.append(best)
        left = [each for each in left if best not in each]
        options -= {best}
    return () if left else tuple(chosen)


def _options(setup: Setup) -> frozenset[str]:
    return frozenset(option for option in KINDS if getattr(setup, option) != plain(option))
