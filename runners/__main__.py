"""python -m runners: install, list, examine and find the releases of sglang that cases are run on."""

from __future__ import annotations

from repro.commands.interrupts import while_imported

if __name__ == "__main__":
    while_imported()  # first of all: the imports below take a second

import sys
from collections.abc import Sequence

from repro.commands.cli import ended
from repro.ledger.known import BadIssues
from repro.traces.exit_codes import ExitCode
from runners.commands import conform, install, record, show
from runners.commands.options import options_of, parser
from runners.targets.environments import NotUsable
from runners.targets.install import Pip, run_command, run_pip
from runners.targets.venv import Run

__all__ = ["COMMANDS", "main", "parser"]

COMMANDS = {
    "install": install.install_releases,
    "list": show.list_releases,
    "doctor": show.doctor,
    "environment": install.make_environments,
    "bundle": install.make_bundle,
    "unpack": install.unpack_bundle,
    "facts": show.facts,
    "conform": conform.go,
    "path": show.path,
    "record": record.go,
}


def main(arguments: Sequence[str] | None = None, *, pip: Pip = run_pip, run: Run = run_command) -> int:
    """The exit code. pip, run: how packages are installed and commands are run."""

    def carry_out() -> ExitCode:
        options = options_of(arguments, pip=pip, run=run)
        return COMMANDS[options.command](options)

    # A reader that leaves early, as head does, has seen enough.
    return ended(carry_out, NotUsable, BadIssues, reader_left=ExitCode.PASS)


if __name__ == "__main__":
    sys.exit(main())
