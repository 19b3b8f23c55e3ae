"""python -m reports: the HTML report, a static site, issue texts, the summary, and tables for others' tools, of a
ledger or of single campaigns."""

from __future__ import annotations

from repro.commands.interrupts import while_imported

if __name__ == "__main__":
    while_imported()  # first of all: the imports below take a second

import argparse
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from reports import html, issue, site, terminal
from reports.export import KINDS, CannotExport, export
from reports.frames import CaseTuple
from reports.issue import CannotTell
from reports.markdown import markdown
from reports.records import read_records
from reports.subjects import subjects
from repro.cases.atomic_file import write_text
from repro.cases.bounded_file import read_text
from repro.cases.codec import BadSeed
from repro.cases.places import log
from repro.commands.cli import BadInput, Parser, ended
from repro.ledger.known import BadIssues, Issue, load
from repro.ledger.read import History, read
from repro.ledger.schema import BadLedger
from repro.traces.exit_codes import ExitCode
from repro.traces.typed import BadRecord


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of one command: PASS, whatever the report says, or ERROR."""
    refusals = (BadRecord, BadLedger, BadIssues, CannotExport, BadSeed, CannotTell)
    return ended(partial(carry_out, arguments), *refusals)


def carry_out(arguments: Sequence[str] | None) -> ExitCode:
    options = parser().parse_args(arguments)
    if options.command == "issue":
        print(log(_issue(options)), end="")
        return ExitCode.PASS
    if bool(options.ledger) == bool(options.campaigns):
        raise BadInput("expected either --ledger DB or what python -m fuzz run --json wrote, and not both")
    history = read(options.ledger) if options.ledger else read_records(options.campaigns)
    cases = history.case_rows() if options.ledger else ()
    issues = load()
    if options.command == "html":
        write_text(options.out, html.render(history, cases, issues))
        print(options.out)
    elif options.command == "site":
        print(site.write(history, options.out, issues, cases)[0])
    else:
        _summary(options, history, cases, issues)
    return ExitCode.PASS


def _issue(options: argparse.Namespace) -> str:
    """The text of an issue: of a seed file, or of what a ledger holds under this name."""
    history = read(options.ledger) if options.ledger else None
    candidates = issue.candidates(subjects(history, load()), Path(options.finding).stem) if history else []
    texts = {
        name: read_text(path, issue.BYTES_MAX) if (path := getattr(options, name)) else ""
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


def parser() -> Parser:
    top = Parser(prog="python -m reports", description="Show what was run and found.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    page = commands.add_parser("html", help="write one self-contained HTML file")
    page.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to write the report")
    pages = commands.add_parser("site", help="write a small static site: an index, a page a finding, badges")
    pages.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of the site")
    text = commands.add_parser("issue", help="print a finding as an issue for sglang's maintainers, in Markdown")
    text.add_argument("finding", metavar="SEED.json|FINGERPRINT", help="a seed file, or a name in the ledger")
    text.add_argument("--ledger", type=Path, metavar="DB", help="the ledger that says where it fails")
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
        command.add_argument("--ledger", type=Path, metavar="DB", help="report everything in this ledger")
        command.add_argument(
            "campaigns", type=Path, nargs="*", metavar="CAMPAIGN.json", help="records of python -m fuzz run --json"
        )
    return top


if __name__ == "__main__":
    sys.exit(main())
