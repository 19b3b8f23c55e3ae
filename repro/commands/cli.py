"""The parts that all command lines share: option types and their wording, refusals, messages, endings."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

from repro.cases.case import Target
from repro.cases.places import log_line
from repro.commands.interrupts import interruptible
from repro.commands.settings import NAME, BadSettings, Replacing, settings
from repro.commands.verbs import spelled
from repro.ledger.write import VARIABLE
from repro.traces.exit_codes import ExitCode

PLACE = re.compile(r"auto|local:[1-9][0-9]?|(?!local:)[^:/\s]+:[0-9]+")


class BadInput(Exception):
    """The command line cannot be carried out; the text, one line, says why."""


# In a target's place for a release: the one of this very environment.
HERE = "here"
# The seeds that come with eagleeye.
SEEDS = Path(__file__).resolve().parents[1] / "seeds"
# Further texts of a command's parser, by its usual name. Only the console command eagleeye sets it.
SHOWN: ContextVar[Mapping[str, Mapping[str, Any]]] = ContextVar("SHOWN", default=MappingProxyType({}))


class Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, **SHOWN.get().get(options.get("prog") or "", {})})

    def error(self, message: str) -> NoReturn:
        # argparse would exit with 2, which here means UNKNOWN.
        raise BadInput(f"{message} (see {self.prog} --help)")

    def add_subparsers(self, **options: Any) -> Any:
        self.add_argument("--version", action=_Version, nargs=0, help="print eagleeye's version")
        self.commands = super().add_subparsers(**options)
        return self.commands


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        # In a checkout its file is newer than what was installed of it.
        stated = Path(__file__).resolve().parents[2] / "pyproject.toml"
        known = tomllib.loads(stated.read_text())["project"]["version"] if stated.exists() else version("eagleeye")
        print(f"eagleeye {known}")
        parser.exit()


# A top parser's commands, to which each command's module adds its own parser.
Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def target(text: str) -> Target:
    name, separator, engine = text.partition("/")
    try:
        return Target.parse(f"{_sglang_here()}{separator}{engine}") if name == HERE else Target.parse(text)
    except PackageNotFoundError:
        raise argparse.ArgumentTypeError(f"target {text!r}: {sys.executable} imports no sglang") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _sglang_here() -> str:
    """The release of sglang that this Python imports. ValueError if it is a folder's, which a target names as such.
    PackageNotFoundError if it imports none."""
    about = distribution("sglang")
    folder = json.loads(about.read_text("direct_url.json") or "{}").get("url", "").removeprefix("file://")
    if folder.startswith("/"):
        raise ValueError(f"sglang is installed from a folder here: name it, {folder}@ENGINE")
    return about.version


def seed_file(text: str) -> Path:
    """The file of this name; if there is none, the seed of this name that comes with eagleeye."""
    ours = SEEDS / f"{Path(text).stem}.json"
    return Path(text) if Path(text).exists() or text not in (ours.stem, ours.name) or not ours.exists() else ours


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


ENGINES_DRIVEN = ("emulated", "cuda")
TARGET = "RELEASE/ENGINE or PATH@ENGINE"


def add_target(parser: Parser, meaning: str = TARGET, *, required: bool = True) -> None:
    """--target. Where one is required the settings may have it."""
    default = next(iter(settings().target if required else ()), None)
    meaning += f" (default: {default}, by {NAME})" if default else ""
    parser.add_argument(
        "--target", type=target, required=required and default is None, default=default, metavar="T", help=meaning
    )


def add_targets(parser: Parser, meaning: str = TARGET, *, required: bool = True) -> None:
    default = list(settings().target if required else ())
    meaning += "; may be repeated" + (f" (default: {', '.join(map(str, default))}, by {NAME})" if default else "")
    parser.add_argument(
        "--target",
        type=target,
        action=Replacing,
        default=default,
        required=required and not default,
        metavar="T",
        help=meaning,
    )


def add_minutes(parser: Parser, seconds: float, meaning: str) -> None:
    """--minutes, as options.seconds; and --seconds, its name before."""
    shown = f"{meaning} (default: {seconds / 60:g})"
    parser.add_argument("--minutes", type=_minutes, dest="seconds", default=seconds, metavar="M", help=shown)
    parser.add_argument("--seconds", type=positive, default=seconds, help=argparse.SUPPRESS)


def _minutes(text: str) -> float:
    return 60 * positive(text)


def add_engine(parser: Parser, meaning: str = "the engine that runs the releases") -> None:
    meaning += " (default: %(default)s)"
    parser.add_argument("--engine", choices=ENGINES_DRIVEN, default=ENGINES_DRIVEN[0], help=meaning)


def add_timeout(parser: Parser, default: float = 120.0) -> None:
    meaning = "seconds of silence that are a hang (default: %(default)g)"
    parser.add_argument("--timeout", type=positive, default=default, metavar="S", help=meaning)


def add_ledger(parser: Parser) -> None:
    meaning = f"add to this ledger (default: EAGLEEYE_LEDGER, or that of {NAME})"
    default = None if os.environ.get(VARIABLE) else settings().ledger
    parser.add_argument("--ledger", type=Path, default=default, metavar="DB", help=meaning)


def add_probes(parser: Parser) -> None:
    meaning = "turn on sglang's own probes (or EAGLEEYE_PROBES=1)"
    parser.add_argument("--probes", action="store_true", help=meaning)


def add_known_issues(parser: Parser, known: Path, meaning: str, default: Path | None = None) -> None:
    """--known-issues [FILE]; without FILE: that of the settings, else `known`; without the option: `default`, in whose
    place the settings may name another."""
    stated = settings().known_issues
    known, default = stated or known, default and (stated or default)
    parser.add_argument(
        "--known-issues", type=Path, nargs="?", const=known, default=default, metavar="FILE", help=meaning
    )


def add_tries(parser: Parser, default: int, meaning: str) -> None:
    parser.add_argument("--tries", type=count, default=default, metavar="N", help=f"{meaning} (default: {default})")


def add_seed_number(parser: Parser, default: int, condition: str = "") -> None:
    meaning = f"{condition}the number from which all cases are drawn (default: {default})"
    parser.add_argument("--seed", type=count if default else whole, default=default, metavar="N", help=meaning)


def add_json(parser: Parser, content: str) -> None:
    parser.add_argument("--json", type=Path, metavar="OUT", help=f"write {content} to this file")


def add_markdown(parser: Parser, content: str) -> None:
    parser.add_argument("--markdown", type=Path, metavar="OUT", help=f"write {content} to this file")


def add_out(parser: Parser, content: str, command: str) -> None:
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder for {content} (default: out/{command}-TIME)")


def add_cluster(parser: Parser) -> None:
    parser.add_argument(
        "--cluster",
        type=place,
        metavar="PLACE",
        help="on the nodes of a Ray cluster: auto (the one that this host is in), HOST:PORT, or local:N (N nodes here)",
    )
    parser.add_argument(
        "--slots", type=count, metavar="N", help="with --cluster: processes a node (default: one a GPU, or a core)"
    )


def place(text: str) -> str:
    """The address of a cluster."""
    if not PLACE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor HOST:PORT nor local:N")
    return text


def say(text: str) -> None:
    print(log_line(text), flush=True)


def complain(text: str) -> None:
    with contextlib.suppress(OSError):  # a terminal that is gone
        print(f"error: {log_line(spelled(text))}", file=sys.stderr)


def print_any_name() -> None:
    """Have standard output and error replace what the terminal cannot show: a file name may hold it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def ended(work: Callable[[], int], *refusals: type[Exception], reader_left: ExitCode = ExitCode.ERROR) -> int:
    """The exit code of a command: that of its work, or ERROR and one line that says why there is no result.

    refusals: exceptions besides BadInput that the user can put right; the text says how. reader_left: the exit code
    where standard output was closed by its reader.
    """
    refused: tuple[type[Exception], ...] = (BadInput, BadSettings, *refusals)
    try:
        with interruptible():
            return work()
    except refused as error:
        complain(str(error))
    except BrokenPipeError:
        # What Python still has to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return reader_left
    except OSError as error:
        complain(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "))
    except KeyboardInterrupt:
        complain("interrupted")
    except Exception as error:
        # No verdict, so never a code that says that one was reached.
        traceback.print_exc()
        complain(f"harness error: {type(error).__name__}: {error}")
    return ExitCode.ERROR
