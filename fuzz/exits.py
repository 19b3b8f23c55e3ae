"""What a campaign command ends with: 0 nothing found, 1 found, 2 nothing could be judged, 3 our own error."""

from __future__ import annotations

from collections.abc import Sequence

from repro.commands.cli import complain
from repro.shrinking.replay import ERROR
from repro.traces.campaign import Campaign, Replay

FOUND, UNJUDGED = 1, 2


def exit_code(campaigns: Sequence[Campaign], replays: Sequence[Replay] = ()) -> int:
    """Our own trouble outweighs a finding, and a clean answer needs every campaign to have judged something."""
    for done in campaigns:
        if done.error:
            complain(f"{done.target}: {done.error}")
        if done.errors:
            reason, _ = max(done.errors.items(), key=lambda item: item[1])
            count = sum(done.errors.values())
            complain(f"{done.target}: {count} run{'s' if count > 1 else ''} could not be made: {reason}")
    if any(done.error or done.errors for done in campaigns) or any(replay.errors for replay in replays):
        return ERROR
    if any(done.findings for done in campaigns):
        return FOUND
    return 0 if campaigns and all(done.judged for done in campaigns) else UNJUDGED
