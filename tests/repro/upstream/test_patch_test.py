"""Patches: applied to a release, refused in one line, and what they do to seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from repro.__main__ import main, options_of
from repro.cases import codec
from repro.cases.case import Case, Target
from repro.cases.release_list import NEWEST
from repro.commands import patch_test
from repro.traces.finding import Status, Verdict
from repro.traces.trace import End, Termination, Trace
from repro.upstream.fixes import SEEDS
from repro.upstream.patch_file import applied
from repro.upstream.rig import Refused
from tests.builders import rigs

SEED = SEEDS / "multi-layer-stale-padding.json"
GUARD = SEEDS / "pr26292-decode.json"
CASE = codec.read(SEED).case
RUNNER = "def replay(rows):\n    rows.append(0)\n    return rows\n"
DIFF = """\
diff --git a/python/sglang/srt/runner.py b/python/sglang/srt/runner.py
--- a/python/sglang/srt/runner.py
+++ b/python/sglang/srt/runner.py
@@ -1,3 +1,3 @@
 def replay(rows):
-    rows.append(0)
+    rows.append(1)
     return rows
"""
NEW_FILE = """\
--- /dev/null
+++ b/python/sglang/srt/fresh.py
@@ -0,0 +1 @@
+HERE = 1
"""
OTHER = """\
--- a/test/registered/test_runner.py
+++ b/test/registered/test_runner.py
@@ -1 +1 @@
-x = 1
+x = 2
"""


@pytest.fixture
def release(tmp_path: Path) -> Path:
    path = tmp_path / "release"
    (path / "sglang" / "srt").mkdir(parents=True)
    (path / "sglang" / "srt" / "runner.py").write_text(RUNNER)
    return path


def patch(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "some.diff"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [DIFF, DIFF.replace("python/", ""), DIFF.split("\n", 1)[1]])
def test_a_patch_is_applied_wherever_its_paths_begin(release: Path, tmp_path: Path, text: str) -> None:
    edits = applied(patch(tmp_path, text), release)
    assert edits.contents == {"sglang/srt/runner.py": RUNNER.replace("0", "1")}
    assert (release / "sglang" / "srt" / "runner.py").read_text() == RUNNER


def test_what_cannot_be_read_is_refused_by_its_name(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary, large = tmp_path / "binary.diff", tmp_path / "large.diff"
    binary.write_bytes(DIFF.encode() + b"\xff")
    with large.open("wb") as file:
        file.truncate((64 << 20) + 1)
    for path, why in (
        (tmp_path / "absent.diff", "No such file or directory"),
        (binary, f"not UTF-8 text, from byte {len(DIFF)} on"),
        (large, "are too many: the limit is"),
    ):
        with pytest.raises(Refused, match=f"{path.name}: .*{why}"):
            applied(path, release)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="git is not installed"):
        applied(patch(tmp_path, DIFF), release)


def test_new_files_come_and_what_is_not_sglangs_own_is_left_out(release: Path, tmp_path: Path) -> None:
    edits = applied(patch(tmp_path, DIFF + NEW_FILE + OTHER), release)
    assert set(edits.contents) == {"sglang/srt/runner.py", "sglang/srt/fresh.py"}
    assert edits.contents["sglang/srt/fresh.py"] == "HERE = 1\n"
    assert edits.left_out == ("test/registered/test_runner.py",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DIFF.replace("rows.append(0)", "rows.append(7)"), "does not apply: patch failed: sglang/srt/runner.py:1"),
        (DIFF.replace("runner.py", "absent.py"), "does not apply: sglang/srt/absent.py: No such file"),
        (DIFF.replace("append(1)", "append(0)"), "changes nothing of the sglang at "),
        (OTHER, "changes no file of sglang: test/registered/test_runner.py"),
        ("hello\n", "no patch: no line begins with --- or"),
        (DIFF[: DIFF.index("@@")], "does not apply: patch with only garbage"),
    ],
)
def test_a_patch_that_cannot_be_applied_is_told_in_a_line(
    release: Path, tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(Refused) as refused:
        applied(patch(tmp_path, text), release)
    assert message in str(refused.value) and "\n" not in str(refused.value)


DONE = Trace(ended=End(how=Termination.DONE))
OWN = codec.read(SEED).about


def verdict(status: Status, oracle: str = "", where: str = "") -> Verdict:
    return Verdict(oracle=oracle or str(OWN["oracle"]), status=status, where=where or str(OWN["where"]))


class World:
    """The results of the named seed and of all others, before and after."""

    def __init__(self, before: Sequence[Verdict], after: Sequence[Verdict], guards: Sequence[Verdict] = ()) -> None:
        self.before, self.after, self.guards = before, after, guards

    def __call__(self, target: Target, case: Case) -> tuple[Trace, Sequence[Verdict]]:
        patched = "/" in target.sglang
        if case == CASE:
            return DONE, self.after if patched else self.before
        about = codec.read(GUARD).about
        passed = verdict(Status.PASS, str(about["oracle"]), "")
        return DONE, [passed, *(self.guards if patched else ())]


def tried(
    world: World, release: Path, tmp_path: Path, *more: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    arguments = ["test", str(SEED), "--patch", str(patch(tmp_path, DIFF)), "--target", "0.5.15.post1/emulated", *more]
    used = rigs.rig(world, source=release, overlays=tmp_path / "overlays")
    return patch_test.go(options_of(arguments), used), capsys.readouterr().out


FAILS, PASSES = [verdict(Status.FAIL)], [verdict(Status.PASS)]
UNJUDGED = [verdict(Status.UNKNOWN)]
OTHERWISE = verdict(Status.FAIL, "bucket", "too large")


@pytest.mark.parametrize(
    ("world", "code", "conclusion"),
    [
        (World(FAILS, PASSES), 0, "| FAIL, 3 of 3 | PASS, 0 of 3 | **fixed** |"),
        (World(FAILS, FAILS), 1, "| FAIL, 3 of 3 | FAIL, 3 of 3 | **not fixed** |"),
        (World(PASSES, PASSES), 2, "| not shown: passes before |"),
        (World(PASSES, FAILS), 1, "| **worse**: slot0_padding at padded rows of req_pool_indices |"),
        (World(FAILS, [*PASSES, OTHERWISE]), 1, "| **worse**: bucket at too large |"),
        (World(FAILS, UNJUDGED), 1, "| **worse**: no longer runs: slot0_padding could not judge: "),
        (World(UNJUDGED, UNJUDGED), 3, "| not shown |"),
    ],
)
def test_before_and_after(
    world: World, code: int, conclusion: str, release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, text = tried(world, release, tmp_path, "--no-guards", capsys=capsys)
    assert exit_code == code and conclusion in text
    assert text.splitlines()[0].startswith("| seed | failure | before: 0.5.15.post1/emulated | after: with some.diff |")
    assert (tmp_path / "overlays/sglang/srt/runner.py").read_text() == RUNNER.replace("0", "1")


def test_every_other_seed_is_a_guard(release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "seen.json"
    code, text = tried(World(FAILS, PASSES, [OTHERWISE]), release, tmp_path, "--json", str(out), capsys=capsys)
    assert code == 1
    assert "| `pr26292-decode` (guard) |" in text and "**worse**: bucket at too large" in text
    seen = json.loads(out.read_text())
    assert len(seen["seeds"]) == len(list(SEEDS.glob("*.json"))) and seen["exit_code"] == 1
    both = World([*FAILS, OTHERWISE], [*PASSES, OTHERWISE])
    code, text = tried(both, release, tmp_path, "--no-guards", capsys=capsys)
    assert code == 0 and "Failures besides, on both sides: bucket at too large." in text


def test_failures_that_one_patch_removes_are_one_bug(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guard = codec.read(GUARD)

    def world(target: Target, case: Case) -> tuple[Trace, Sequence[Verdict]]:
        patched = "/" in target.sglang
        if case not in (CASE, guard.case):
            return DONE, [verdict(Status.PASS)]
        about = codec.read(SEED).about if case == CASE else guard.about
        status = Status.PASS if patched else Status.FAIL
        return DONE, [verdict(status, str(about["oracle"]), str(about["where"]))]

    arguments = ["test", str(SEED), "--patch", str(patch(tmp_path, DIFF)), "--target", "0.5.15.post1/emulated"]
    used = rigs.rig(world, source=release, overlays=tmp_path / "overlays")
    patch_test.go(options_of(arguments), used)
    text = capsys.readouterr().out
    assert "One bug, since one patch removes all of these: `multi-layer-stale-padding`, `pr26292-decode`." in text


def test_what_makes_no_sense_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        (["--patch", "x.diff"], "--patch FILE goes with --target T"),
        ([], "either --patch FILE --target T, or --pr-base PATH --pr-head PATH"),
        (["--pr-base", str(tmp_path), "--pr-head", str(tmp_path)], "is not an import path of sglang"),
        (["--patch", "x.diff", "--target", "9.9.9/emulated"], "sglang 9.9.9 is not installed"),
    ):
        assert main(["test", str(SEED), *arguments]) == 3
        error = capsys.readouterr().err
        assert text in error and error.count("\n") == 1


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_on_real_sglang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The candidate patch of a bug that is still there, as a file."""
    assert main(["repairs", "multi-layer-stale-padding", "--diff"]) == 0
    text = capsys.readouterr().out
    diff = patch(tmp_path, text[text.index("--- a/") :])
    arguments = ["test", str(SEED), "--patch", str(diff), "--target", f"{NEWEST}/emulated", "--no-guards"]
    assert main([*arguments, "--tries", "1"]) == 0
    assert "| **fixed** |" in capsys.readouterr().out
