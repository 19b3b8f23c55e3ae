"""The console command eagleeye: one name for the verbs of the four packages. It imports only what its verb needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from repro.commands.interrupts import while_imported
from repro.commands.verbs import GROUPS, NESTED, VERBS, Verb

SHELLS = ("bash", "zsh", "fish", "tcsh")
CLOSING = (
    "eagleeye VERB --help                 the options of a verb, and an example",
    "eagleeye --version                   the version",
    f"eagleeye --print-completion SHELL    completion, for a file that the shell reads: {', '.join(SHELLS)}",
    "",
    "Exit codes: 0 no failure, 1 a failure, 2 nothing judged, 3 an error of the harness or its input.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of the verb's command; PASS for help, the version and completion; ERROR for an unknown verb."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] in (["-h"], ["--help"]):
        return _help()
    from repro.commands.cli import SHOWN, ended, print_any_name  # a third of a second, which help does not need

    print_any_name()
    chosen = VERBS.get(words[0]) if words else None
    if chosen is VERBS["doctor"] and any(word.partition("=")[0] == "--like" for word in words):
        chosen = VERBS["concerns"]  # of a server's flags, not of this host
    if chosen is None:
        return ended(lambda: _without_verb(words))
    name = f"eagleeye {chosen.name}"
    before = SHOWN.set(
        {
            f"python -m {chosen.package} {chosen.command}": _shown(name, chosen.sentence, chosen.example),
            **{
                f"{name} {nested}": _shown(f"{name} {nested}", sentence, f"{name} {nested} {example}")
                for nested, (sentence, example) in NESTED.get(chosen.name, {}).items()
            },
        }
    )
    try:
        code: int = _package(chosen).main([chosen.command, *words[1:]])
        return code
    finally:
        SHOWN.reset(before)


def console() -> int:
    """main() in a process of its own."""
    while_imported()
    return main()


def _help() -> int:
    try:
        print(overview(), flush=True)
    except BrokenPipeError:  # a reader that leaves early, as head does, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def overview() -> str:
    width = max(map(len, VERBS))
    lines = [
        "usage: eagleeye VERB ...",
        "",
        "Find, reproduce and explain bugs of sglang's EAGLE/MTP CUDA-graph runners.",
    ]
    for group, verbs in GROUPS.items():
        lines += ["", f"{group}:", *(f"  {each.name:{width}}  {each.sentence}" for each in verbs)]
    return "\n".join([*lines, "", *CLOSING])


def _shown(name: str, sentence: str, example: str) -> dict[str, Any]:
    """The words of a parser that the verb has in place of those of its package's command."""
    from argparse import RawDescriptionHelpFormatter

    return {
        "prog": name,
        "description": sentence,
        "epilog": f"example: {example}",
        "formatter_class": RawDescriptionHelpFormatter,
    }


def _package(chosen: Verb) -> Any:
    return import_module(f"{chosen.package}.__main__")


def _without_verb(words: Sequence[str]) -> int:
    """PASS after the completion is printed. BadInput if the first word is no verb."""
    from difflib import get_close_matches

    from repro.commands.cli import BadInput, Parser, seed_file

    top = Parser(prog="eagleeye")
    top.add_argument("--print-completion", choices=SHELLS)
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)
    if not words:
        raise BadInput("a verb is missing (see eagleeye --help)")
    if not words[0].startswith("-"):
        names = {each.command: each.name for each in VERBS.values()} | {name: name for name in VERBS}
        close = ", ".join(dict.fromkeys(names[word] for word in get_close_matches(words[0], names)))
        raise BadInput(f"{words[0]}: no such verb{close and f'; close to it: {close}'} (see eagleeye --help)")
    shell = top.parse_args(words).print_completion
    import shtab

    for each in VERBS.values():
        command = _package(each).parser().commands.choices[each.command]
        for action in command._actions:
            if action.type in (Path, seed_file):
                action.complete = shtab.FILE
        verbs.add_parser(each.name, help=each.sentence, parents=[command], add_help=False)
    print(shtab.complete(top, shell))
    return 0
