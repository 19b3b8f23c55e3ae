"""python -m reports: the HTML report, a static site, issue texts, the summary, and tables for others' tools, of a
ledger or of single campaigns."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from reports import html, issue, site, terminal
from reports.export import KINDS, CannotExport, export
from reports.frames import CaseTuple
from reports.issue import CannotTell
from reports.markdown import markdown
from reports.records import read_records
from reports.subjects import subjects
from reports.wording import one_line, shortened
from repro.cases.atomic_file import write_text
from repro.cases.codec import BadSeed
from repro.ledger.known import BadIssues, Issue, load
from repro.ledger.read import History, read
from repro.ledger.schema import BadLedger
from repro.traces.campaign import BadRecord

TROUBLE = 3  # exit code for bad input and our own errors; 0, 1 and 2 are verdicts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. 0: done, whatever the report says; 3: something could not be read or written."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "issue":
            print(_issue(options), end="")
            return 0
        if bool(options.ledger) == bool(options.campaigns):
            return _trouble("expected either --ledger DB or what python -m fuzz run --json wrote, and not both")
        history = read(options.ledger) if options.ledger else read_records(options.campaigns)
        cases = history.case_rows() if options.ledger else ()
        issues = load()
        if options.command == "html":
            write_text(options.out, html.render(history, cases, issues))
            print(options.out)
        elif options.command == "site":
            print(site.write(history, options.out, issues)[0])
        else:
            _summary(options, history, cases, issues)
    except (BadRecord, BadLedger, BadIssues, CannotExport, BadSeed, CannotTell) as error:
        return _trouble(str(error))
    except OSError as error:
        return _trouble(f"{error.filename or options.ledger or ''}: {error.strerror or error}".removeprefix(": "))
    return 0


def _issue(options: argparse.Namespace) -> str:
    """The text of an issue: of a seed file, or of what a ledger holds under this name."""
    history = read(options.ledger) if options.ledger else None
    candidates = issue.candidates(subjects(history, load()), Path(options.finding).stem) if history else []
    texts = {
        name: path.read_text() if (path := getattr(options, name)) else ""
        for name in ("first", "script", "patch", "test")
    }
    return issue.issue(issue.material(options.finding, candidates, options.range, seen_on=options.seen_on, **texts))


def _summary(
    options: argparse.Namespace, history: History, cases: Iterable[CaseTuple], issues: Sequence[Issue]
) -> None:
    chosen = {kind: getattr(options, kind) for kind in KINDS if getattr(options, kind)}
    # Asked for twice, the cases are read twice: they may be more than fit.
    for kind, folder in chosen.items():
        for path in export(history, history.case_rows() if options.ledger else cases, kind, folder, issues):
            print(path)
    if options.markdown:
        print(markdown(history, issues), end="")
    elif not chosen:
        terminal.show(Console(), history, issues)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """A wrong command line is bad input: exit 3, not argparse's 2, which here means UNKNOWN."""
        raise SystemExit(_trouble(f"{message}; see python -m reports --help"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m reports", description="Report what was run and found.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    page = commands.add_parser("html", help="write one self-contained HTML file")
    page.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to write the report")
    pages = commands.add_parser("site", help="write a small static site: an index, a page a finding, badges")
    pages.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of the site")
    text = commands.add_parser("issue", help="print a finding as an issue for sglang's maintainers, in Markdown")
    text.add_argument("finding", metavar="SEED.json|FINGERPRINT", help="a seed file, or a name in the ledger")
    text.add_argument("--ledger", type=Path, metavar="DB", help="where it fails, as far as this ledger knows")
    text.add_argument("--seen-on", default="", metavar="T", help="RELEASE/ENGINE, if not that on which it was found")
    text.add_argument("--range", type=Path, metavar="OUT.json", help="what python -m repro bisect --json wrote")
    for name, meaning in (
        ("first", "what python -m repro first printed"),
        ("script", "what python -m repro script wrote"),
        ("patch", "a candidate patch"),
        ("test", "what python -m repro export wrote"),
    ):
        text.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"put in: {meaning}")
    summary = commands.add_parser("summary", help="print what was run and found, or write it as tables")
    summary.add_argument("--markdown", action="store_true", help="for a pull request or a chat")
    for kind in KINDS:
        meaning = f"write every table as a {kind} file into this folder"
        summary.add_argument(f"--{kind}", type=Path, metavar="DIR", help=meaning)
    for command in (page, pages, summary):
        command.add_argument("--ledger", type=Path, metavar="DB", help="all that is in this ledger")
        command.add_argument(
            "campaigns", type=Path, nargs="*", metavar="CAMPAIGN.json", help="what python -m fuzz run --json wrote"
        )
    return parser


def _trouble(text: str) -> int:
    print(f"reports: {shortened(one_line(text), 500)}", file=sys.stderr)
    return TROUBLE


if __name__ == "__main__":
    sys.exit(main())
