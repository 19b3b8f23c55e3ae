"""Exit codes: one table names every command, the docs show it, and every command returns nothing else."""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Callable

import pytest

from fuzz import __main__ as fuzz
from fuzz.check.command import command_check
from fuzz.commands import night, slot
from fuzz.mutation.command import mutate
from reports import __main__ as reports
from repro import __main__ as repro
from repro.traces.exit_codes import MEANINGS, ExitCode, of_status, severest, table
from repro.traces.finding import Status
from runners import __main__ as runners
from tests.builders.command_parsers import PARSERS, commands_of
from tests.builders.project import PROJECT

DOCS = PROJECT / "docs" / "commands.md"
HIDDEN = {"fuzz slot"}  # only other commands start them


def test_every_command_is_in_the_table() -> None:
    commands = {f"{name} {command}" for name, parser in PARSERS.items() for command in commands_of(parser())}
    assert commands - HIDDEN == set(MEANINGS)


def test_the_docs_show_the_table() -> None:
    assert table() in DOCS.read_text()


@pytest.mark.parametrize(
    "command",
    [
        *fuzz.CAMPAIGNS.values(),
        fuzz.carry_out,
        night.command,
        slot.command,
        command_check,
        mutate,
        *repro.COMMANDS.values(),
        *repro.RIGGED.values(),
        *runners.COMMANDS.values(),
        reports.carry_out,
    ],
    ids=lambda command: f"{command.__module__}.{command.__name__}",
)
def test_every_command_returns_an_exit_code_of_the_table(command: Callable[..., ExitCode]) -> None:
    """That it does so is mypy's to check; here, that it says so."""
    assert typing.get_type_hints(command)["return"] is ExitCode


def test_codes_of_statuses() -> None:
    assert [of_status(status) for status in (Status.PASS, Status.FAIL, Status.UNKNOWN, None)] == [0, 1, 2, 2]
    assert severest([2, 1]) is ExitCode.FAIL and severest([1, 3]) is ExitCode.ERROR and severest([]) is ExitCode.PASS


@pytest.mark.parametrize("main", [fuzz.main, repro.main, reports.main, runners.main])
def test_every_command_line_says_its_version(
    main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    stated = tomllib.loads((DOCS.parents[1] / "pyproject.toml").read_text())["project"]["version"]
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"eagleeye {stated}\n")
