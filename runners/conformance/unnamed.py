"""Names that a release has and no adapter names: read from its sources and the adapters', without importing either."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from repro.cases.runner_facts import RUNNER_FACTS

_ADAPTERS = Path(__file__).resolve().parents[1] / "releases"
_RUNNER = re.compile(r"^class (\w*GraphRunner)\b", re.MULTILINE)
_ALGORITHM = re.compile(r"^    ([A-Z][A-Z0-9_]*) = ", re.MULTILINE)
_BUFFERS = re.compile(r"^class \w*InputBuffers\b.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_BUFFER = re.compile(r"^    (\w+): .*Tensor", re.MULTILINE)
_ARGUMENT = re.compile(r"^    (\w*cuda_graph\w*): ", re.MULTILINE)
# What takes the place of CUDA graphs on other devices.
_OF_OTHERS = re.compile(r"npu|musa|xpu|hip", re.IGNORECASE)


def unnamed(path: Path) -> dict[str, tuple[str, ...]]:
    """Unnamed parts by kind, sorted. path: an import path of sglang."""
    adapters_text = "\n".join(file.read_text() for file in sorted(_ADAPTERS.rglob("*.py")))
    words = set(re.findall(r"\w+", adapters_text))
    srt = path / "sglang" / "srt"
    missing = {
        "graph runners": _runners(srt),
        "algorithms": _enumerated(srt / "speculative" / "spec_info.py", "SpeculativeAlgorithm"),
        "input buffers": _buffers(srt),
        "arguments": _arguments(srt),
    }
    return {kind: tuple(sorted(set(names) - words)) for kind, names in missing.items()}


def _arguments(srt: Path) -> Iterator[str]:
    """The arguments of ServerArgs, which newer releases put together from groups."""
    for file in (srt / "server_args.py", *sorted((srt / "arg_groups").rglob("*.py"))):
        yield from _ARGUMENT.findall(_read(file))


def _runners(srt: Path) -> Iterator[str]:
    for file in _sources(srt):
        yield from (name for name in _RUNNER.findall(_read(file)) if not _OF_OTHERS.search(name))


def _buffers(srt: Path) -> Iterator[str]:
    for file in _sources(srt):
        for body in _BUFFERS.findall(_read(file)):
            yield from _BUFFER.findall(body)


def _enumerated(file: Path, name: str) -> Iterator[str]:
    match = re.search(rf"^class {name}\(.*?(?=^\S|\Z)", _read(file), re.MULTILINE | re.DOTALL)
    members = _ALGORITHM.findall(match.group(0)) if match else ()
    yield from (member for member in members if member != "NONE" and member.lower() not in RUNNER_FACTS)


def _sources(srt: Path) -> Iterator[Path]:
    """The files of runners and their buffers."""
    for folder in ("model_executor", "speculative"):
        yield from sorted((srt / folder).rglob("*.py"))


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
