"""Reasons why runs did not take place or could not be judged, and how often each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

# Characters of a reason that are kept.
REASON_MAX = 200


class Reasons:
    """Counts reasons that are alike but for their numbers as one, and quotes the first of them as it was. Mutable."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, reason: str, times: int = 1) -> None:
        """Count a reason, of which the first line matters."""
        line = reason.partition("\n")[0][:REASON_MAX]
        kind = re.sub(r"\d+", "#", line)
        self._first.setdefault(kind, line)
        self._counts[kind] += times

    def counted(self) -> dict[str, int]:
        """The most frequent first."""
        return {self._first[kind]: count for kind, count in self._counts.most_common()}


def merged(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The counts of several as one."""
    whole = Reasons()
    for part in parts:
        for reason, count in part.items():
            whole.add(reason, count)
    return whole.counted()
