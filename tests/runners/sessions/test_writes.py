"""Who writes an input buffer: the line of sglang, and who has asked a shared helper for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from repro.traces.trace import Array
from runners.recording.observer import Watch
from runners.sessions.writes import noted

pytestmark = pytest.mark.emulated
RUNNER = "/src/sglang/srt/speculative/draft_runner.py"
HELPER = "/src/sglang/srt/model_executor/runner_utils/buffers.py"


class Facts(Watch):
    def __init__(self) -> None:
        self.facts: dict[str, str] = {}

    def at(self, step: int, path: str) -> None:
        raise AssertionError

    def see(self, step: int, path: str, name: str, array: Array) -> None:
        raise AssertionError

    def spent(self, stage: str, seconds: float) -> None:
        raise AssertionError

    def fact(self, name: str, text: str) -> None:
        self.facts[name] = text


def code(path: str, text: str, **names: Any) -> Callable[..., Any]:
    """A function f of this text, in a file of this name."""
    space: dict[str, Any] = dict(names)
    exec(compile(text, path, "exec"), space)
    made: Callable[..., Any] = space["f"]
    return made


def written(write: Callable[..., Any]) -> list[list[object]]:
    buffer, watch = torch.zeros(4), Facts()
    with noted({"seq_lens": buffer}, 2, watch):
        write(buffer)
    notes: list[list[object]] = json.loads(watch.facts["writes of call 2"])
    return notes


def test_a_write_has_its_rows_and_its_line() -> None:
    fill = code(RUNNER, "def f(buffer):\n    buffer[1:3].fill_(7)\n")
    assert written(fill) == [["seq_lens", 1, 2, "sglang/srt/speculative/draft_runner.py:2 in f"]]


def test_a_helper_that_many_share_is_named_with_who_asked_it() -> None:
    helper = code(HELPER, "def f(buffer):\n    return buffer[:2].fill_(7)\n")
    caller = code(RUNNER, "def f(buffer):\n\n    helper(buffer)\n", helper=helper)
    place = "sglang/srt/speculative/draft_runner.py:3 in f"
    inner = "sglang/srt/model_executor/runner_utils/buffers.py:2 in f"
    assert written(caller) == [["seq_lens", 0, 1, f"{place}, by {inner}"]]
    assert written(helper) == [["seq_lens", 0, 1, inner]]


def test_what_is_not_sglangs_has_no_line() -> None:
    assert written(lambda buffer: buffer.fill_(1)) == [["seq_lens", 0, 3, ""]]
