"""The table of fixes, whether a fix is proven, and python -m repro fixes; and #23037 on real sglang from end to end."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import io
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

import repro.__main__
from fuzz.search import search
from fuzz.settle import Means
from oracles.catalogue import judge_all, overall
from reports.fixes import lines, show_fixes
from repro import codec
from repro.__main__ import main
from repro.case import RUNNERS, Target
from repro.expect import expected
from repro.finding import Status, Verdict
from repro.fixes import FIXES, SEEDS, Fix, Proof, not_covered
from repro.keep import keep
from repro.prove import Answer, Row, Trouble, answer_of_search, exit_code, first_failures, prove, to_json
from repro.source import NotThere, edited
from repro.trace import Ended, How, Trace
from runners.environments import ADAPTED, NotUsable, sglang_path
from runners.pool import Pool

pytestmark = pytest.mark.slow

NEWEST = ADAPTED[-1]
BY_NUMBER = {fix.number: fix for fix in FIXES}
EACH_PROOF = [pytest.param(fix, proof, id=f"{fix.number}-{proof.runner}") for fix in FIXES for proof in fix.proofs]
# How many places of sglang each removal changes.
PLACES = {23037: 4, 26244: 1, 26292: 4, 26335: 1, 27338: 2}


# The table -------------------------------------------------------------------------------------------------------


def test_the_table_has_each_fix_once() -> None:
    assert [fix.number for fix in FIXES] == sorted(PLACES)
    seeds = [proof.seed for fix in FIXES for proof in fix.proofs]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize(("fix", "proof"), EACH_PROOF)
def test_a_row_of_the_table_makes_sense(fix: Fix, proof: Proof) -> None:
    assert ADAPTED.index(fix.buggy) + 1 == ADAPTED.index(fix.fixed)
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
    assert expected(seed.about, fix.fixed) == expected(seed.about, NEWEST) == ""


def test_what_is_missing_is_named() -> None:
    proof = Proof(runner="walk", seed="pr1-none.json", oracle="smell", engines=("cuda",), elsewhere="no legs")
    assert not_covered(proof, "emulated", ["walk"], ["smell"], stored=False) == "not on the emulated engine: no legs"
    said = not_covered(proof, "cuda", ["draft"], ["taste"], stored=True)
    assert said == "not covered yet: runner walk, oracle smell, seed pr1-none.json missing"
    assert not_covered(proof, "cuda", ["walk"], ["smell"], stored=True) == "not covered yet: seed pr1-none.json missing"
    assert not_covered(proof, "cuda", ["walk"], ["smell"], stored=False) == ""


# Taking a fix out ------------------------------------------------------------------------------------------------


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
    """What was there and what is there now, in one line each, for each place that changed."""
    a, b = before.splitlines(), after.splitlines()
    places = difflib.SequenceMatcher(a=a, b=b, autojunk=False).get_opcodes()
    return [
        (" ".join(" ".join(a[i:j]).split()), " ".join(" ".join(b[k:m]).split()))
        for tag, i, j, k, m in places
        if tag != "equal"
    ]


@pytest.mark.parametrize("release", ADAPTED)
@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: str(fix.number))
def test_a_fix_can_be_taken_out_of_every_release_that_has_it(fix: Fix, release: str) -> None:
    """And out of no other: a release in which the places are is a release with the fix."""
    if ADAPTED.index(release) < ADAPTED.index(fix.fixed):
        with pytest.raises((NotThere, FileNotFoundError)):
            without(fix, release)
        return
    assert release in [name for removal in fix.removals for name in removal.releases]
    found = without(fix, release)
    assert len(fix.edits(release)) == PLACES[fix.number]
    for file, (before, after) in found.items():
        old, new = functions(ast.parse(before)), functions(ast.parse(after))
        assert old.keys() == new.keys()
        others = {name for name in old if old[name] != new[name]}
        assert others == {edit.function for edit in fix.edits(release) if edit.file == file}


def functions(outer: ast.AST, names: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """The contents of the functions of this source, by qualified name, and of what is in none."""
    found: dict[str, list[str]] = {}
    for node in ast.iter_child_nodes(outer):
        if isinstance(node, ast.ClassDef):
            found |= functions(node, (*names, node.name))
        else:
            name = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""
            found.setdefault(".".join([*names, name]), []).append(ast.dump(node))
    return found


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
    found = without(fix, fix.fixed if release == "first" else release)
    told = {Path(file).stem: changed(*texts) for file, texts in found.items()}
    dropped = [("buffers.req_pool_indices.zero_()", "pass")]
    assert told == {
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
    for number, wanted in {
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
        assert changed(*texts) == [wanted]


# Proving ---------------------------------------------------------------------------------------------------------

A = Proof(runner="draft", seed="pr1-a.json", oracle="staged")
B = Proof(runner="draft", seed="pr1-b.json", oracle="bucket")
FIX = Fix(number=1, title="one", buggy="0.1", fixed="0.2", proofs=(A, B), removals=())
SECOND = dataclasses.replace(FIX, number=2)


def failing(oracle: str, where: str = "here", seconds: float = 1.0) -> Answer:
    verdict = Verdict(oracle=oracle, status=Status.FAIL, where=where)
    return Answer(status=Status.FAIL, verdict=verdict, failed=1, tried=1, seconds=seconds, text=f"FAIL {oracle}")


PASSED = Answer(status=Status.PASS, tried=1, text="PASS")


class World:
    """Targets that answer as planned; what was asked is remembered."""

    def __init__(self, **planned: Answer) -> None:
        self.planned = planned
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.told: list[Row] = []

    def ask(self, target: Target, proofs: Sequence[Proof]) -> list[Answer]:
        self.asked.append((str(target), tuple(proof.seed for proof in proofs)))
        here = {"0.1": "buggy", "0.2": "fixed", "0.9": "newest"}.get(target.sglang, "without")
        usual = {"buggy": True, "without": True}
        return [
            self.planned.get(f"{here}_{proof.oracle}", failing(proof.oracle) if usual.get(here) else PASSED)
            for proof in proofs
        ]

    def without(self, fix: Fix, target: Target) -> Target:
        if "no_overlay" in self.planned:
            raise Trouble("no such place")
        return Target(f"/overlays/{target.sglang}-{fix.number}", target.engine)

    def prove(self, rows: Sequence[Row], *, exact: bool = True) -> list[Row]:
        return prove(rows, "0.9", self.ask, self.without, self.told.append, exact=exact)


def rows(*fixes: Fix, reason: str = "") -> list[Row]:
    return [
        Row(fix=fix, proof=proof, engine="emulated", reason=reason) for fix in fixes or (FIX,) for proof in fix.proofs
    ]


def problems(row: Row) -> dict[str, str]:
    return {stop.station.name: stop.problem for stop in row.stops if stop.problem}


def test_a_fix_holds_and_each_target_is_asked_once() -> None:
    world = World()
    done = world.prove(rows(FIX, SECOND))
    assert all(row.holds for row in done)
    assert world.told == done
    assert exit_code(done) == 0
    both, each = ("pr1-a.json", "pr1-b.json"), ["0.1/emulated", "0.2/emulated", "/overlays/0.2-1@emulated"]
    each += ["0.9/emulated", "/overlays/0.2-2@emulated"]
    assert world.asked == [(target, both if "overlays" in target else both * 2) for target in each]
    assert [stop.station.name for stop in done[0].stops] == ["buggy", "fixed", "without", "newest"]


@pytest.mark.parametrize(
    ("planned", "said"),
    [
        ({"buggy_staged": PASSED}, {"buggy": "staged does not fail: PASS"}),
        # Another oracle's failure shows another bug, or nothing of this one.
        (
            {"buggy_staged": Answer(status=Status.FAIL, text="FAIL ended")},
            {"buggy": "staged does not fail: FAIL ended"},
        ),
        ({"fixed_staged": failing("staged")}, {"fixed": "does not pass: FAIL staged"}),
        ({"newest_staged": Answer(status=Status.UNKNOWN, text="a tie")}, {"newest": "does not pass: a tie"}),
        ({"without_staged": PASSED}, {"without": "staged does not fail: PASS"}),
        (
            {"without_staged": failing("staged", "there")},
            {"without": "fails in another way: at there, not at here"},
        ),
    ],
)
def test_a_fix_does_not_hold(planned: dict[str, Answer], said: dict[str, str]) -> None:
    done = World(**planned).prove(rows())
    assert problems(done[0]) == said
    assert done[1].holds
    assert (done[0].exit_code, exit_code(done)) == (1, 1)


def test_another_case_need_not_show_the_same_buffers() -> None:
    assert World(without_staged=failing("staged", "there")).prove(rows(), exact=False)[0].holds


def test_trouble_of_ours_is_no_answer() -> None:
    done = World(newest_bucket=Answer(status=None, text="not installed")).prove(rows())
    assert (done[0].holds, problems(done[1])) == (True, {"newest": "not installed"})
    assert (done[1].exit_code, exit_code(done)) == (3, 3)
    unmade = World(no_overlay=PASSED).prove(rows())
    assert problems(unmade[0]) == {"without": "no such place"}
    assert exit_code(unmade) == 3


def test_what_is_not_covered_is_not_asked() -> None:
    world = World()
    done = world.prove([*rows(SECOND, reason="no runner"), *rows()])
    assert exit_code(done) == 2
    assert [target for target, _ in world.asked].count("/overlays/0.2-2@emulated") == 0
    assert [row.holds for row in done] == [False, False, True, True]
    # What does not hold says more than what is not covered.
    assert exit_code([*World(buggy_staged=PASSED).prove(rows()), *rows(reason="no runner")]) == 1


def test_the_rows_as_lines_table_and_json() -> None:
    done = World(newest_bucket=failing("bucket")).prove([*rows(), *rows(SECOND, reason="no runner")])
    told = [text for row in done for text in lines(row)]
    assert told == [
        "#1 on draft, triton, emulated: HOLDS: 0.1 FAIL, 0.2 PASS, 0.2 without #1 FAIL, 0.9 PASS (staged)",
        "#1 on draft, triton, emulated: DOES NOT HOLD: 0.1 FAIL, 0.2 PASS, 0.2 without #1 FAIL, 0.9 FAIL (bucket)",
        "  newest 0.9: does not pass: FAIL bucket",
        "#2 on draft, triton, emulated: no runner",
        "#2 on draft, triton, emulated: no runner",
    ]
    screen, pipe = (Console(file=io.StringIO(), force_terminal=watched, width=140) for watched in (True, False))
    show_fixes(screen, done)
    show_fixes(pipe, done)
    assert isinstance(screen.file, io.StringIO)
    assert isinstance(pipe.file, io.StringIO)
    assert "does not hold" in screen.file.getvalue()
    assert all(word in screen.file.getvalue() for word in ("without it", "FAIL", "1 of 1", "✗", "not covered"))
    assert pipe.file.getvalue() == ""
    assert to_json(done[:1], fresh=False, whole=False)["exit_code"] is None
    form = json.loads(json.dumps(to_json(done, fresh=False, whole=True)))
    assert (form["exit_code"], [row["holds"] for row in form["rows"]]) == (1, [True, False, False, False])
    assert [stop["status"] for stop in form["rows"][1]["stops"]] == ["FAIL", "PASS", "FAIL", "FAIL"]
    assert form["rows"][0]["stops"][0]["verdict"]["status"] == "FAIL"
    assert (form["rows"][2]["covered"], form["rows"][2]["reason"]) == (False, "no runner")


def test_the_time_to_the_first_failure() -> None:
    done = World(buggy_staged=failing("staged", seconds=4), buggy_bucket=failing("bucket", seconds=2)).prove(rows())
    assert first_failures(done) == "time to the first failure: median 1.5 s, worst 4.0 s, of 4 searches"
    assert first_failures(rows(reason="no runner")) == ""


# Searching -------------------------------------------------------------------------------------------------------


def searched(bug: str, oracle: str, seconds: float, folder: Path) -> Answer:
    """What a search for a failure by this oracle comes to on the toy."""
    target, proof = Target(bug, "toy"), Proof(runner="toy", seed="", oracle=oracle)
    with Pool(target) as pool:
        means = Means(
            run=pool.run,
            run_fresh=pool.run_fresh,
            judge=judge_all,
            overall=overall,
            keep=lambda finding: str(keep(folder, finding)),
            tell=lambda progress: None,
            clock=time.monotonic,
        )
        return answer_of_search(search(target, proof, means, seed=1, seconds=seconds), proof)


def test_a_search_ends_with_the_failure_that_it_is_for(tmp_path: Path) -> None:
    start = time.monotonic()
    answer = searched("stale_req_pool", "slot0_padding", 60, tmp_path)
    assert time.monotonic() - start < 50
    assert answer.verdict is not None
    assert (answer.status, answer.failed, answer.tried) == (Status.FAIL, 3, 3)
    assert answer.verdict.where == "padded rows of req_pool_indices"
    assert 0 < answer.seconds < 50
    assert list(tmp_path.rglob("slot0_padding-*.json"))


def test_another_failure_is_no_answer_but_no_pass_either(tmp_path: Path) -> None:
    start = time.monotonic()
    answer = searched("stale_req_pool", "staged", 0.5, tmp_path)
    assert (answer.status, answer.verdict) == (Status.FAIL, None)
    # It is told, but neither confirmed nor shrunk: that would take far longer than the search.
    assert answer.text.startswith("slot0_padding at padded rows of req_pool_indices: 0 of 0 runs")
    assert time.monotonic() - start < 5


def test_a_search_that_finds_nothing_passes(tmp_path: Path) -> None:
    answer = searched("clean", "slot0_padding", 0.2, tmp_path)
    assert (answer.status, answer.verdict) == (Status.PASS, None)
    assert answer.text.startswith("nothing found: ")


def test_a_search_in_which_nothing_ran_is_no_answer(tmp_path: Path) -> None:
    target, proof = Target("clean", "toy"), Proof(runner="toy", seed="", oracle="staged")
    unfit = Trace(ended=Ended(how=How.UNFIT, what="no such kernel"))
    means = Means(
        run=lambda case: unfit,
        run_fresh=lambda case: unfit,
        judge=judge_all,
        overall=overall,
        keep=lambda finding: "",
        tell=lambda progress: None,
        clock=time.monotonic,
    )
    answer = answer_of_search(search(target, proof, means, seed=1, seconds=0.2), proof)
    assert (answer.status, answer.text) == (None, "nothing could be run: no such kernel")


# The command -----------------------------------------------------------------------------------------------------


def test_a_fix_that_is_not_known_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fixes", "--fix", "23037", "7"]) == 3
    said = capsys.readouterr().err
    assert said.startswith("error: --fix 7: no such fix in the table, which has 23037, ")
    assert said.count("\n") == 1


def test_what_cannot_be_shown_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tuple(
        dataclasses.replace(fix, proofs=tuple(dataclasses.replace(proof, runner="walk") for proof in fix.proofs))
        for fix in FIXES
    )
    monkeypatch.setattr(repro.__main__, "FIXES", nowhere)
    out = tmp_path / "new" / "rows.json"
    assert main(["fixes", "--engine", "cuda", "--fresh", "--json", str(out)]) == 2
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(EACH_PROOF)
    assert said[0] == "#23037 on walk, triton, cuda: not covered yet: runner walk missing"
    assert all(": not covered yet: " in text or ": not on the cuda engine: " in text for text in said)
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
    said = capsys.readouterr().out
    assert said.startswith("#23037 on draft, triton, emulated: COULD NOT BE RUN: 0.5.10.post1 ERROR, ")
    assert "buggy 0.5.10.post1: sglang 0.5.10.post1 is not installed; to install it: " in said
    assert "without 0.5.11 without #23037: sglang 0.5.11 is not installed; to install it: " in said


def test_a_place_to_write_to_that_is_none_shows_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["fixes", "--json", str(tmp_path / "file" / "rows.json")]) == 3
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)


@pytest.mark.emulated("0.5.10.post1", "0.5.11", NEWEST)
def test_23037_on_real_sglang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Last buggy, first fixed, first fixed without the fix, newest: the cause, and not only a difference."""
    out = tmp_path / "rows.json"
    assert main(["fixes", "--fix", "23037", "--json", str(out)]) == 0, capsys.readouterr()
    [row] = json.loads(out.read_text())["rows"]
    assert [stop["status"] for stop in row["stops"]] == ["FAIL", "PASS", "FAIL", "PASS"]
    buggy, _, without_it, _ = row["stops"]
    assert buggy["fingerprint"] == without_it["fingerprint"] != ""
    assert buggy["verdict"]["where"] == "padded rows of hidden_states, req_pool_indices, topk_index, topk_p"
