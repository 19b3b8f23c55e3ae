"""The exit codes of all commands, in one table that scripts may rely on. docs/commands.md shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from repro.traces.finding import Status


class ExitCode(IntEnum):
    PASS = 0
    FAIL = 1
    UNKNOWN = 2
    ERROR = 3  # the harness, its environment or its input


# Rising: an error of the harness outweighs a finding, a finding a doubt, a doubt a pass.
_SEVERITY = (ExitCode.PASS, ExitCode.UNKNOWN, ExitCode.FAIL, ExitCode.ERROR)


def of_status(status: Status | None) -> ExitCode:
    """The exit code for a case that came to this; UNKNOWN if no run took place."""
    return ExitCode.UNKNOWN if status is None else ExitCode[status.name]


def severest(codes: Iterable[int]) -> ExitCode:
    """The exit code for all of these together; PASS if there are none."""
    return max(map(ExitCode, codes), key=_SEVERITY.index, default=ExitCode.PASS)


# The meanings of 0, 1 and 2 for each command; empty where a command never ends with that code. 3 is ERROR for all.
_CAMPAIGN = ("every campaign judged cases, and none failed", "a failure was found", "a campaign judged nothing")
_REPLAY = ("every case passed", "an oracle failed", "a case could not be judged")
_DONE = ("done", "", "")
_HANDED_OVER = ("the file did what it says in every run", "it did not, and is not handed over", "")
MEANINGS: Mapping[str, tuple[str, str, str]] = {
    "fuzz run": _CAMPAIGN,
    "fuzz hunt": _CAMPAIGN,
    "fuzz bench": _CAMPAIGN,
    "fuzz check": (
        "nothing new fails, and every runner was judged",
        "the change brings a failure",
        "a runner was not judged, or a failure did not come back (`--unknown` makes it 0 or 1)",
    ),
    "fuzz mutate": (
        "every mutant was killed or is kept as equivalent",
        "a mutant survived, or one kept as equivalent was killed",
        "no mutant could be tried",
    ),
    "fuzz recall": ("every bug in reach was found", "a bug was missed", "no bug is in reach"),
    "repro run": _REPLAY,
    "repro concerns": (
        "listed; with `--run`: every seed passed",
        "with `--run`: a seed failed",
        "with `--run`: a seed could not be judged",
    ),
    "repro settings": _DONE,
    "repro case": ("the case was written", "", ""),
    "repro judge": _REPLAY,
    "repro shrink": ("the case does not fail", "the case fails; the smallest one is stored", "it could not be judged"),
    "repro show": ("every seed can be read", "", ""),
    "repro check": ("every seed is valid", "", ""),
    "repro paths": _DONE,
    "repro schema": _DONE,
    "repro fixes": ("every proof holds", "a proof does not hold", "a proof is not covered here"),
    "repro repairs": ("every patch removes its failure", "a patch does not", ""),
    "repro fidelity": ("the targets agree", "the targets disagree", "nothing could be compared"),
    "repro bisect": ("the range was found", "", "the case passes wherever it can be run"),
    "repro first": ("the case passes", "the case fails; the first wrong value was named", "it could not be judged"),
    "repro explain": ("the case passes", "the case fails; the table was shown", "it could not be judged"),
    "repro test": (
        "every named seed is fixed, and nothing is worse",
        "a seed is not fixed, or something is worse",
        "a named seed passes without the patch",
    ),
    "repro script": _HANDED_OVER,
    "repro export": _HANDED_OVER,
    "repro ledger": _DONE,
    "runners install": _DONE,
    "runners list": _DONE,
    "runners doctor": ("a release can be used", "", ""),
    "runners environment": _DONE,
    "runners bundle": _DONE,
    "runners unpack": _DONE,
    "runners facts": _DONE,
    "runners conform": ("every runner can be driven or is unsupported", "a runner is red", ""),
    "runners path": _DONE,
    "runners record": ("the server ended with 0, and was recorded", "it ended otherwise; its last calls are kept", ""),
    "reports html": _DONE,
    "reports site": _DONE,
    "reports issue": _DONE,
    "reports summary": _DONE,
}


def table() -> str:
    """The table in Markdown."""
    rows = ["| command | 0 | 1 | 2 |", "|---|---|---|---|"]
    rows += [f"| `{command}` | {' | '.join(meanings)} |" for command, meanings in MEANINGS.items()]
    return "\n".join(rows) + "\n"
