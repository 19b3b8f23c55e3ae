"""The cost of opening a session, part by part: openings that were timed, and the table of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from repro.traces.trace import Termination, Trace

# What the stages of a timed session begin with (runners/sessions/opening.py says the same), and what of the whole time
# no session saw: the fork, and the way there and back.
OPENING, CASE, OUTSIDE = "opening: ", "case: ", "process"
# Of a process that has served another setup: letting go of that.
CLOSE = "close"
FIRST, SECOND = "first case", "second case"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """One session of a setup. whole: seconds from asking for the first case to its end. parts: of them, by part;
    `first case` is what that case took besides its parts in compilers. second: seconds of the next case. ended, what:
    how the first one did."""

    setup: str
    whole: float
    second: float
    parts: dict[str, float] = field(default_factory=dict)
    ended: str = str(Termination.DONE)
    what: str = ""

    @classmethod
    def of(cls, setup: str, first: Trace, whole: float, second: float) -> Opening:
        """The opening of the first case's trace and these times."""
        parts: defaultdict[str, float] = defaultdict(float)
        for stage, seconds in first.seconds.items():
            if stage.startswith(OPENING):
                parts[stage.removeprefix(OPENING)] += seconds
            elif stage.startswith(CASE):
                part = stage.removeprefix(CASE)
                parts[FIRST if part == "other" else f"{part} in it"] += seconds
            elif stage == CLOSE:
                parts[CLOSE] += seconds
        parts[OUTSIDE] = whole - sum(parts.values())
        return cls(
            setup=setup,
            whole=whole,
            second=second,
            parts=dict(parts),
            ended=str(first.ended.how),
            what=first.ended.what,
        )

    @property
    def ran(self) -> bool:
        """True if the first case was run, so that the times are those of an opening."""
        return self.ended == Termination.DONE

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("setup", "whole", "second", "parts", "ended", "what")}


def table(name: str, openings: Sequence[Opening]) -> list[str]:
    """The mean and the largest of each part, the largest means first."""
    done = [opening for opening in openings if opening.ran]
    others = [f"  {opening.ended}: {opening.what}" for opening in openings if opening not in done]
    if not done:
        return [f"{name}: none of {len(openings)} sessions ran its first case", *others]
    names = {part for opening in done for part in opening.parts}
    rows = {part: [opening.parts.get(part, 0.0) for opening in done] for part in names}
    rows["whole"] = [opening.whole for opening in done]
    rows[SECOND] = [opening.second for opening in done]
    order = sorted(rows, key=lambda part: -sum(rows[part]))
    lines = [f"{name}: {len(done)} of {len(openings)} sessions ran their first case; seconds, mean and largest"]
    return lines + others + [f"  {part:28}{sum(rows[part]) / len(done):8.3f}{max(rows[part]):8.3f}" for part in order]
