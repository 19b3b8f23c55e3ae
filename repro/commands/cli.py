"""What the command lines of python -m fuzz and python -m repro share: what they refuse, how they speak and end."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from repro.cases.case import Target
from repro.cases.json_parts import plain
from repro.shrinking.replay import ERROR

_LINE_MAX = 2000


class BadInput(Exception):
    """What the user asked for cannot be done; the text, one line, says why."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would exit with 2, which here means UNKNOWN.
        raise BadInput(f"{message} (see {self.prog} --help)")


def target(text: str) -> Target:
    try:
        return Target.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text!r}")
    return int(text)


def count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return value


def say(text: str) -> None:
    print(plain(text, _LINE_MAX), flush=True)


def complain(text: str) -> None:
    print(f"error: {plain(text, _LINE_MAX)}", file=sys.stderr)


def ended(work: Callable[[], int], *refusals: type[Exception]) -> int:
    """The exit code of a command: its result, or ERROR and one line that says why there is none.

    refusals: exceptions besides BadInput that the user can put right; their text says how.
    """
    # A stopped job keeps what it found and ends its workers, as Ctrl-C does.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    refused: tuple[type[Exception], ...] = (BadInput, *refusals)
    try:
        return work()
    except refused as error:
        complain(str(error))
    except BrokenPipeError:
        # Whoever read our output has gone; what Python still has to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        complain(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "))
    except KeyboardInterrupt:
        complain("interrupted")
    finally:
        signal.signal(signal.SIGTERM, before)
    return ERROR
