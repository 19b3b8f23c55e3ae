"""The causes of a check as annotations of a pull request: lines that GitHub's runner reads in the log."""

from __future__ import annotations

from collections.abc import Iterator

from fuzz.check.guard import Checked
from fuzz.check.summary import sentences
from repro.cases.places import annotation


def github_errors(checked: Checked) -> Iterator[str]:
    for cause in checked.causes:
        line = cause.location
        place: dict[str, str | int] = {"file": checked.names.path(line), "line": line.line} if line else {}
        text = " ".join((*sentences(cause), f"Replay: {checked.replay(cause)}"))
        yield annotation(text, **place, title=f"eagleeye: {cause.first.oracle}")
