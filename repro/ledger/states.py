"""States: what the history of a stored seed, or of a known finding, on a target comes to. Set by measurement alone:
nothing is closed by age, and a failure that comes back is open again."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from repro.ledger.read import History
from repro.ledger.rows import FINDING, CheckRow, FindingRow

NEW = "new"  # fails, and no earlier run measured it here
KNOWN = "known"  # fails as it did in an earlier run, or as the seed says that it does here
FIXED = "fixed"  # failed once and passes now
REGRESSED = "regressed"  # fails, and had passed before
FLAKY = "flaky"  # fails in some runs and not in others
PASSING = "passing"  # never failed here
CANNOT_RUN = "cannot run"  # was never measured here
STATES = (NEW, KNOWN, FIXED, REGRESSED, FLAKY, PASSING, CANNOT_RUN)
OPEN = (NEW, KNOWN, REGRESSED, FLAKY)

# How many of the last measurements say how often it fails, and whether it goes to and fro.
WINDOW = 10
# So many changes between pass and fail among them are no fix and no regression any more.
CHANGES_FLAKY = 3
# What fails at times is fixed once the runs that passed since would have shown it, but for this chance.
DOUBT_MAX = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a subject on a target. Runs are given by their ids; an empty id means that there is no such run.

    since: the run in which this state began. first_seen and last_seen: the first and last run in which it failed.
    measured: the last run in which it passed or failed. checked: the last run that tried. rate: of the last
    measurements, the share of runs that failed. why: if the last try measured nothing, the reason; the state is then
    that of the measurements before, and `cannot run` only if there are none.
    """

    subject: str
    target: str
    state: str
    since: str = ""
    first_seen: str = ""
    last_seen: str = ""
    measured: str = ""
    checked: str = ""
    rate: float = 0.0
    why: str = ""

    @property
    def open(self) -> bool:
        return self.state in OPEN


def measurements(history: History) -> list[CheckRow]:
    """All that was measured of stored seeds and of findings, in order: the checks, and what campaigns saw."""
    rows = [*history.checks, *(_check(row) for row in history.findings)]
    return sorted(rows, key=lambda row: row.at)


def _check(finding: FindingRow) -> CheckRow:
    """A campaign's finding as a check. One that was not tried in fresh processes failed when it was found."""
    came_back = finding.failed > 0 or finding.tried == 0
    return CheckRow(
        run=finding.run,
        target=finding.target,
        subject=f"{FINDING}{finding.fingerprint}",
        runner=finding.runner,
        backend=finding.backend,
        status="FAIL" if came_back else "UNKNOWN",
        fingerprint=finding.fingerprint,
        oracle=finding.oracle,
        where=finding.where,
        failed=finding.failed,
        tried=finding.tried,
        reason="" if came_back else f"seen once, and in 0 of {finding.tried} fresh processes",
        at=finding.at,
    )


def states(checks: Iterable[CheckRow]) -> Mapping[tuple[str, str], State]:
    """The state of each (subject, target), in the order in which they first appear. checks: those of the ledger, or
    its measurements(), in the order in which they were made."""
    rows: dict[tuple[str, str], list[CheckRow]] = {}
    for row in checks:
        rows.setdefault((row.subject, row.target), []).append(row)
    return {pair: state_of(history) for pair, history in rows.items()}


def state_of(history: Sequence[CheckRow]) -> State:
    """The state after these checks of one subject on one target, of which there is at least one."""
    last = history[-1]
    state = State(subject=last.subject, target=last.target, state=CANNOT_RUN, since=history[0].run)
    measured: list[CheckRow] = []
    for row in history:
        if row.status not in ("PASS", "FAIL"):
            state = replace(state, checked=row.run, why=row.reason or row.status)
            continue
        measured.append(row)
        name, recent = _next(state, measured), measured[-WINDOW:]
        fails = row.status == "FAIL"
        state = replace(
            state,
            state=name,
            since=state.since if name == state.state else row.run,
            first_seen=state.first_seen or (row.run if fails else ""),
            last_seen=row.run if fails else state.last_seen,
            measured=row.run,
            checked=row.run,
            rate=_rate(recent),
            why="",
        )
    return state


def _next(state: State, measured: Sequence[CheckRow]) -> str:
    """The state after the last of these measurements, of which `state` is what those before it came to."""
    row, recent = measured[-1], measured[-WINDOW:]
    if state.state == FLAKY:
        # It stays so until there are enough runs of one kind.
        return _after_flaky(measured)
    changed = len(measured) > 1 and measured[-2].status != row.status
    if changed and _changes(recent) >= CHANGES_FLAKY:
        return FLAKY
    if row.status == "PASS":
        return FIXED if state.open or state.state == FIXED else PASSING
    if 0 < row.failed < row.tried:
        return FLAKY
    if state.state in (PASSING, FIXED, REGRESSED):
        return REGRESSED
    known = row.expected == "FAIL" or state.state == KNOWN or (state.state == NEW and state.since != row.run)
    return KNOWN if known else NEW


def _after_flaky(measured: Sequence[CheckRow]) -> str:
    """Fixed or known if the latest measurements leave little doubt; else it is flaky still."""
    failing = [number for number, row in enumerate(measured) if row.status == "FAIL"]
    end = failing[-1] + 1
    passes = sum(_runs(row) for row in measured[end:])
    if passes:
        # How often it fails, as seen up to the last failure.
        rate = _rate(measured[max(0, end - WINDOW) : end])
        return FIXED if (1 - rate) ** passes <= DOUBT_MAX else FLAKY
    steady = len(measured) >= WINDOW and _rate(measured[-WINDOW:]) == 1
    return KNOWN if steady else FLAKY


def _rate(rows: Sequence[CheckRow]) -> float:
    return sum(_failed(row) for row in rows) / sum(_runs(row) for row in rows)


def _runs(row: CheckRow) -> int:
    return max(1, row.tried)


def _failed(row: CheckRow) -> int:
    return 0 if row.status == "PASS" else max(1, row.failed)


def _changes(rows: Sequence[CheckRow]) -> int:
    return sum(earlier.status != later.status for earlier, later in itertools.pairwise(rows))
