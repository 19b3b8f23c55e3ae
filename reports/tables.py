"""The figures of a report as pandas tables: verdicts, transition coverage, time by stage.

Everything here counts what the campaigns recorded; nothing is run or judged again. pandas takes as long to import as
all else that a command needs, so it is only imported where a table is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reports.wording import storable
from repro.traces.campaign import Campaign, Transition

if TYPE_CHECKING:
    import pandas as pd

HEAT_LEVELS = 5  # shades of the heat map beside "never"; more cannot be distinguished in print


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """One cell of a heat map.

    count: replays; padded: how many of them left rows of their bucket unused. level: its shade, 0 (none) to
    HEAT_LEVELS. missing: what was possible in a setup that was drawn and never happened: "all" of this cell, its
    "padded" or its "full" batches, or "" for nothing. A cell with neither count nor missing was not possible.
    """

    count: int
    padded: int
    level: int
    missing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Counts of replays over two axes."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    cells: tuple[tuple[Heat, ...], ...]

    @property
    def missing(self) -> list[tuple[int, int, str]]:
        """Row, column and what is missing there ("all", "padded" or "full")."""
        lines = zip(self.rows, self.cells, strict=True)
        each = ((row, column, cell) for row, line in lines for column, cell in zip(self.columns, line, strict=True))
        return [(row, column, cell.missing) for row, column, cell in each if cell.missing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The coverage of one runner with one backend, over all targets."""

    runner: str
    backend: str
    replays: int
    buckets: HeatMap
    shapes: HeatMap


def verdicts(campaigns: Sequence[Campaign]) -> pd.DataFrame:
    """One row for each campaign and oracle: campaign (its number), oracle, PASS, UNKNOWN, FAIL."""
    import pandas as pd

    rows = [
        {"campaign": number, "oracle": storable(oracle)} | {word.upper(): count for word, count in counts.items()}
        for number, campaign in enumerate(campaigns)
        for oracle, counts in campaign.verdicts.items()
    ]
    frame = pd.DataFrame(rows, columns=["campaign", "oracle", "PASS", "UNKNOWN", "FAIL"])
    return frame.fillna(0).astype({"PASS": int, "UNKNOWN": int, "FAIL": int})


def transitions(campaigns: Sequence[Campaign]) -> pd.DataFrame:
    """One row for each transition that any campaign made or could have made, with its count over all of them."""
    import pandas as pd

    counts: dict[Transition, int] = {}
    for campaign in campaigns:
        for transition in campaign.transitions_missing:
            counts.setdefault(transition, 0)
        for covered in campaign.transitions:
            counts[covered.transition] = counts.get(covered.transition, 0) + covered.count
    columns = ["runner", "backend", "topk", "num_steps", "before", "after", "padded"]
    rows = [
        [
            storable(transition.runner),
            storable(transition.backend),
            *(getattr(transition, name) for name in columns[2:]),
            n,
        ]
        for transition, n in counts.items()
    ]
    return pd.DataFrame(rows, columns=[*columns, "count"])


def coverage(campaigns: Sequence[Campaign]) -> tuple[Coverage, ...]:
    """For each runner and backend: the heat map of buckets, and that of topk and steps."""
    collected = []
    for (runner, backend), part in transitions(campaigns).groupby(["runner", "backend"], sort=True):
        sizes = sorted({*part["before"], *part["after"]} - {0})
        collected.append(
            Coverage(
                runner=str(runner),
                backend=str(backend),
                replays=int(part["count"].sum()),
                buckets=_heat_map(part, "before", "after", [0, *sizes], sizes),
                shapes=_heat_map(part, "topk", "num_steps", sorted(set(part["topk"])), sorted(set(part["num_steps"]))),
            )
        )
    return tuple(collected)


def _heat_map(part: pd.DataFrame, down: str, across: str, rows: list[int], columns: list[int]) -> HeatMap:
    # Of a pair of axis values, padded or not: its replays. That it is listed at all says that it was possible.
    counts = {key: int(count) for key, count in part.groupby([down, across, "padded"])["count"].sum().items()}
    totals = {(row, column): _sum(counts, row, column) for row in rows for column in columns}
    shades = sorted(count for count in totals.values() if count)

    def cell(row: int, column: int) -> Heat:
        gaps = [word for word, padded in (("full", False), ("padded", True)) if counts.get((row, column, padded)) == 0]
        count = totals[row, column]
        return Heat(
            count=count,
            padded=counts.get((row, column, True), 0),
            level=_level(count, shades[0], shades[-1]) if count else 0,
            missing=("" if not gaps else gaps[0] if count else "all"),
        )

    cells = tuple(tuple(cell(row, column) for column in columns) for row in rows)
    return HeatMap(rows=tuple(rows), columns=tuple(columns), cells=cells)


def _sum(counts: Mapping[tuple[int, int, bool], int], row: int, column: int) -> int:
    return counts.get((row, column, False), 0) + counts.get((row, column, True), 0)


def _level(count: int, least: int, most: int) -> int:
    """The shade of a count between the least and the most of its map, by magnitude: rare must not look missing."""
    if least == most:
        return HEAT_LEVELS
    return 1 + min(HEAT_LEVELS - 1, math.floor(HEAT_LEVELS * math.log(count / least) / math.log(most / least)))


def stages(campaigns: Sequence[Campaign]) -> pd.DataFrame:
    """Seconds by stage (rows, in the order in which a case meets them) and campaign (columns, by number)."""
    import pandas as pd

    seconds_by_stage = [
        {storable(stage): seconds for stage, seconds in campaign.stages.items()} for campaign in campaigns
    ]
    names = list(dict.fromkeys(stage for stages in seconds_by_stage for stage in stages))
    table = {number: pd.Series(stages, dtype=float) for number, stages in enumerate(seconds_by_stage)}
    return pd.DataFrame(table, index=names, columns=range(len(campaigns))).fillna(0.0)
