"""Sessions as they would be if nobody had looked at sglang after 0.5.20: its adapters drive what is newer."""

from __future__ import annotations

from repro.cases.releases import release_order
from runners.releases import catalogue

LAST = "0.5.20"
every = catalogue.first_releases


def known(folder: str) -> tuple[str, ...]:
    return tuple(first for first in every(folder) if release_order(first) <= release_order(LAST))


catalogue.first_releases = known
catalogue.NEWEST = LAST  # type: ignore[attr-defined]  # imported there, and read under this name

# Only now: it loads the adapters.
from runners.sessions.open import open_session  # noqa: E402 (after what is changed above)

__all__ = ["open_session"]
