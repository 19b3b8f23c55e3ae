"""Settings: defaults of commands' options, from a file of the project that a person works in.

The file is eagleeye.toml, or the table [tool.eagleeye] of a pyproject.toml, in this folder or the nearest one above.
EAGLEEYE_SETTINGS names another file; empty, there are none. Places in it are relative to its folder.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from repro.cases.bounded_file import read_text
from repro.cases.case import Target
from repro.cases.runner_facts import RUNNER_FACTS

VARIABLE = "EAGLEEYE_SETTINGS"
NAME, TABLE = "eagleeye.toml", "pyproject.toml"
_BYTES_MAX = 1 << 20


class BadSettings(Exception):
    """The file makes no sense. The text, one line, names the file and the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """file: where they stand; None if there are none. A key that the file does not have is empty, or None."""

    file: Path | None = None
    target: tuple[Target, ...] = ()
    runners: tuple[str, ...] = ()
    ledger: Path | None = None
    known_issues: Path | None = None


MEANINGS = {
    "target": "targets of commands that need some",
    "runners": "runners of `run` and `check`",
    "ledger": "the ledger that commands add to; the variable EAGLEEYE_LEDGER goes before it",
    "known_issues": "the file of known issues",
}


def settings() -> Settings:
    """The settings that hold in this folder. BadSettings."""
    return _settings(Path.cwd(), os.environ.get(VARIABLE))


@lru_cache(maxsize=4)
def _settings(folder: Path, named: str | None) -> Settings:
    if named == "":
        return Settings()
    for file in [Path(named)] if named else _places(folder):
        form = _form(file, missing_is_bad=bool(named))
        if form is not None:
            return _read(file, form)
    return Settings()


def _places(folder: Path) -> Iterator[Path]:
    for each in (folder, *folder.parents):
        yield each / NAME
        yield each / TABLE


def _form(file: Path, *, missing_is_bad: bool) -> Mapping[str, Any] | None:
    """The settings as they stand in this file; None if it has none."""
    try:
        form = tomllib.loads(read_text(file, _BYTES_MAX))
    except FileNotFoundError as error:
        if missing_is_bad:
            raise BadSettings(f"{VARIABLE}={file}: there is no such file") from error
        return None
    except (OSError, RecursionError, ValueError) as error:
        if file.name == TABLE:  # somebody else's
            return None
        raise BadSettings(f"{file}: {error}") from error
    if file.name != TABLE:
        return form
    tools = form.get("tool", {})
    own_table = tools.get("eagleeye") if isinstance(tools, dict) else None
    return own_table if isinstance(own_table, dict) else None


def _read(file: Path, form: Mapping[str, Any]) -> Settings:
    readers: dict[str, Callable[[Any], Any]] = {
        "target": lambda value: tuple(map(Target.parse, _texts(value))),
        "runners": lambda value: tuple(map(_runner, _texts(value))),
        "ledger": lambda value: file.parent / _text(value),
        "known_issues": lambda value: file.parent / _text(value),
    }
    values = {}
    for key, value in form.items():
        if key not in readers:
            raise BadSettings(f"{file}: {key}: no such setting{_close(key, readers)}")
        try:
            values[key] = readers[key](value)
        except ValueError as error:
            raise BadSettings(f"{file}: {key}: {error}") from error
    return Settings(file=file, **values)


def _texts(value: Any) -> list[str]:
    return [_text(item) for item in value] if isinstance(value, list) else [_text(value)]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected a text, not {value!r}")
    return value


def _runner(name: str) -> str:
    if name not in RUNNER_FACTS:
        raise ValueError(f"{name}: no such runner{_close(name, RUNNER_FACTS)}")
    return name


def _close(name: str, names: Mapping[str, object]) -> str:
    close = get_close_matches(name, names)
    return f"; did you mean {' or '.join(close)}?" if close else f"; known are {', '.join(names)}"


class Replacing(argparse.Action):
    """Appends what the command line gives, in place of what the settings say."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [values] if before is self.default else [*before, values])


def lines() -> Iterator[str]:
    """Each setting with its value and where that comes from, for a person."""
    now = settings()
    yield f"settings: {now.file or f'none: no {NAME}, and no [tool.eagleeye] in {TABLE}, here or above'}"
    width = max(map(len, MEANINGS))
    for key, meaning in MEANINGS.items():
        value = getattr(now, key)
        variable = os.environ.get("EAGLEEYE_LEDGER") if key == "ledger" else None
        shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value or "")
        source = "EAGLEEYE_LEDGER" if variable else str(now.file) if value else "not set"
        yield f"{key:{width}}  {variable or shown or '-'}  ({source}): {meaning}"
