"""A batch's request for log-probabilities is no state of a replay: no graph runner that is driven, and no attention
backend, asks a batch for it. docs/runners.md says so; a release in which one does has to be driven with it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from repro.cases.case import Target
from repro.cases.release_list import NEWEST
from runners.targets.environments import sglang_path

FILES = (
    *("speculative/*graph_runner*.py", "model_executor/cuda_graph_runner.py", "model_executor/cpu_graph_runner.py"),
    *("model_executor/runner/base*.py", "model_executor/runner/decode*.py", "model_executor/runner/eager*.py"),
    "layers/attention/*_backend.py",
)
# Of models that no setup has.
OTHERS = frozenset({"deepseek_v4_backend.py"})


def asking(file: Path) -> list[int]:
    """The lines in which something is asked for its return_logprob."""
    tree = ast.parse(file.read_text())
    reads = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
    return [node.lineno for node in reads if node.attr in ("return_logprob", "extend_return_logprob")]


@pytest.mark.parametrize("release", [pytest.param(r, marks=pytest.mark.emulated(r)) for r in ("0.5.13", NEWEST)])
def test_no_graph_runner_asks_for_them(release: str) -> None:
    root = sglang_path(Target(release, "emulated")) / "sglang/srt"
    files = [file for pattern in FILES for file in sorted(root.glob(pattern)) if file.name not in OTHERS]
    assert len(files) > 10
    assert {file.name: lines for file in files if (lines := asking(file))} == {}
    # It is asked for where prompts are extended, so that the search finds it where it is.
    assert asking(root / "layers/logits_processor.py")
