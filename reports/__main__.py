"""python -m reports: the HTML report and the summary of what campaigns recorded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from reports import html, terminal
from reports.wording import one_line, shortened
from repro.durable import write_text
from repro.record import BadRecord, Campaign, Replay, loads

TROUBLE = 3  # exit code for bad input and our own errors; 0, 1 and 2 are verdicts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. 0: done, whatever the report says; 3: something could not be read or written."""
    parsed = _parser().parse_args(arguments)
    try:
        campaigns, replays = read(parsed.campaigns)
        if parsed.command == "html":
            write_text(parsed.out, html.render(campaigns, replays))
            print(parsed.out)
        else:
            console = Console()
            terminal.show(console, campaigns, replays)
            terminal.show_verdicts(console, campaigns)
    except BadRecord as error:
        return _trouble(str(error))
    except OSError as error:
        return _trouble(f"{error.filename or parsed.out}: {error.strerror or error}")
    return 0


def read(paths: Sequence[Path]) -> tuple[list[Campaign], list[Replay]]:
    """The campaigns and replays of all files together. BadRecord, naming the file, if one is not a record."""
    campaigns: list[Campaign] = []
    replays: list[Replay] = []
    for path in paths:
        try:
            more_campaigns, more_replays = loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BadRecord(f"{path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise BadRecord(f"{path}: not UTF-8 text, from byte {error.start} on") from error
        except BadRecord as error:
            raise BadRecord(f"{path}: {error}") from error
        campaigns += more_campaigns
        replays += more_replays
    return campaigns, replays


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        """A wrong command line is bad input: exit 3, not argparse's 2, which here means UNKNOWN."""
        raise SystemExit(_trouble(f"{message}; see python -m reports --help"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m reports", description="Tell people what campaigns found.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    page = commands.add_parser("html", help="write one self-contained HTML file")
    page.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to write the report")
    summary = commands.add_parser("summary", help="print what was run and found")
    for command in (page, summary):
        command.add_argument(
            "campaigns", type=Path, nargs="+", metavar="CAMPAIGN.json", help="what python -m fuzz run --json wrote"
        )
    return parser


def _trouble(text: str) -> int:
    print(f"reports: {shortened(one_line(text), 500)}", file=sys.stderr)
    return TROUBLE


if __name__ == "__main__":
    sys.exit(main())
