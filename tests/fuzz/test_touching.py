"""fuzz run --touching: changed lines, the options without which they do not run, and a mistake that is found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.__main__ import main
from fuzz.check.plan import directed
from fuzz.check.touched import Change
from fuzz.touching import WHOLE, changed, reaches, ways
from repro.cases.case import Setup, Target
from repro.cases.release_list import NEWEST
from repro.upstream.edits import Edit
from runners.targets.environments import sglang_path
from runners.targets.overlay import Overlay, make_overlay

DRAFT = "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py"
TEXT = """LIMIT = 1


def replay(batch):
    if batch.padded:
        count = len(
            batch
        )
        fill(count)
    return run(batch)
"""


def lines_of(after: str, before: str = TEXT) -> frozenset[int]:
    return changed([Change(name="a", path="a.py", before=before, after=after)])["a.py"]


def test_changed_lines_are_those_of_their_statements() -> None:
    assert lines_of(TEXT.replace("            batch\n", "            batch.raw\n")) == {6, 7, 8}
    assert lines_of(TEXT.replace("if batch.padded", "if not batch.padded")) == {5}
    # The lines around a removed one say whether it is reached.
    assert lines_of(TEXT.replace("        fill(count)\n", "")) == {6, 7, 8, 9}
    assert lines_of(TEXT) == lines_of(TEXT.replace("LIMIT = 1", "LIMIT = 2")) == WHOLE
    assert changed([Change(name="a.md"), Change(name="b", path="b.py", before="x = 1", after=None)]) == {}


def test_a_run_reaches_a_change_by_its_lines() -> None:
    change = {"a.py": frozenset({6, 7})}
    assert reaches({"a.py": frozenset({5, 6})}, change) and not reaches({"a.py": frozenset({5, 9})}, change)
    assert reaches({"b.py": frozenset({4})}, {"b.py": WHOLE}) and not reaches({}, {"b.py": WHOLE})


def test_the_options_that_all_who_reach_a_change_have_and_the_others_do_not() -> None:
    simplest, kinds, _ = directed("draft", "triton")
    setups = [simplest.setup, *(item.setup for item in kinds)]

    def having(*options: str) -> dict[Setup, bool]:
        return {setup: all(getattr(setup, option) for option in options) for setup in setups}

    assert ways(having("dp_attention")) == (("dp_attention",),)
    both = [replace(simplest.setup, window=7), replace(simplest.setup, window=7, page_size=4)]
    assert ways({both[0]: False, both[1]: True, replace(simplest.setup, page_size=4): False}) == (
        ("page_size", "window"),
    )
    either = {setup: bool(setup.window or setup.logit_cap) for setup in setups}
    assert ways(either) == (("logit_cap",), ("window",))
    assert ways(having()) == ((),)
    assert ways(dict.fromkeys(setups, False)) == ()


@pytest.fixture(scope="module")
def branch(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The newest release with a mistake: ranks are told the number of a batch's tokens before it is padded."""
    right = "buffers.global_num_tokens_gpu.fill_(bs * self.captured_req_width)"
    edit = Edit(
        file=DRAFT,
        function="EAGLEDraftCudaGraphRunner.execute",
        old=right,
        new=right.replace("(bs", "(raw_bs"),
    )
    what = Overlay(release=NEWEST, change="a count of the raw batch")
    return str(make_overlay(sglang_path(Target(NEWEST, "emulated")), what, [edit], tmp_path_factory.mktemp("branch")))


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(
    "aim",
    # The second is the campaign that the first comes to by itself.
    [["--touching", DRAFT], ["--with", "enable_dp_attention"]],
    ids=["touching", "with"],
)
def test_a_count_of_the_raw_batch_is_found_within_150_cases(aim: list[str], branch: str, tmp_path: Path) -> None:
    """The change of a user's report that a campaign of 129 cases without an aim did not find."""
    record = tmp_path / "record.json"
    words = ["run", *aim, "--target", f"{branch}@emulated", "--runner", "draft", "--backend", "triton", "--seed", "1"]
    limits = ["--cases", "150", "--stop-at-first", "--confirm", "1", "--shrink-runs", "1"]
    assert main([*words, *limits, "--out", str(tmp_path / "out"), "--json", str(record)]) == 1
    (campaign,) = json.loads(record.read_text())["campaigns"]
    assert campaign["aim"] == "--with enable_dp_attention" and campaign["cases"] <= 150
    (finding,) = campaign["findings"]
    assert (finding["oracle"], finding["where"]) == ("bucket", "tokens of the ranks")
