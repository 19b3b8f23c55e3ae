"""Texts of others as the places where they are shown can have them, a function for each kind of place. (For HTML:
reports/html.py, whose templates escape whatever they print.)"""

from __future__ import annotations

import json
import re

from repro.cases.json_parts import plain

LINE_MAX = 2000  # characters of a line that is printed
# What a CI runner takes for a command to itself: at the start of a line, also behind blanks; and, as a table may break
# a text anywhere, its own commands wherever they stand.
_COMMAND = re.compile(
    r"^[ \t]*:(?=:)"
    r"|:(?=:(?:error|warning|notice|debug|(?:end)?group|(?:add|remove)-[\w-]+|set-[\w-]+|save-state|stop-commands|echo)"
    r"(?:[ \t][^\n]*)?::)"
    r"|#(?=#(?:\w+)?\[)",
    re.MULTILINE | re.IGNORECASE,
)
# What is markup in a line of Markdown. Links need the bracket behind a text; an underscore within a name is none.
_MARKUP = re.compile(r"[\\`*<>|~$]|(?<!\w)_|_(?!\w)|(?<=\])[(\[:]|!(?=\[)|&(?=#?\w+;)|^(?:[#+=-])")
_MENTION = re.compile(r"(?<!\w)@(?=[\w-])")
_FENCE = re.compile(r"`{3,}")


def log(text: str) -> str:
    """Lines for a terminal or the log of a job, which say nothing to what reads them there."""
    return _COMMAND.sub(r"\g<0> ", text)


def log_line(text: str, length_max: int = LINE_MAX) -> str:
    """Any text as one such line, of characters that can be printed."""
    return log(plain(text, length_max))


def annotation(text: str, **properties: str | int) -> str:
    """An error for GitHub's runner, which reads it in the log of a job. properties: file, line, title."""
    parts = (f"{name}={_data(str(value), ':,')}" for name, value in properties.items())
    return f"::error {','.join(parts)}::{_data(text)}"


def _data(text: str, more: str = "") -> str:
    """A part of such a command. more: characters that end a part."""
    clean = log_line(text)
    for character in f"%{more}":
        clean = clean.replace(character, f"%{ord(character):02X}")
    return clean


def printed_json(form: object) -> str:
    """A form as JSON for a log: the same form, in other characters where they would say something there."""
    return json.dumps(form, indent=1).replace("##", "#\\u0023")


def markdown(text: str) -> str:
    """A text within a line of Markdown: nothing in it is markup, a link or a mention."""
    return _MENTION.sub("@&#8203;", _MARKUP.sub(r"\\\g<0>", log_line(text)))


def code(text: str, length_max: int = LINE_MAX) -> str:
    """A text within a line of Markdown, as code; a dash for an empty one."""
    clean = log_line(text, length_max).replace("`", "'").replace("|", "¦")
    return f"`{clean}`" if clean else "-"


def fenced(text: str, language: str = "") -> str:
    """Lines of Markdown as a block of code, which ends where the text does."""
    fence = "`" * (1 + max((len(run) for run in _FENCE.findall(text)), default=2))
    # A patch may end with an empty line of context, which is a space.
    return f"{fence}{language}\n{text.rstrip(chr(10))}\n{fence}"


def docstring(text: str) -> str:
    """A text within the docstring of a file that is filled in by names such as $title."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return re.sub(r"\$(?=[a-z_])", "$ ", " ".join(escaped.split()))
