"""The hooks of sglang's own repository, run on exported tests: python -m tests.tools.sglang_hooks TREE TEST.py...

TREE is a checkout of sglang, which is read and left as it is. Run are its own scripts for registered tests, and isort,
black, ruff and codespell with its settings, as far as they are installed; and Python 3.10 must read the file. Exit
code 1 if one of them complains, 3 if the tree has no such scripts.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from repro.cases.own_place import temporary_folder
from repro.upstream.sglang_style import PYTHON

_SCRIPTS = ("check_registered_tests", "check_no_registered_tests_in_package")
_NEEDED = ("scripts/lint", "python/sglang/test/ci")
_PLACE = Path("test/registered/unit/spec")
_FORMATTERS = {
    "isort": ("isort", "--check", "--settings-file", ".isort.cfg"),
    "black": ("black", "--check", "--quiet"),
    "codespell": ("codespell", "--config", ".codespellrc"),
    "ruff": ("ruff", "check", "--isolated", "--quiet", "--select", "F401,F821,UP037"),
}


def complaints(tree: Path, tests: Sequence[Path]) -> Iterator[str]:
    """The complaints of the hooks, by name. OSError if the tree lacks the scripts."""
    with temporary_folder("eagleeye-hooks-") as folder:
        for part in _NEEDED:
            shutil.copytree(tree / part, folder / part)
        for name in (".isort.cfg", ".codespellrc"):
            shutil.copy(tree / name, folder / name)
        (folder / _PLACE).mkdir(parents=True)
        copies = [str(_PLACE / Path(shutil.copy(test, folder / _PLACE)).name) for test in tests]
        for copy in copies:
            yield from _not_read((folder / copy).read_text(), copy)
        commands: dict[str, tuple[str, ...]]
        commands = {name: (sys.executable, f"scripts/lint/{name}.py") for name in _SCRIPTS}
        commands["check_no_bare_pytest_main"] = (sys.executable, "scripts/lint/check_no_bare_pytest_main.py", *copies)
        commands |= {name: (*words, *copies) for name, words in _FORMATTERS.items() if shutil.which(words[0])}
        for name, command in commands.items():
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                yield f"{name}: {(done.stdout + done.stderr).strip()}"


def _not_read(text: str, name: str) -> Iterator[str]:
    try:
        ast.parse(text, feature_version=PYTHON)
    except SyntaxError as error:
        yield f"Python {'.'.join(map(str, PYTHON))}: {name}, line {error.lineno}: {error.msg}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.sglang_hooks", description=__doc__.splitlines()[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("tests", type=Path, nargs="+")
    options = parser.parse_args(argv)
    try:
        texts = list(complaints(options.tree, options.tests))
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 3
    print(*texts or ["no hook has anything to say"], sep="\n")
    return bool(texts)


if __name__ == "__main__":
    sys.exit(main())
