"""run --touching: the setups of a change's runners are traced, to draw those that come to its lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fuzz.aiming import Asked
from fuzz.check.command import published
from fuzz.check.plan import Item, Pair, directed, pairs
from fuzz.check.touched import changes, traces
from fuzz.lines import lines_of
from fuzz.mutation.scope import Lines
from fuzz.touching import Changed, Way, changed, reaches, ways
from repro.cases.case import Setup, Target, engine_refuses
from repro.cases.release_list import has_runner
from repro.commands.cli import BadInput, say
from runners.processes.pool import Pool
from runners.processes.warm import room_for
from runners.targets.environments import lacks, sglang_path
from runners.targets.mended import counts_as


def touching(named: Sequence[str], target: Target, runner: str, backend: str, timeout_s: float, log: Path) -> list[Way]:
    """The ways to a change of this target: files, or those that differ from a git revision. runner, backend: those
    alone; empty: any. BadInput if no runner comes to a changed line."""
    tree = sglang_path(target)
    base = published(counts_as(target), target.engine, lacks) if target.is_checkout else None
    lines = changed(changes(named, tree, sglang_path(base) if base else tree))
    what = f"--touching {' '.join(named)}"
    if not lines:
        raise BadInput(f"{what}: it changes no Python file of sglang")
    kinds = {pair: _items(target, pair) for pair in pairs() if runner in ("", pair[0]) and backend in ("", pair[1])}
    with Pool(target, timeout_s=timeout_s, log=log, standbys=room_for(target.engine)) as pool:
        pool.change({"lines": list(lines)})
        reached = list(_ways(pool, {pair: items for pair, items in kinds.items() if items}, lines))
    if not reached:
        raise BadInput(f"{what}: no runner of {target} comes to a line of it ({', '.join(sorted(lines))})")
    return reached


def _ways(pool: Pool, kinds: Mapping[Pair, Sequence[Item]], lines: Changed) -> Iterator[Way]:
    """A plain setup of each pair is traced first. One that comes to a changed line needs no options. Of a runner that
    runs a changed file and does not, all other setups are traced, over its first such backend."""
    first = _traced(pool, [items[0] for items in kinds.values()])
    plainly = [pair for pair, items in kinds.items() if reaches(first[items[0].setup], lines)]
    yield from (Way(pair=pair) for pair in plainly)
    ran = [pair for pair, items in kinds.items() if first[items[0].setup] and pair not in plainly]
    waiting: dict[str, list[Pair]] = {}
    for pair in ran if ran or plainly else kinds:
        waiting.setdefault(pair[0], []).append(pair)
    for of_runner in waiting.values():
        traced = first | _traced(pool, kinds[of_runner[0]][1:])
        setups = {item.setup: reaches(traced[item.setup], lines) for item in kinds[of_runner[0]]}
        yield from (Way(pair=pair, having=having) for having in ways(setups) for pair in of_runner)


def narrowed(request: Asked, way: Way) -> Asked:
    """The aim that also goes this way, where it says nothing else of an option."""
    named = {*request.values, *request.having}
    on = (name for name in way.having if name not in named)
    return replace(request, having=(*request.having, *on), runners=(way.pair[0],))


def _items(target: Target, pair: tuple[str, str]) -> list[Item]:
    """Small setups of a runner and a backend that this target has, the plain one first."""
    if not (target.is_checkout or has_runner(target.sglang, *pair)):
        return []
    simplest, kinds, sizes = directed(*pair)
    return [item for item in (simplest, *kinds, *sizes) if not engine_refuses(item.setup, target.engine)]


def _traced(pool: Pool, items: Sequence[Item]) -> dict[Setup, Lines]:
    """The lines of the changed files that the cases of each item run."""
    lines: dict[Setup, Lines] = {}
    for item, of_item in traces(items, pool, "--touching: which setups reach the change", say):
        lines[item.setup] = lines_of(of_item)
    return lines
