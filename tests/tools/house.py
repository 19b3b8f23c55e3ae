"""The size and the language of the product at a commit: python -m tests.tools.house [COMMIT [BEFORE]].

BEFORE: an earlier commit, to count the lines of modules that it did not have.
"""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator

from tests.builders.project import PROJECT
from tests.house.test_language import BANNER, OPENERS

PACKAGES = ("fuzz", "oracles", "repro", "reports", "runners")
WITHOUT_A_NOUN = frozenset(
    (
        *("one", "found", "told", "made", "given", "own", "other", "said", "here", "kept", "left", "known", "seen"),
        *("what", "wanted", "asked", "held", "others", "most", "rest", "more", "lack", "came", "met", "whose"),
    )
)


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True).stdout


def modules(commit: str) -> dict[str, str]:
    paths = git("ls-tree", "-r", "--name-only", commit, "--", *PACKAGES).split()
    return {path: git("show", f"{commit}:{path}") for path in paths if path.endswith(".py")}


def openings(nodes: list[ast.AST]) -> Iterator[str]:
    """The first word of each docstring."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield re.split(r"\W", text, maxsplit=1)[0]


def lengths(nodes: list[ast.AST]) -> list[int]:
    """The lines of each function."""
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]


def names(nodes: list[ast.AST]) -> Iterator[str]:
    """Parameters and bound names."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name


def rooms(texts: dict[str, str], package: str) -> set[tuple[str, str]]:
    """The imports between the folders of a package."""
    folders = {path.split("/")[1] for path in texts if path.startswith(f"{package}/") and path.count("/") > 1}
    imports = re.compile(rf"^\s*(?:from|import) {package}\.(\w+)|^\s*from {package} import (\w+)", re.MULTILINE)
    pairs = (
        (path.split("/")[1], match.group(1) or match.group(2))
        for path, text in texts.items()
        if path.startswith(f"{package}/")
        for match in imports.finditer(text)
    )
    return {(here, there) for here, there in pairs if {here, there} <= folders and here != there}


def imported(text: str) -> Iterator[str]:
    """The modules of the product, by path, that a module imports when it is imported, or by name at any time."""
    for node in ast.parse(text).body:
        match node:
            case ast.ImportFrom(module=str(module), names=aliases):
                yield from (f"{module}.{alias.name}" for alias in aliases)
                yield module
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
    yield from re.findall(r'import_module\("([\w.]+)"\)', text)


def circle(texts: dict[str, str]) -> list[str]:
    """A circle of imports, if there is one."""
    names = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in texts}
    graph = {name: [other for other in imported(texts[path]) if other in names] for name, path in names.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def new_lines(before: str, commit: str) -> int:
    """The lines of modules that the earlier commit did not have: renamed ones it had."""
    diff = git("diff", "-M30%", "--diff-filter=A", "--numstat", before, commit, "--", *PACKAGES)
    rows = (row.split("\t") for row in diff.splitlines())
    return sum(int(added) for added, _, path in rows if path.endswith(".py"))


def main() -> None:
    commit = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    texts = modules(commit)
    sizes = [len(text.splitlines()) for text in texts.values()]
    nodes = [node for text in texts.values() for node in ast.walk(ast.parse(text))]
    words, functions = list(openings(nodes)), lengths(nodes)
    print(f"lines of Python; modules: {sum(sizes)}; {len(sizes)}")
    print(f"modules of 380 lines or more; above 300: {sum(n >= 380 for n in sizes)}; {sum(n > 300 for n in sizes)}")
    print(f"names without a noun: {sum(name in WITHOUT_A_NOUN for name in names(nodes))}")
    print(f"docstrings that open with a relative clause: {sum(word in OPENERS for word in words)} of {len(words)}")
    print(f"functions above 40 lines; above 60: {sum(n > 40 for n in functions)}; {sum(n > 60 for n in functions)}")
    print(f"section banners: {sum(bool(BANNER.match(line)) for text in texts.values() for line in text.splitlines())}")
    for package in ("repro", "runners"):
        print(f"imports between the folders of {package}: {len(rooms(texts, package))}")
    print(f"circle of imports: {' -> '.join(circle(texts)) or 'none'}")
    rows = git("ls-tree", "-l", commit, "--", "README.md", "CONTRIBUTING.md", "docs/", "docs/findings/").splitlines()
    pages = [int(row.split()[3]) for row in rows if row.endswith(".md")]
    print(f"bytes of pages; of the longest: {sum(pages)}; {max(pages)}")
    for before in sys.argv[2:]:
        print(f"lines of modules that {before} did not have: {new_lines(before, commit)}")


if __name__ == "__main__":
    main()
