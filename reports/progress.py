"""A campaign as it goes: a live line on a terminal, else a plain line now and then; findings when they change."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from reports.wording import counted, duration, one_line, pace
from repro.traces.campaign import CampaignFinding, Progress

PLAIN_EVERY = 5.0  # seconds between plain lines: enough to see life, few enough to read a log
LIVE_PER_SECOND = 8


class Screen(Console):
    """Standard output, for which a reader that has left is an error like others: rich would exit with status 1,
    which here means that a bug was found."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Display:
    """Use it in a with statement. On a terminal the last line is rewritten in place; otherwise lines are only added."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._live = Live(console=console, refresh_per_second=LIVE_PER_SECOND, transient=True)
        self._told: dict[tuple[str, str], str] = {}
        self._last = float("-inf")

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def line(self, text: str) -> None:
        """A line that stays."""
        # As Text, not as markup: what a failure says may contain square brackets.
        self._console.print(Text(one_line(text)), soft_wrap=True)

    def tell(self, progress: Progress) -> None:
        """Show where a campaign is."""
        for finding in progress.findings:
            self._found(finding)
        text = line(progress)
        if self._live.is_started:
            self._live.update(Text(text))
        elif self._clock() - self._last >= PLAIN_EVERY:
            self._last = self._clock()
            self.line(text)

    def _found(self, result: CampaignFinding) -> None:
        """Say it once when it is first seen and once when it is settled; not at every step of shrinking."""
        settled = f"failed {result.failed} of {result.tried} runs in fresh processes" if result.tried else "found"
        key = (result.target, result.fingerprint)
        if self._told.get(key) != settled and (result.tried or key not in self._told):
            self._told[key] = settled
            self.line(finding(result, settled))


def line(progress: Progress) -> str:
    """0.5.13/emulated: 81 cases, 5.1/s, 202 replays, transitions 34 of 61, 0 findings; running."""
    if not progress.cases:
        return one_line(f"{progress.target}: no case yet, {duration(progress.seconds)}; {progress.doing}")
    return one_line(
        f"{progress.target}: {counted(progress.cases, 'case')}, {pace(progress.cases, progress.seconds)}, "
        f"{counted(progress.replays, 'replay')}, "
        f"transitions {progress.transitions} of {progress.transitions_possible}, "
        f"{counted(len(progress.findings), 'finding')}, {duration(progress.seconds)}; {progress.doing}"
    )


def finding(result: CampaignFinding, state: str) -> str:
    """A line on a finding: oracle, place, size of its case, and the file that it is stored in."""
    requests = sum(len(step.requests) for step in result.case.steps)
    size = f"{counted(len(result.case.steps), 'step')}, {counted(requests, 'request')}"
    more = f", {counted(len(result.consequences), 'consequence')}" if result.consequences else ""
    failure = f"{result.target} {result.oracle} {result.fingerprint}"
    return f"{failure} {state}: {result.where}{more} ({size}) {result.seed}"
