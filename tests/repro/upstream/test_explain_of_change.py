"""python -m repro explain of a checkout with one planted mistake: the first suspect is the line that was changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from fuzz.check.plan import directed
from repro.__main__ import main
from repro.cases import codec
from repro.cases.case import Target
from repro.cases.codec import Seed
from repro.cases.release_list import NEWEST
from repro.suspects.changed_lines import changed_lines
from repro.traces.exit_codes import ExitCode
from repro.upstream.edits import Edit
from runners.targets.environments import sglang_path
from runners.targets.overlay import MARKER, Overlay, make_overlay


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A mistake in the newest release. runner, backend: a pair whose plain setup meets it. row: the row that the
    release writes there; empty if there is no single one."""

    runner: str
    backend: str
    edit: Edit
    row: str = ""


_RESET = Edit(
    file="sglang/srt/speculative/eagle_draft_cuda_graph_runner.py",
    function="EAGLEDraftCudaGraphRunner.execute",
    old="buffers.req_pool_indices.zero_()",
)
_TOTAL = Edit(
    file="sglang/srt/speculative/eagle_info.py",
    function="EagleVerifyInput.generate_attn_arg_prefill",
    old="total_tokens = paged_kernel_lens_sum + self.draft_token_num * batch_size",
    new="total_tokens = paged_kernel_lens_sum + self.draft_token_num * batch_size - 1",
)
PLANTS = {
    "a reset is missing": Plant(runner="draft", backend="triton", edit=_RESET, row="row 1 of req_pool_indices"),
    "a total is one short": Plant(runner="verify", backend="flashinfer", edit=_TOTAL),
}


@pytest.mark.emulated(NEWEST)
@pytest.mark.exhaustive
@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_the_planted_line_is_the_first_suspect(plant: Plant, tmp_path: Path) -> None:
    release = sglang_path(Target(NEWEST, "emulated"))
    tree = make_overlay(release, Overlay(release=NEWEST, change="planted"), [plant.edit], tmp_path)
    (tree / MARKER).unlink()  # an ordinary checkout
    seed, out = tmp_path / "case.json", tmp_path / "explained.json"
    codec.write(seed, Seed(about={}, case=directed(plant.runner, plant.backend)[0].cases[0]))
    assert main(["explain", str(seed), "--target", f"{tree}@emulated", "--json", str(out)]) is ExitCode.FAIL
    form = json.loads(out.read_text())
    (planted,) = {line.here for line in changed_lines(release, tree)}
    first = form["suspects"][0]
    assert (first["file"], first["function"], first["line"]) == (plant.edit.file, plant.edit.function, planted)
    written = f"on {NEWEST}/emulated, {plant.row} is written"
    assert not plant.row or any(text.startswith(written) for text in form["first"])
    assert form["conclusion"] == f"A change of the checkout brings it: {NEWEST}/emulated does not fail so."
