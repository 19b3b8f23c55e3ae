"""The places where a release probes its tensors: every call of sglang's asynchronous probes, as its source has it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# By the name of sglang's function: what is planted to make it fire.
PROBES = {
    "maybe_detect_nan": "nan",
    "maybe_detect_inf": "inf",
    "maybe_detect_oob": "oob",
    "maybe_detect_page_aligned": "page_aligned",
}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Site:
    """One call of a probe. module: dotted; function: the innermost one around it, with its class if it has one."""

    module: str
    function: str
    kind: str
    line: int


def sites(import_path: Path) -> tuple[Site, ...]:
    """All sites of the sglang under this import path, the probes' own definitions left out."""
    sites: list[Site] = []
    for file in sorted((import_path / "sglang" / "srt").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if any(name in text for name in PROBES):
            module = ".".join(file.relative_to(import_path).with_suffix("").parts)
            sites += _in(ast.parse(text), module, "")
    return tuple(sorted(sites))


def _in(outer: ast.AST, module: str, function: str) -> Iterator[Site]:
    for node in ast.iter_child_nodes(outer):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if node.name not in PROBES:
                yield from _in(node, module, f"{function}.{node.name}".strip("."))
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PROBES:
            yield Site(module=module, function=function, kind=PROBES[node.func.id], line=node.lineno)
        yield from _in(node, module, function)
