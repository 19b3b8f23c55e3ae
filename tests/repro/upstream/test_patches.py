"""Candidate patches: the criteria, and that every entry of the table meets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.__main__ import main
from repro.cases import codec
from repro.cases.release_list import ADAPTED
from repro.cases.releases import expected, release_order
from repro.commands import repairs
from repro.traces.finding import Status, Verdict
from repro.upstream.edits import Edit, EditNotFound
from repro.upstream.fixes import SEEDS
from repro.upstream.patch_table import CANDIDATE_PATCHES, CandidatePatch
from repro.upstream.patches import exit_code, lines, patch, problem
from repro.upstream.prove import Result

each_repair = pytest.mark.parametrize("repair", CANDIDATE_PATCHES, ids=lambda repair: repair.seed)

FAILED = Verdict(oracle="staged", status=Status.FAIL, where="here")
PUBLISHED = Result(status=Status.FAIL, verdict=FAILED, failed=3, tried=3, text="FAIL staged")
PASSED = Result(status=Status.PASS, tried=3, text="PASS")
BY_ANOTHER = Result(status=Status.FAIL, tried=3, text="FAIL bucket")
NOT_RUN = Result(status=None, text="sglang 0.9 is not installed")
UNKNOWN = Result(status=Status.UNKNOWN, text="UNKNOWN")
ONE = CandidatePatch(
    seed="a-seed",
    oracle="staged",
    release="0.9",
    why="rows are staged",
    edits=(Edit(file="sglang/runner.py", function="replay", old="rows.append(0)", new="rows.append(1)"),),
)


@pytest.mark.parametrize(
    ("published", "repaired", "reason", "code"),
    [
        (PUBLISHED, PASSED, "", 0),
        (PUBLISHED, BY_ANOTHER, "", 0),
        (PUBLISHED, PUBLISHED, "fails as before: FAIL staged", 1),
        (PASSED, PASSED, "does not fail as published: PASS", 1),
        (BY_ANOTHER, PASSED, "does not fail as published: FAIL bucket", 1),
        (PUBLISHED, UNKNOWN, "repaired: UNKNOWN", 1),
        (NOT_RUN, NOT_RUN, "as published: sglang 0.9 is not installed", 3),
        (PUBLISHED, NOT_RUN, "repaired: sglang 0.9 is not installed", 3),
    ],
)
def test_a_repair_is_shown_by_a_failure_that_goes_away(
    published: Result, repaired: Result, reason: str, code: int
) -> None:
    assert problem(published, repaired) == reason
    assert exit_code(published, repaired) == code


def test_what_other_bugs_do_is_said() -> None:
    assert list(lines(ONE, ("0.9/toy", "/changed@toy"), PUBLISHED, BY_ANOTHER)) == [
        "a-seed on 0.9/toy: shown: rows are staged",
        "  as published it fails by staged: 3 of 3 runs",
        "  with the change it fails no more by staged, but for other bugs: /changed@toy",
    ]
    assert list(lines(ONE, ("0.9/toy", "/changed@toy"), PUBLISHED, PUBLISHED)) == [
        "a-seed on 0.9/toy: NOT SHOWN: rows are staged",
        "  fails as before: FAIL staged",
    ]


def test_a_repair_is_a_patch(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    file = tmp_path / "sglang" / "runner.py"
    file.write_text("def replay(rows):\n    rows.append(0)\n    return rows\n")
    assert list(patch(ONE, tmp_path))[:2] == ["--- a/sglang/runner.py", "+++ b/sglang/runner.py"]
    assert list(patch(ONE, tmp_path))[4:6] == ["-    rows.append(0)", "+    rows.append(1)"]
    file.write_text("def replay(rows):\n    return rows\n")
    with pytest.raises(EditNotFound, match="is 0 times in replay"):
        list(patch(ONE, tmp_path))


@each_repair
def test_a_repair_is_of_the_last_release_that_has_the_bug(repair: CandidatePatch) -> None:
    about = codec.read(SEEDS / f"{repair.seed}.json").about
    later = [release for release in ADAPTED if release_order(release) > release_order(repair.release)]
    assert expected(about, repair.release) == repair.oracle == about["oracle"]
    assert repair.oracle not in {expected(about, release) for release in later}


@pytest.mark.parametrize(
    "repair",
    [
        # Each takes two imports of sglang.
        pytest.param(patch, marks=[pytest.mark.emulated(patch.release), pytest.mark.exhaustive])
        for patch in CANDIDATE_PATCHES
    ],
    ids=[patch.seed for patch in CANDIDATE_PATCHES],
)
def test_on_real_sglang(repair: CandidatePatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The published release fails; with the change and nothing else it does not."""
    assert main(["repairs", repair.seed, "--diff"]) == 0, capsys.readouterr()
    output = capsys.readouterr().out.splitlines()
    assert output[0].startswith(f"{repair.seed} on {repair.release}/emulated: shown: ")
    assert any(text.startswith("+") and not text.startswith("+++") for text in output)


def test_bad_names_and_absent_releases_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["repairs", "no-such"]) == 3
    assert "no-such: no such repair; there are decode-" in capsys.readouterr().err
    monkeypatch.setenv("EAGLEEYE_CACHE", str(tmp_path))
    assert main(["repairs", CANDIDATE_PATCHES[0].seed]) == 3
    assert "NOT SHOWN" in (output := capsys.readouterr().out) and "is not installed; to install it: " in output


def test_an_edit_without_a_place_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(repairs, "answers", lambda options, target, proofs: [PUBLISHED])
    monkeypatch.setattr("repro.upstream.patch_table.CANDIDATE_PATCHES", (ONE,))
    assert main(["repairs"]) == 3
    assert "NOT SHOWN" in capsys.readouterr().out
