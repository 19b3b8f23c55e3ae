"""Conclusions: three-valued verdicts, findings, and the fingerprint by which a bug is recognised."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from repro.cases.case import Case, Setup, Target

# The oracle that judges how a run ended, and where an oracle fails that raised.
ENDED, RAISED = "ended", "the oracle itself raised"
# The place of an UNKNOWN verdict: two choices are equally right as far as rounding can tell.
TIE = "tie"
# The oracle by which the float64 reference alone speaks.
REFERENCE = "reference"
# The oracles whose places do not say which of a plan's buffers is wrong, where another cause has another one.
OF_PLANS = ("kv_indices", "metadata_shape")


class Status(IntEnum):
    """Verdicts merge by max: a failure outweighs a doubt, a doubt outweighs a pass."""

    PASS = 0
    UNKNOWN = 1
    FAIL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The first wrong place: in which step, buffer, row and column; what was there and what belonged there."""

    step: int
    buffer: str
    row: int
    column: int
    got: str
    want: str

    def __str__(self) -> str:
        moment = f"step {self.step}" if self.step >= 0 else "before the first step,"
        place = f"[{self.row},{self.column}]" if self.row >= 0 else ""
        return f"{moment} {self.buffer}{place} is {self.got}, expected {self.want}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """oracle: its module's name. where: short and coarse, the same for the same bug whatever the numbers; one buffer,
    where it names a buffer. detail: one or two sentences for a person. cell: the first wrong place, where there is one.
    stale: values that the oracle let pass and of which no reader is known (repro/cases/exemptions.py).
    runner and backend: those of the setup that was judged; empty until oracles/catalogue.py has put them in."""

    oracle: str
    status: Status
    where: str = ""
    detail: str = ""
    cell: Cell | None = None
    stale: tuple[str, ...] = ()
    runner: str = ""
    backend: str = ""

    @property
    def fingerprint(self) -> str:
        """The failure's identity, in 12 hex digits."""
        buffer = self.cell.buffer if self.cell else ""
        return fingerprint(self.runner, self.backend, self.oracle, self.where, buffer)

    @property
    def name(self) -> str:
        """For a person: what failed, and where."""
        return f"{self.oracle}: {self.where}" if self.where else self.oracle

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"status": self.status.name}

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Verdict:
        cell = Cell(**form["cell"]) if form["cell"] else None
        stale = tuple(form.get("stale", ()))
        return cls(**(dict(form) | {"status": Status[form["status"]], "cell": cell, "stale": stale}))


def fingerprint(runner: str, backend: str, oracle: str, where: str, buffer: str = "") -> str:
    """The identity of a failure, never of how much or in which step: 12 hex digits. buffer: the first that was wrong,
    which tells causes apart that are seen in one place of a plan; others' is not looked at."""
    parts = [runner, backend, oracle, where, *([buffer] if buffer and oracle in OF_PLANS else [])]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def first_first(failures: Iterable[Verdict]) -> list[Verdict]:
    """Failures in the order in which values went wrong: by step, and within a step by oracle, as these come in the
    order in which a step goes, from staged inputs over plans and reads to outputs. Failures without a value come
    last."""
    return sorted(failures, key=lambda verdict: verdict.cell.step if verdict.cell else math.inf)


def worst(verdicts: Iterable[Verdict]) -> Status:
    """The merged status; UNKNOWN if there is no verdict at all."""
    return max((v.status for v in verdicts), default=Status.UNKNOWN)


def by_oracle(verdicts: Iterable[Verdict]) -> dict[str, Status]:
    """The status of each oracle, merged from its verdicts, in the order in which they came."""
    statuses: dict[str, Status] = {}
    for verdict in verdicts:
        statuses[verdict.oracle] = max(verdict.status, statuses.get(verdict.oracle, Status.PASS))
    return statuses


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A failing case on a target: `failed` of `tried` runs in fresh processes ended in this verdict. after: of one that
    showed in none of them, the setups that the process in which it did had served before; lead_up: the same case behind
    those that its session had run before it. consequences: what failed behind it, as "ORACLE: WHERE". smallest:
    shrinking ended because nothing made it smaller."""

    case: Case
    target: Target
    verdict: Verdict
    failed: int
    tried: int
    seed: str = ""
    after: tuple[Setup, ...] = ()
    lead_up: Case | None = None
    consequences: tuple[str, ...] = ()
    smallest: bool = False
