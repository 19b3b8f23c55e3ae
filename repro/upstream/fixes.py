"""The table of upstream fixes, read from repro/fixes, a file each named by the number of its pull request: which
release has the bug last and which first has the fix, what shows it, and how to take the fix back out of a release."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.upstream.edits import Edit

_REPRO = Path(__file__).resolve().parents[1]
SEEDS = _REPRO / "seeds"
# The newest release of which it is known how to take them out.
NEWEST = "0.5.15.post1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revert:
    """The edits that take a fix out of these releases: exactly its effect, and nothing that came with it but is off by
    default (probes) or is text."""

    releases: tuple[str, ...]
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One runner on which a fix is shown. seed: a file in repro/seeds. oracle: the one that must fail where the fix
    is not. engines: those on which the path runs; elsewhere: why it does not on the others. chains: whether the buggy
    release has this runner for topk 1 only. neighbours: oracles that fail in this seed for another bug, a known one,
    which is there with and without the fix."""

    runner: str
    seed: str
    oracle: str
    backend: str = "triton"
    engines: tuple[str, ...] = ("emulated", "cuda")
    elsewhere: str = ""
    chains: bool = False
    neighbours: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A merged pull request of sglang. buggy: the last release without it; fixed: the first one with it."""

    number: int
    title: str
    buggy: str
    fixed: str
    proofs: tuple[Proof, ...]
    removals: tuple[Revert, ...]

    def edits(self, release: str) -> tuple[Edit, ...]:
        """The edits that take the fix out of this release; of one that no removal names, those of the newest ones."""
        for removal in self.removals:
            if release in removal.releases:
                return removal.edits
        return self.removals[-1].edits


def not_covered(proof: Proof, engine: str, runners: Collection[str], oracles: Collection[str], stored: bool) -> str:
    """Why this proof cannot be given; empty if it can. stored: whether it is to be given by its stored seed."""
    if engine not in proof.engines:
        return f"not on the {engine} engine: {proof.elsewhere}"
    absent = [
        *([f"runner {proof.runner}"] if proof.runner not in runners else []),
        *([f"oracle {proof.oracle}"] if proof.oracle not in oracles else []),
        *([f"seed {proof.seed}"] if stored and not (SEEDS / proof.seed).is_file() else []),
    ]
    return f"not covered yet: {', '.join(absent)} missing" if absent else ""


def _fix(path: Path) -> Fix:
    row = tomllib.loads(path.read_text(encoding="utf-8"))
    removals = (
        Revert(releases=tuple(part["releases"]), edits=tuple(Edit(**edit) for edit in part["edit"]))
        for part in row.pop("removal")
    )
    proofs = (Proof(**{name: _frozen(value) for name, value in part.items()}) for part in row.pop("proof"))
    return Fix(number=int(path.stem), **row, proofs=tuple(proofs), removals=tuple(removals))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


FIXES = tuple(map(_fix, sorted((_REPRO / "fixes").glob("*.toml"))))
