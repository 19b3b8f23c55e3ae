"""The house's English: docstrings, names, comments and lengths, counted for each package and only allowed to fall."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator

import pytest

from tests.builders.project import PROJECT

# Relative clauses: a docstring opens with a noun phrase, a verb, or "True if".
OPENERS = ("What", "Of", "Where", "Which", "As", "Whether", "How", "By", "Those")
# Participles and pronouns: a local is named after the noun that it holds.
NAMES = frozenset(("one", "found", "told", "given", "own", "said", "asked", "wanted", "held"))
LINES_MAX = 60
BANNER = re.compile(r"\s*#.*[-=*#]{10,}\s*$")

# The lines of a module at which a rule is broken.
Check = Callable[[str], Iterator[int]]


@functools.cache
def parsed(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def relative_clauses(text: str) -> Iterator[int]:
    """Docstrings that open with one of OPENERS."""
    for node in parsed(text):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = re.match(r"\w+", ast.get_docstring(node) or "")
            if words and words.group() in OPENERS:
                yield node.body[0].lineno


def names_without_a_noun(text: str) -> Iterator[int]:
    """Parameters and bound names in NAMES."""
    for node in parsed(text):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in NAMES:
                yield node.lineno


def banners(text: str) -> Iterator[int]:
    """Comments that rule off a section: the second part wants a module of its own, or nothing."""
    return (number for number, line in enumerate(text.splitlines(), 1) if BANNER.match(line))


def long_functions(text: str) -> Iterator[int]:
    for node in parsed(text):
        match node:
            case (
                ast.FunctionDef(lineno=begin, end_lineno=int(end))
                | ast.AsyncFunctionDef(lineno=begin, end_lineno=int(end))
            ):
                if end - begin + 1 > LINES_MAX:
                    yield begin


# How often each rule is broken: a number goes down with each sentence that is mended, and never up.
COUNTS: dict[Check, dict[str, int]] = {
    relative_clauses: {"fuzz": 0, "oracles": 0, "reports": 0, "repro": 0, "runners": 0, "tests": 0},
    names_without_a_noun: {"fuzz": 0, "oracles": 0, "reports": 0, "repro": 0, "runners": 4, "tests": 0},
    banners: {"fuzz": 0, "oracles": 0, "reports": 0, "repro": 0, "runners": 0, "tests": 0},
    long_functions: {"fuzz": 0, "oracles": 0, "reports": 0, "repro": 0, "runners": 0, "tests": 0},
}


def places(check: Check, package: str) -> list[str]:
    paths = sorted((PROJECT / package).rglob("*.py"))
    assert paths
    return [f"{path.relative_to(PROJECT)}:{line}" for path in paths for line in check(path.read_text())]


def judged(count: int, allowed: int) -> str:
    """The reason for which a count fails, or nothing."""
    if count > allowed:
        return f"{count} places, {allowed} allowed: mend what was added"
    return f"lower the number in COUNTS from {allowed} to {count}" if count < allowed else ""


@pytest.mark.parametrize("package", ["fuzz", "oracles", "reports", "repro", "runners", "tests"])
@pytest.mark.parametrize("check", COUNTS)
def test_a_rule_is_broken_no_more_often_than_before(check: Check, package: str) -> None:
    broken = places(check, package)
    reason = judged(len(broken), COUNTS[check][package])
    assert reason == "", "\n".join([f"{check.__name__} in {package}: {reason}", *broken])


@pytest.mark.parametrize(
    ("check", "text", "clean"),
    [
        (relative_clauses, '"""What a module does."""', '"""The duties of a module."""'),
        (relative_clauses, 'class A:\n    """Of a class."""', 'class A:\n    """Officers."""'),
        (relative_clauses, 'def f():\n    """Whether it rains."""', 'def f():\n    """True if it rains."""'),
        (names_without_a_noun, "found = []", "verdicts = []"),
        (names_without_a_noun, "def f(one): ...", "def f(case): ..."),
        (names_without_a_noun, "[given for given in (1, 2)]", "[number for number in (1, 2)]"),
        (banners, f"# Rows {'-' * 60}", "# Rows - of a table"),
        (long_functions, "def f():\n" + "    x = 1\n" * LINES_MAX, "def f():\n" + "    x = 1\n" * (LINES_MAX - 1)),
    ],
)
def test_a_broken_rule_is_noticed(check: Check, text: str, clean: str) -> None:
    assert len(list(check(text))) == 1
    assert not list(check(clean))


def test_a_count_may_only_fall_and_is_kept_true() -> None:
    assert judged(3, 3) == ""
    assert judged(4, 3) == "4 places, 3 allowed: mend what was added"
    assert judged(2, 3) == "lower the number in COUNTS from 3 to 2"
