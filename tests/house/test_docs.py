"""Docs name only what exists: paths, links, commands with their options, make's targets, environment variables."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.commands.verbs import VERBS
from tests.builders.command_parsers import PARSERS, commands_of
from tests.builders.project import PROJECT

PACKAGES = ("fuzz", "oracles", "reports", "repro", "runners", "tests")
# CHANGELOG.md speaks of what there was; issue texts beside a finding are sglang's.
PAGES = sorted(
    [
        PROJECT / "README.md",
        PROJECT / "CONTRIBUTING.md",
        *PROJECT.glob("docs/*.md"),
        *PROJECT.glob("docs/findings/*.md"),
    ]
)
SOURCES = sorted(
    [PROJECT / "conftest.py", *(path for package in PACKAGES for path in (PROJECT / package).rglob("*.py"))]
)
FILE = r"\.(?:py|md|toml|json|txt|sh|csv|yml)"
ROOTS = (*PACKAGES, "docs", "requirements", ".ci", ".github")
PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(map(re.escape, ROOTS))})/[\w./*-]*(?:[\w*]{FILE}|/)(?![\w/])")
SPAN = re.compile(r"`([^`\n]+)`")
BYTES_MAX = 15 * 1024
CELL_MAX = 200  # characters as they are read: of a link its text
COMMAND = re.compile(r"python -m (\w+(?:\.\w+)*)((?: +[^\s`|;&>)#$]+)*)")


def in_pages(text: str) -> list[str]:
    """The back-quoted spans of a page and the lines of its code blocks."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    rest = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.M | re.S)
    return SPAN.findall(rest) + [line for block in blocks for line in block.splitlines()]


def in_sources(text: str) -> list[str]:
    """The docstrings and comments of a module."""
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, nodes)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return docstrings + [token.string for token in tokens if token.type == tokenize.COMMENT]


@functools.cache
def files() -> frozenset[str]:
    """Files and folders of this repository; a folder ends with a slash."""
    folders = [PROJECT / root for root in ROOTS]
    paths = [*PROJECT.glob("*"), *folders, *(path for folder in folders for path in folder.rglob("*"))]
    return frozenset(f"{path.relative_to(PROJECT).as_posix()}{'/' if path.is_dir() else ''}" for path in paths)


def exists(path: str) -> bool:
    """True if a file has this path. A star and a word in capitals (RUNNER, NAME) stand for any."""
    pattern = re.sub(r"\\\*|\b[A-Z][A-Z_]+\b(?=\\?[-/.])", "[^/]*", re.escape(path))
    return any(re.fullmatch(pattern, name) for name in files())


def missing_paths(text: str) -> Iterator[str]:
    yield from (path for path in PATH.findall(text) if path != "docs/NAME.md" and not exists(path))


def missing_links(page: Path, text: str) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http") and not (page.parent / target).exists():
            yield target


@functools.cache
def options_of(package: str) -> dict[str, frozenset[str]]:
    return {verb: frozenset(p._option_string_actions) for verb, p in commands_of(PARSERS[package]()).items()}


def missing_verbs(text: str) -> Iterator[str]:
    """A verb that eagleeye does not have, and options that the verb does not have."""
    if typed := re.match(r"(?:\$ )?(?:\.venv/bin/)?eagleeye ([a-z][a-z-]*)(.*)", text):
        name, words = typed.groups()
        if name in VERBS:
            known = options_of(VERBS[name].package)[VERBS[name].command]
            used = re.findall(r"(?<!\S)\[?(--[a-z][a-z0-9-]*)", words)
            yield from (f"eagleeye {name} {option}" for option in used if option not in known)
        else:
            yield f"eagleeye {name}"


def missing_commands(text: str) -> Iterator[str]:
    """Our commands with a verb or an option that they do not have, and modules that are not there."""
    for module, words in COMMAND.findall(text):
        if module in PARSERS:
            verbs, options = re.match(r" ?([a-z_|\\]*)(.*)", words).groups()  # type: ignore[union-attr]  # the pattern matches any text
            for verb in filter(None, re.split(r"[\\|]+", verbs)):
                known = options_of(module).get(verb)
                if known is None:
                    yield f"{module} {verb}"
                else:
                    used = re.findall(r"(?<!\S)\[?(--[a-z][a-z0-9-]*)", options)
                    yield from (f"{module} {verb} {option}" for option in used if option not in known)
        elif module.startswith("tests.") and not exists(module.replace(".", "/") + ".py"):
            yield module


@functools.cache
def make_targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([\w-]+):", (PROJECT / "Makefile").read_text(), re.M))


@functools.cache
def variables() -> frozenset[str]:
    product = [path for path in SOURCES if path != Path(__file__).resolve()]
    return frozenset(name for path in product for name in re.findall(r"EAGLEEYE_\w+", path.read_text()))


def missing_names(text: str) -> Iterator[str]:
    """Targets of make and environment variables."""
    yield from (f"make {word}" for word in re.findall(r"^make ([a-z-]+)", text) if word not in make_targets())
    yield from (name for name in re.findall(r"EAGLEEYE_\w+", text) if name not in variables())


def missing_classes(text: str) -> Iterator[str]:
    """Names that the file in brackets behind them does not have: `Trace` (`repro/traces/trace.py`)."""
    for name, path in re.findall(r"`([A-Z]\w+)` \(`([\w/]+\.py)`\)", text):
        if not re.search(rf"\b{name}\b", (PROJECT / path).read_text()):
            yield f"{name} of {path}"


def too_large(text: str) -> Iterator[str]:
    """The page's size and its table cells, if they are too large to be read."""
    if (size := len(text.encode())) > BYTES_MAX:
        yield f"{size} bytes, {BYTES_MAX} at most"
    for number, line in enumerate(text.splitlines(), 1):
        cells = re.sub(r"\]\([^)]*\)", "]", line).split("|") if line.startswith("|") else []
        yield from (f"line {number}: {cell.strip()[:40]}" for cell in cells if len(cell.strip()) > CELL_MAX)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_a_page_can_be_read(page: Path) -> None:
    assert list(too_large(page.read_text())) == []


@pytest.mark.parametrize("text", ["a line\n" * 3000, f"| a | {'b' * 201} |"])
def test_a_page_that_is_too_large_is_noticed(text: str) -> None:
    assert len(list(too_large(text))) == 1
    assert not list(too_large(f"| {'b' * 200} | [a](https://example.org/{'c' * 200}) |"))


CHECKS = (missing_paths, missing_commands, missing_verbs, missing_names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_a_page_names_what_exists(page: Path) -> None:
    spans = in_pages(page.read_text())
    missing = [name for span in spans for check in CHECKS for name in check(span)]
    assert missing + list(missing_links(page, page.read_text())) + list(missing_classes(page.read_text())) == []


def test_docstrings_and_comments_name_what_exists() -> None:
    texts = [(path, text) for path in SOURCES for text in in_sources(path.read_text())]
    assert len(texts) > 1000
    missing = {
        f"{path.relative_to(PROJECT)}: {name}"
        for path, text in texts
        for check in (missing_paths, missing_commands)
        for name in check(text)
    }
    assert sorted(missing) == []


@pytest.mark.parametrize(
    "text",
    [
        "`repro/cases/nowhere.py`",
        "`runners/nowhere/`",
        "`tests/absent_*.py`",
        "`python -m fuzz fly`",
        "`python -m repro run SEED.json --upside-down`",
        "`python -m tests.nowhere`",
        "```\npython -m fuzz run --target T --sideways\n```",
        "`eagleeye fly`",
        "`.venv/bin/eagleeye replay SEED.json --upside-down`",
        "`make nothing`",
        "`EAGLEEYE_NOTHING=1`",
    ],
)
def test_what_does_not_exist_is_noticed(text: str) -> None:
    spans = in_pages(text + "\n")
    assert [name for span in spans for check in CHECKS for name in check(span)]


def test_a_class_of_another_file_is_noticed() -> None:
    assert list(missing_classes("`Verdict` (`repro/traces/finding.py`), `Nobody` (`repro/cases/case.py`)")) == [
        "Nobody of repro/cases/case.py"
    ]


def test_a_link_to_nowhere_is_noticed() -> None:
    page = PROJECT / "README.md"
    assert list(missing_links(page, "[a](docs/nowhere.md) [b](docs/oracles.md) [c](https://example.org)")) == [
        "docs/nowhere.md"
    ]
