"""The lines of sglang that cases run, by date and by file, as far as campaigns noted them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from repro.ledger.read import History
from repro.traces.campaign import Campaign
from repro.traces.line_ranges import line_numbers, line_ranges

DAYS_MAX = 60
_Numbers = dict[str, frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Covering:
    """The lines of one run on a target. files: of which a line ran. ran, every: lines of their functions that ran, and
    all. new: that no earlier run on this target had. so_far: lines that this run or an earlier one had."""

    day: str
    target: str
    cases: int
    files: int
    ran: int
    every: int
    new: int
    so_far: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLines:
    """A file on a target, over all runs. missing: lines of its functions that no run had, as text."""

    target: str
    file: str
    ran: int
    every: int
    missing: str


def lines_run(campaigns: Iterable[Campaign]) -> tuple[int, int]:
    """The numbers of lines of functions that these campaigns ran, and that the files have of which they ran any."""
    ran, every = _sets(campaigns)
    return _total(ran), _total(every)


def by_date(history: History) -> tuple[Covering, ...]:
    """Latest first."""
    campaigns: dict[tuple[str, str], list[Campaign]] = {}
    for entry in history.campaigns:
        if entry.campaign.lines:
            campaigns.setdefault((entry.run, str(entry.campaign.target)), []).append(entry.campaign)
    before: dict[str, _Numbers] = {}
    collected = []
    for run in sorted(history.runs, key=lambda run: run.started):
        for target in sorted(target for of_run, target in campaigns if of_run == run.id):
            of_target = campaigns[run.id, target]
            ran, every = _sets(of_target)
            earlier = before.get(target, {})
            before[target] = _joined([earlier, ran])
            so_far = _total(before[target])
            collected.append(
                Covering(
                    day=run.started[:10],
                    target=target,
                    cases=sum(campaign.cases for campaign in of_target),
                    files=len(every),
                    ran=_total(ran),
                    every=_total(every),
                    new=so_far - _total(earlier),
                    so_far=so_far,
                )
            )
    return tuple(reversed(collected[-DAYS_MAX:]))


def by_file(history: History) -> tuple[FileLines, ...]:
    """Files with most missing lines first, over all runs."""
    of_targets: dict[str, list[Campaign]] = {}
    for entry in history.campaigns:
        of_targets.setdefault(str(entry.campaign.target), []).append(entry.campaign)
    rows = []
    for target, campaigns in of_targets.items():
        ran, every = _sets(campaigns)
        rows += [
            FileLines(
                target=target,
                file=file,
                ran=len(ran[file]),
                every=len(numbers),
                missing=line_ranges(numbers - ran[file]),
            )
            for file, numbers in every.items()
        ]
    return tuple(sorted(rows, key=lambda row: (row.target, row.ran - row.every, row.file)))


def _sets(campaigns: Iterable[Campaign]) -> tuple[_Numbers, _Numbers]:
    """The lines of functions that ran, and all of them, by file. A file's other lines, which its import ran, do not
    count."""
    campaigns = list(campaigns)
    ran = _joined(map(_numbers, (campaign.lines for campaign in campaigns)))
    missed = _joined(map(_numbers, (campaign.lines_missing for campaign in campaigns)))
    return ran, {file: numbers | missed.get(file, frozenset()) for file, numbers in ran.items()}


def _numbers(texts: Mapping[str, str]) -> _Numbers:
    return {file: line_numbers(text) for file, text in texts.items()}


def _joined(every: Iterable[_Numbers]) -> _Numbers:
    together: _Numbers = {}
    for lines in every:
        for file, numbers in lines.items():
            together[file] = together.get(file, frozenset()) | numbers
    return together


def _total(lines: _Numbers) -> int:
    return sum(map(len, lines.values()))
