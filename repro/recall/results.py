"""The outcome of each row, and what a table says of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from repro.recall.rows import FAMILIES, Row
from repro.suspects.ranking import MOST
from repro.traces.exit_codes import ExitCode

FOUND, MISSED, OUT, ERROR = "found", "missed", "out of reach", "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of a row. oracle, where, case, seconds: of its first failure that the control does not have. cases:
    how many were run. control: failures that the control has too, as "oracle at where". first: the first wrong value
    and its line. guesses: functions that the diagnosis names, best first. rank: the place among them of one that the
    fix changed, 0 if none is. error: why it could not be run."""

    row: str
    state: str
    oracle: str = ""
    where: str = ""
    case: int = 0
    seconds: float = 0.0
    cases: int = 0
    control: tuple[str, ...] = ()
    first: str = ""
    guesses: tuple[str, ...] = ()
    rank: int = 0
    error: str = ""
    seed: str = ""

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, form: dict[str, object]) -> Result:
        # mypy: fields of a JSON object have any type.
        return cls(**{**form, "control": tuple(form["control"]), "guesses": tuple(form["guesses"])})  # type: ignore[arg-type]

    def __str__(self) -> str:
        if self.state == FOUND:
            begin = f"found by {self.oracle} at {self.where}, case {self.case}, {self.seconds:.0f} s"
            return f"{self.row}: {begin}{self.first and f'; {self.first}'}"
        if self.state == ERROR:
            return f"{self.row}: error: {self.error}"
        return f"{self.row}: {self.state}{f', {self.cases} cases' if self.cases else ''}"


@dataclass(frozen=True, slots=True)
class FamilyCount:
    """The rows of a family. hits, misses: by their first run. open: without a kept outcome. out: out of reach."""

    family: str
    hits: int
    misses: int
    open: int
    out: int


def by_family(rows: Sequence[Row]) -> tuple[FamilyCount, ...]:
    """The first runs of these rows, in the order of FAMILIES, and their sums."""
    of = {family: [row for row in rows if row.family == family] for family in FAMILIES}
    return tuple(_count(family, some) for family, some in (*of.items(), ("all", rows)) if some)


def _count(family: str, rows: Sequence[Row]) -> FamilyCount:
    ends = [(row.first or "open") if row.is_in_reach else OUT for row in rows]
    return FamilyCount(family, *(ends.count(end) for end in (FOUND, MISSED, "open", OUT)))


def exit_code(results: Sequence[Result]) -> ExitCode:
    states = {result.state for result in results}
    if ERROR in states:
        return ExitCode.ERROR
    if MISSED in states:
        return ExitCode.FAIL
    return ExitCode.PASS if FOUND in states else ExitCode.UNKNOWN


def totals(results: Sequence[Result]) -> Iterator[str]:
    """The figures, one line each."""
    hits = [result for result in results if result.state == FOUND]
    reached = [result for result in results if result.state != OUT]
    yield f"found {_of(hits, results)} of all, {_of(hits, reached)} of those in reach"
    if hits:
        cases, seconds = median(result.case for result in hits), median(result.seconds for result in hits)
        yield f"median: case {cases:g}, {seconds:.0f} s"
        first = [result for result in hits if result.rank == 1]
        within = [result for result in hits if 0 < result.rank <= MOST]
        yield (
            f"diagnosis: a function that the fix changed comes first in {_of(first, hits)}, among the first {MOST} "
            f"in {_of(within, hits)}"
        )


def _of(some: Sequence[Result], every: Sequence[Result]) -> str:
    return f"{len(some)} of {len(every)}" + (f" ({100 * len(some) / len(every):.0f} %)" if every else "")


def markdown(rows: Sequence[Row], results: Sequence[Result], how: str) -> str:
    """how: with which cases and seed it was run."""
    by_id = {row.id: row for row in rows}
    parts = [
        "# Recall",
        how,
        "",
        *totals(results),
        "",
        "| family | found | missed | out of reach |",
        "|---|---|---|---|",
    ]
    for family in FAMILIES:
        states = [result.state for result in results if by_id[result.row].family == family]
        if states:
            parts.append(f"| {family} | {states.count(FOUND)} | {states.count(MISSED)} | {states.count(OUT)} |")
    parts += [
        "",
        "| bug | family | runner | blind | outcome | case | seconds | first wrong | guess |",
        "|" + "---|" * 9,
    ]
    for result in results:
        row = by_id[result.row]
        runner = f"{row.runner}/{row.backend}" if row.is_in_reach else ""
        outcome = f"{result.oracle}: {result.where}" if result.state == FOUND else result.error or result.state
        figures = (f"{result.case}", f"{result.seconds:.0f}") if result.state == FOUND else ("", "")
        cells = (row.name, row.family, runner, "yes" if row.blind else "no", outcome, *figures, result.first)
        rank = str(result.rank or "-") if result.state == FOUND else ""
        parts.append(f"| {' | '.join(cell.replace('|', '/') for cell in (*cells, rank))} |")
    return "\n".join(parts) + "\n"
