"""Coarse names for what ended a run: the same for the same bug, whatever the addresses, sizes and line numbers."""

from __future__ import annotations

import signal
import traceback

from repro.traces.device_errors import cuda_error

# Limits of an end's text, and of the stacks in it.
_DETAIL_MAX, _STACK_MAX = 8000, 6000


def exception_name(error: BaseException) -> str:
    """The name of the CUDA error, if that is what it is; else the type of the exception, or of what it wraps."""
    return cuda_error(str(error)) or type(wrapped(error)).__name__


def wrapped(error: BaseException) -> BaseException:
    """The error that a plain Exception was raised for, if that only adds advice (sglang's capture does so); else
    itself."""
    while type(error) is Exception and (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def one_line(error: BaseException) -> str:
    """Type and first line of an exception, for a person."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__


def exception_detail(error: BaseException) -> str:
    """The traceback, from its end as much as fits; its last line says what happened and gives no advice."""
    text = "".join(traceback.format_exception(error))
    inner = wrapped(error)
    advises = inner is not error or len(str(error).splitlines()) > 1
    return tail(f"{text}{one_line(inner)}\n" if advises else text, _DETAIL_MAX)


def last_words(printed: str) -> str:
    """The end of what a process printed before it died. The list of its extension modules, which Python writes behind
    the stack, would leave no room for that."""
    lines = (line for line in printed.splitlines(keepends=True) if not line.startswith("Extension modules: "))
    text = "".join(lines)
    # Its stack begins with the innermost frame: what does not fit is left out at its end.
    begin = text.find("Fatal Python error: ")
    return tail(text if begin < 0 else text[: begin + _STACK_MAX], _DETAIL_MAX)


def exit_name(status: int) -> str:
    """A wait status in words: "exit 3" or "SIGSEGV"."""
    if not status & 0x7F:
        return f"exit {status >> 8}"
    number = status & 0x7F
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def tail(text: str, length: int) -> str:
    """The end of a text, cut at a line where one is near."""
    if len(text) <= length:
        return text
    rest = text[-length:]
    cut = rest.find("\n")
    return "..." + (rest[cut + 1 :] if 0 <= cut < length // 2 else rest)
