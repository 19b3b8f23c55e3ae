"""The style of sglang's own suite: its pre-commit hooks take a file that is written here as it is."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator

from repro.upstream.rig import Refused

# The oldest Python of its CPU runners.
PYTHON = (3, 10)
_WIDTH = 88  # black's, which formats there
_NOQA = re.compile(r"(# noqa: \w+)?(?: - |# )?(.*)")
_RULES = "I,F401,F821,UP037"  # isort, and what ruff is asked for there
_SETTINGS = (f"line-length = {_WIDTH}", 'lint.isort.known-first-party = ["sglang"]')


def in_style(text: str) -> str:
    """The same file, formatted, its imports in order. Refused if ruff is not installed or has something to say of it,
    or if that Python cannot read it."""
    try:
        ast.parse(text, feature_version=PYTHON)
    except SyntaxError as error:
        raise Refused(f"no Python {'.'.join(map(str, PYTHON))}: line {error.lineno}: {error.msg}") from error
    target = "py" + "".join(map(str, PYTHON))
    text = "".join(_with_comments_above(text))
    return _ruff("format", text=_ruff("check", "--fix", "--select", _RULES, "--target-version", target, text=text))


def _with_comments_above(text: str) -> Iterator[str]:
    """The lines, with comments that make them too long on lines of their own: there formatters agree."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = {token.start[0]: token for token in tokens if token.type == tokenize.COMMENT}
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        comment = comments.get(number)
        code = line[: comment.start[1]].rstrip() if comment else ""
        if comment is None or not code or len(line.rstrip()) <= _WIDTH:
            yield line
            continue
        match = _NOQA.fullmatch(comment.string)
        assert match is not None  # it takes any text
        mark, why = match.groups(default="")
        if why:
            yield f"{line[: len(line) - len(line.lstrip())]}# {why}\n"
        yield f"{code}{mark and '  '}{mark}\n"


def _ruff(*words: str, text: str) -> str:
    settings = [word for setting in _SETTINGS for word in ("--config", setting)]
    command = [sys.executable, "-m", "ruff", words[0], "--isolated", "--quiet", *settings, *words[1:], "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines() or [f"exit {done.returncode}"]
        missing = "No module named ruff" in done.stderr
        raise Refused("ruff is not installed: pip install -e '.[dev]'" if missing else f"ruff {words[0]}: {lines[0]}")
    return done.stdout
