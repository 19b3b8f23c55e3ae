"""The exit code of a campaign command, and one line for each error of the harness."""

from __future__ import annotations

from collections.abc import Sequence

from repro.commands.cli import complain
from repro.traces.campaign import Campaign, Replay
from repro.traces.exit_codes import ExitCode


def exit_code(campaigns: Sequence[Campaign], replays: Sequence[Replay] = ()) -> ExitCode:
    """An error of the harness outweighs a finding, and a clean answer needs every campaign to have judged something."""
    for done in campaigns:
        if done.error:
            complain(f"{done.target}: {done.error}")
        if done.errors:
            reason, _ = max(done.errors.items(), key=lambda item: item[1])
            count = sum(done.errors.values())
            complain(f"{done.target}: {count} run{'s' if count > 1 else ''} could not be made: {reason}")
    if any(done.error or done.errors for done in campaigns) or any(replay.errors for replay in replays):
        return ExitCode.ERROR
    if any(done.findings for done in campaigns):
        return ExitCode.FAIL
    return ExitCode.PASS if campaigns and all(done.judged for done in campaigns) else ExitCode.UNKNOWN
