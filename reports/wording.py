"""Words for names, numbers, commands and odd characters, the same on the page and in the terminal."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from repro.cases.places import log
from repro.commands.verbs import spelled
from repro.traces.campaign import Campaign

TEXT_CHARS_MAX = 4000  # a captured log can be a detail; a reader wants its beginning


def printable(text: str) -> str:
    """The text with everything invisible spelled out: control and escape codes, direction marks, half characters.

    Line breaks stay. What comes out can be encoded and neither moves a cursor nor reorders its neighbours.
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def storable(text: str) -> str:
    """The text as UTF-8 can hold it: half characters, which a log may have, are spelled out."""
    return text.encode(errors="backslashreplace").decode()


def one_line(text: str) -> str:
    """The text printable, on one line, for a terminal or a log."""
    return log(printable(text).replace("\n", " "))


def shortened(text: str, length: int = TEXT_CHARS_MAX) -> str:
    """The text, cut to a length with a mark that it was."""
    return text if len(text) <= length else text[: length - 3] + "..."


def counted(number: int, noun: str, plural: str = "") -> str:
    """1 case, 2 cases, 1,000 cases."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """A time to three digits or so: 0.42 s, 8.3 s, 61 s, 12 min."""
    if seconds >= 600:
        return f"{seconds / 60:,.0f} min"
    if seconds >= 60:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"


def share(part: float, whole: float) -> str:
    """A percentage that never rounds something to nothing or nearly all to all."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    if 0 < percent < 1:
        return "<1%"
    return ">99%" if 99 < percent < 100 else f"{percent:.0f}%"


def stale(campaigns: Sequence[Campaign]) -> dict[str, int]:
    """Stale values without a known reader, with their place and number of cases, most often first."""
    total: Counter[str] = Counter()
    for campaign in campaigns:
        total.update({f"{value} ({campaign.runner}/{campaign.backend})": n for value, n in campaign.stale.items()})
    return dict(total.most_common())


def listed(texts: list[str]) -> str:
    """a, b and c."""
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1]


def rate(campaign: Campaign) -> str:
    """Cases a second over the whole campaign, shrinking and confirming included."""
    return per_second(campaign.cases / campaign.seconds) if campaign.seconds else "-"


def per_second(number: float) -> str:
    """5.1, or 0.003: a rate that is not none never reads as none."""
    return f"{number:.1f}" if number >= 0.1 or not number else f"{number:.1g}"


def pace(number: int, seconds: float) -> str:
    """Cases in a time: 5.1/s, or 0.4 a minute where that says more."""
    rate = number / seconds if seconds else 0.0
    return f"{rate:.1f}/s" if rate >= 0.2 or not rate else f"{60 * rate:.1f} a minute"


def bug_name(oracle: str, where: str) -> str:
    """The name of a finding: the oracle, and the place if it named one."""
    return f"{oracle}: {where}" if where else oracle


def replay_command(seed: str, target: str, python: str = "python") -> str:
    """The command that replays a seed, quoted for the shell. python: the interpreter of a checkout, as it is typed."""
    command = spelled(f"python -m repro run {shlex.quote(seed)} --target {shlex.quote(target)}")
    return command.replace("python ", f"{shlex.quote(python)} ", 1) if command.startswith("python ") else command
