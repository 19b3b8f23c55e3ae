"""The table of fixes, taking each out again, and python -m repro fixes; and #23037 on real sglang from end to end."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import json
from pathlib import Path

import pytest

from repro.__main__ import main
from repro.cases import codec
from repro.cases.case import RUNNERS, Target
from repro.cases.release_list import ADAPTED
from repro.cases.releases import expected
from repro.commands import fixes
from repro.upstream.edits import EditNotFound, edited
from repro.upstream.fixes import FIXES, NEWEST, SEEDS, Fix, Proof, not_covered
from runners.targets.environments import NotUsable, sglang_path

pytestmark = pytest.mark.slow

# The releases that the table speaks of.
SHOWN = ADAPTED[: ADAPTED.index(NEWEST) + 1]
BY_NUMBER = {fix.number: fix for fix in FIXES}
EACH_PROOF = [pytest.param(fix, proof, id=f"{fix.number}-{proof.runner}") for fix in FIXES for proof in fix.proofs]
# How many places of sglang each removal changes.
PLACES = {23037: 4, 26244: 1, 26292: 4, 26335: 1, 27338: 2}


def test_the_table_has_each_fix_once() -> None:
    assert [fix.number for fix in FIXES] == sorted(PLACES)
    seeds = [proof.seed for fix in FIXES for proof in fix.proofs]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize(("fix", "proof"), EACH_PROOF)
def test_a_row_of_the_table_makes_sense(fix: Fix, proof: Proof) -> None:
    assert SHOWN.index(fix.buggy) + 1 == SHOWN.index(fix.fixed)
    assert proof.seed.startswith(f"pr{fix.number}-")
    assert set(proof.engines) <= {"emulated", "cuda"}
    assert bool(proof.elsewhere) == (len(proof.engines) < 2)


@pytest.mark.parametrize(("fix", "proof"), EACH_PROOF)
def test_a_stored_seed_expects_what_the_table_says(fix: Fix, proof: Proof) -> None:
    path = SEEDS / proof.seed
    if not path.exists():
        pytest.skip(f"there is no {path.name} yet")
    seed = codec.read(path)
    assert (seed.case.setup.runner, seed.case.setup.backend) == (proof.runner, proof.backend)
    assert expected(seed.about, fix.buggy) == proof.oracle
    assert {expected(seed.about, fix.fixed), expected(seed.about, NEWEST)} <= {"", *proof.neighbours}


def test_what_is_missing_is_named() -> None:
    proof = Proof(runner="walk", seed="pr1-none.json", oracle="smell", engines=("cuda",), elsewhere="no legs")
    assert not_covered(proof, "emulated", ["walk"], ["smell"], stored=False) == "not on the emulated engine: no legs"
    reason = not_covered(proof, "cuda", ["draft"], ["taste"], stored=True)
    assert reason == "not covered yet: runner walk, oracle smell, seed pr1-none.json missing"
    assert not_covered(proof, "cuda", ["walk"], ["smell"], stored=True) == "not covered yet: seed pr1-none.json missing"
    assert not_covered(proof, "cuda", ["walk"], ["smell"], stored=False) == ""


def source(release: str) -> Path:
    try:
        return sglang_path(Target(release, "emulated"))
    except NotUsable as lack:
        pytest.skip(str(lack))


def without(fix: Fix, release: str) -> dict[str, tuple[str, str]]:
    """Each edited file of this release, before and after."""
    files = dict.fromkeys(edit.file for edit in fix.edits(release))
    texts = {file: (source(release) / file).read_text() for file in files}
    return {
        file: (text, edited(text, [edit for edit in fix.edits(release) if edit.file == file]))
        for file, text in texts.items()
    }


def changed(before: str, after: str) -> list[tuple[str, str]]:
    """The text before and after, in one line each, for each place that changed."""
    a, b = before.splitlines(), after.splitlines()
    places = difflib.SequenceMatcher(a=a, b=b, autojunk=False).get_opcodes()
    return [
        (" ".join(" ".join(a[i:j]).split()), " ".join(" ".join(b[k:m]).split()))
        for tag, i, j, k, m in places
        if tag != "equal"
    ]


@pytest.mark.parametrize("release", SHOWN)
@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: str(fix.number))
def test_a_fix_can_be_taken_out_of_every_release_that_has_it(fix: Fix, release: str) -> None:
    """And out of no other: a release in which the places are is a release with the fix."""
    if SHOWN.index(release) < SHOWN.index(fix.fixed):
        with pytest.raises((EditNotFound, FileNotFoundError)):
            without(fix, release)
        return
    assert release in [name for removal in fix.removals for name in removal.releases]
    texts = without(fix, release)
    assert len(fix.edits(release)) == PLACES[fix.number]
    for file, (before, after) in texts.items():
        old, new = functions(ast.parse(before)), functions(ast.parse(after))
        assert old.keys() == new.keys()
        others = {name for name in old if old[name] != new[name]}
        assert others == {edit.function for edit in fix.edits(release) if edit.file == file}


def functions(outer: ast.AST, names: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """The contents of the functions of this source, by qualified name, and of what is in none."""
    bodies: dict[str, list[str]] = {}
    for node in ast.iter_child_nodes(outer):
        if isinstance(node, ast.ClassDef):
            bodies |= functions(node, (*names, node.name))
        else:
            name = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""
            bodies.setdefault(".".join([*names, name]), []).append(ast.dump(node))
    return bodies


@pytest.mark.parametrize("release", ["first", NEWEST])
def test_what_is_left_without_23037(release: str) -> None:
    fix = BY_NUMBER[23037]
    [(before, after)] = without(fix, fix.fixed if release == "first" else release).values()
    names = ("topk_p", "topk_index", "hidden_states", "req_pool_indices")
    lost = [line[2:].strip() for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[:2] == "- "]
    come = [line[2:].strip() for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[:2] == "+ "]
    assert lost == [f"buffers.{name}.zero_()" for name in names]
    assert come == ["pass"] * 4


@pytest.mark.parametrize("release", ["first", NEWEST])
def test_what_is_left_without_26292(release: str) -> None:
    fix = BY_NUMBER[26292]
    texts_of_files = without(fix, fix.fixed if release == "first" else release)
    differences = {Path(file).stem: changed(*texts) for file, texts in texts_of_files.items()}
    dropped = [("buffers.req_pool_indices.zero_()", "pass")]
    assert differences == {
        "cuda_graph_buffer_registry": [
            (
                'GraphSlot( "req_pool_indices", _bs, torch.int64, axis="bs", padding_policy=PaddingPolicy.ZERO, ),',
                "GraphSlot('req_pool_indices', _bs, torch.int64, axis='bs'),",
            )
        ],
        "cpu_graph_runner": [("captured_forward_batch.req_pool_indices.zero_()", "pass")],
        "eagle_draft_extend_cuda_graph_runner": dropped,
        "frozen_kv_mtp_cuda_graph_runner": dropped,
    }


@pytest.mark.parametrize("release", ["first", NEWEST])
def test_what_is_left_without_27338(release: str) -> None:
    fix = BY_NUMBER[27338]
    [(before, after)] = without(fix, fix.fixed if release == "first" else release).values()
    (check, nothing), (width, narrow) = changed(before, after)
    assert check.startswith("assert_buffer_fits( required_kv_indices_len,")
    assert nothing == "pass"
    assert width.startswith("kv_indices_width = draft_kv_indices_buffer_width(")
    assert narrow == "kv_indices_width = max_bs * self.max_context_len"


@pytest.mark.parametrize("release", ["first", NEWEST])
def test_what_is_left_without_26335_and_26244(release: str) -> None:
    for number, difference in {
        26335: ("tgt_cache_loc = torch.zeros_like(src_cache_loc)", "tgt_cache_loc = torch.empty_like(src_cache_loc)"),
        26244: (
            "",
            "if not can_run_cuda_graph: if not batch.forward_mode.is_idle(): "
            "target_worker.model_runner.attn_backend.init_forward_metadata(verify_forward_batch) "
            "verify_forward_batch.mark_forward_metadata_ready()",
        ),
    }.items():
        fix = BY_NUMBER[number]
        [texts] = without(fix, fix.fixed if release == "first" else release).values()
        assert changed(*texts) == [difference]


def test_a_fix_that_is_not_known_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fixes", "--fix", "23037", "7"]) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: --fix 7: no such fix in the table, which has 23037, ")
    assert error.count("\n") == 1


def test_where_no_release_can_be_used_nothing_is_proven(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fixes, "usable", lambda engine: ())
    assert main(["fixes", "--installed", "--engine", "cuda"]) == 3
    output = capsys.readouterr()
    assert output.out == "" and output.err == (
        "error: no release of sglang can be used with the cuda engine here: python -m runners doctor\n"
    )


def test_what_cannot_be_shown_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tuple(
        dataclasses.replace(fix, proofs=tuple(dataclasses.replace(proof, runner="walk") for proof in fix.proofs))
        for fix in FIXES
    )
    monkeypatch.setattr(fixes, "FIXES", nowhere)
    out = tmp_path / "new" / "rows.json"
    assert main(["fixes", "--engine", "cuda", "--fresh", "--json", str(out)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines.pop() == f"0 of {len(EACH_PROOF)} proofs hold"
    assert len(lines) == len(EACH_PROOF)
    assert lines[0] == "#23037 on walk, triton, cuda: not covered yet: runner walk missing"
    assert all(": not covered yet: " in text or ": not on the cuda engine: " in text for text in lines)
    form = json.loads(out.read_text())
    assert form["exit_code"] == 2
    assert not any(row["covered"] for row in form["rows"])


def test_a_machine_that_lacks_something_is_no_proof(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Neither for nor against: exit code 3, and what would help."""
    monkeypatch.setenv("EAGLEEYE_CACHE", str(tmp_path))
    assert "draft" in RUNNERS
    assert main(["fixes", "--fix", "23037", "--fresh"]) == 3
    text = capsys.readouterr().out
    assert text.startswith("#23037 on draft, triton, emulated: COULD NOT BE RUN: 0.5.10.post1 ERROR, ")
    assert "buggy 0.5.10.post1: sglang 0.5.10.post1 is not installed; to install it: " in text
    assert "without 0.5.11 without #23037: sglang 0.5.11 is not installed; to install it: " in text


def test_a_place_to_write_to_that_is_none_shows_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["fixes", "--json", str(tmp_path / "file" / "rows.json")]) == 3
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)


@pytest.mark.emulated("0.5.10.post1", "0.5.11", NEWEST)
def test_23037_on_real_sglang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Last buggy, first fixed, first fixed without the fix, newest: the cause, and not only a difference."""
    out = tmp_path / "rows.json"
    assert main(["fixes", "--fix", "23037", "--json", str(out)]) == 0, capsys.readouterr()
    [row] = json.loads(out.read_text())["rows"]
    assert [stop["status"] for stop in row["stops"]] == ["FAIL", "PASS", "FAIL", "PASS"]
    buggy, _, without_it, _ = row["stops"]
    assert buggy["fingerprint"] == without_it["fingerprint"] != ""
    assert buggy["verdict"]["where"] == "padded rows of req_pool_indices"
