"""Checks that a command refuses bad input with one clear line and exit code 3."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence

from repro.traces.exit_codes import ExitCode


def refusal(main: Callable[[Sequence[str]], int], *words: object) -> str:
    """The one line with which this command ends; it neither prints nor does anything else."""
    printed, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
        code = main([str(word) for word in words])
    lines = complained.getvalue().splitlines()
    assert (code, len(lines), printed.getvalue()) == (ExitCode.ERROR, 1, ""), (code, lines, printed.getvalue())
    assert lines[0].startswith("error: ") and len(lines[0]) < 2100
    return lines[0].removeprefix("error: ")
