"""Files that are handed over: what is in them, what they cannot show, and that they are run before."""

from __future__ import annotations

import ast
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from repro.__main__ import main, options_of
from repro.cases import codec
from repro.cases.case import Target
from repro.cases.release_list import ADAPTED
from repro.commands import script as command
from repro.commands.bisect import wanted_of
from repro.commands.cli import BadInput
from repro.traces.trace import End, Termination, Trace
from repro.upstream.edits import Edit
from repro.upstream.file_check import check, ending
from repro.upstream.fixes import SEEDS
from repro.upstream.patch_table import CandidatePatch
from repro.upstream.rig import Refused, Rig, Wanted
from repro.upstream.script import LINES_MAX, can_show, helper, script, upstream_test
from repro.upstream.sglang_style import in_style
from tests.builders import rigs
from tests.tools.sglang_hooks import complaints

SHOWN = {
    "pr23037-stale-padding": ("0.5.10.post1", "0.5.11"),
    "pr26292-decode": ("0.5.12.post1", "0.5.13"),
    "pr26292-draft-extend": ("0.5.12.post1", "0.5.13"),
    "draft-extend-reads-twice": ("0.5.12.post1", "0.5.13"),
    "multi-layer-stale-padding": ("0.5.15.post1",),
    "draft-padded-branches-keep-pages": ("0.5.23",),
    "verify-window-reads-first-tokens": ("0.5.23",),
    "draft-window-not-planned": ("0.5.23",),
    "draft-extend-window-reads-first-tokens": ("0.5.23",),
    "flashinfer-logit-cap-not-planned": ("0.5.23",),
    "verify-sinks-twice": ("0.5.23",),
    "verify-idle-on-pages": ("0.5.23",),
    "verify-window-by-place-in-tree": ("0.5.23",),
    "draft-padded-branches-keep-slots": ("0.5.18",),
    "decode-last-hidden-refused": ("0.5.16",),
    "multi-layer-verify-without-metadata": ("0.5.15.post1",),
    "verify-tree-padded-as-chain": ("0.5.15.post1",),
    "multi-layer-queries-of-later-layers": ("0.5.14",),
    "draft-sum-of-raw-batch": ("0.5.13.post1",),
    "pr26244-early-metadata": ("0.5.12.post1", "0.5.13"),
    "multi-layer-pool-too-small": ("0.5.11",),
    "verify-window-deterministic-mask": ("0.5.23",),
    "verify-mask-of-larger-batches": ("0.5.16", "0.5.17"),
    "multi-layer-hidden-states-unmade": ("0.5.10.post1", "0.5.11"),
}
EDITS = [
    Edit(file="runner.py", function="replay", old="rows.append(0)", new="rows.append(1)"),
    Edit(file="runner.py", function="replay", old="rows.sort()"),
]
ONE = CandidatePatch(seed="a-seed", oracle="staged", release="0.9", why="rows are staged", edits=())
NOTHING = rigs.rig(lambda target, case: (Trace(ended=End(how=Termination.DONE)), []))


def seed(name: str) -> codec.Seed:
    return codec.read(SEEDS / f"{name}.json")


def imported(text: str) -> set[str]:
    packages = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            packages.add((node.module or "").split(".")[0])
    return packages - set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", SHOWN)
def test_a_script_needs_sglang_and_torch_alone(name: str) -> None:
    text = script(name, seed(name), wanted_of(seed(name)), SHOWN[name], "Checked: 3 of 3.")
    assert imported(text) == {"sglang", "torch"}
    assert text.count("\n") <= LINES_MAX
    assert not any(mark in text for mark in ("$", "@era", "@end", "@version", "eagleeye"))
    assert "Checked: 3 of 3." in (ast.get_docstring(ast.parse(text), clean=False) or "")
    for about in ("sglang {__version__} at", "torch {torch.__version__}", "GPU:", "expected:", "seen:"):
        assert about in text


def test_a_script_says_what_it_stands_in_for() -> None:
    text = script("pr26292-decode", seed("pr26292-decode"), wanted_of(seed("pr26292-decode")), ("0.5.13",))
    begin, end = text.index("# ---- stand-ins: used only on a machine without a GPU"), text.index("# ---- end of the")
    assert "torch.cuda, torch.cpu" in text[begin:end] and "module.CUDAGraph" not in text[:begin] + text[end:]


def test_of_other_releases_there_is_nothing_in_it() -> None:
    case = seed("multi-layer-stale-padding")
    ranges = (("0.5.13",), ("0.5.23",), ("0.5.13", "0.5.14"))
    texts = [script("multi-layer-stale-padding", case, wanted_of(case), releases) for releases in ranges]
    assert ["GraphSharedOutput" in text for text in texts] == [False, True, False]
    assert ["set_global_server_args_for_scheduler" in text for text in texts] == [True, False, True]
    assert ["VERSION" in text for text in texts] == [False, False, True]
    assert "if VERSION < (0, 5, 14):" in texts[2] and "if VERSION >= (0, 5, 14):" in texts[2]


def test_what_no_script_can_show_is_told() -> None:
    shown = set()
    for path in sorted(SEEDS.glob("*.json")):
        stored = codec.read(path)
        release = Target.parse(str(stored.about["found"])).sglang
        if can_show(path.stem, stored, wanted_of(stored)):
            shown.add(path.stem)
            assert script(path.stem, stored, wanted_of(stored), (release,))
        else:
            with pytest.raises(Refused, match=r"no script (of|shows) "):
                script(path.stem, stored, wanted_of(stored), (release,))
    assert shown >= set(SHOWN)


def test_a_crash_that_depends_on_what_lies_behind_a_buffer_is_refused() -> None:
    crash = seed("pr27338-illegal-access")
    for make in (script, partial(upstream_test, engine="emulated")):
        with pytest.raises(Refused, match="pr27338-row-too-narrow has a script of the same bug"):
            make("pr27338-illegal-access", crash, wanted_of(crash), ("0.5.12.post1",))


def test_a_script_that_would_be_too_long_or_has_no_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under another name than its own, so that the parts are those of its runner."""
    plain = seed("pr26292-decode")
    assert script("unnamed", plain, wanted_of(plain), ("0.5.12.post1",))
    unusual = replace(plain, case=replace(plain.case, setup=replace(plain.case.setup, window=7)))
    with pytest.raises(Refused, match="no script of a case with window: there are no parts for that"):
        script("unnamed", unusual, wanted_of(plain), ("0.5.12.post1",))
    with pytest.raises(Refused, match="no script shows staged at real rows of x: there are some for padded rows"):
        script("unnamed", plain, Wanted(oracle="staged", where="real rows of x"), ("0.5.12.post1",))
    monkeypatch.setattr("repro.upstream.script.LINES_MAX", 20)
    with pytest.raises(Refused, match=r"the script would have \d+ lines, 20 at most: it spans too many releases"):
        script("unnamed", plain, wanted_of(plain), ("0.5.12.post1",))


@pytest.mark.parametrize(
    ("name", "buggy", "clean"),
    [
        ("pr26292-decode", "0.5.12.post1", "0.5.13"),
        # On every later release something else fails, which its script does not look at.
        ("pr26244-early-metadata", "0.5.12.post1", "0.5.13"),
        # The first release that passes comes before one on which something else fails.
        ("multi-layer-pool-too-small", "0.5.11", "0.5.15.post1"),
        ("verify-mask-not-padded", "0.5.22", ""),
    ],
)
def test_where_the_bug_is_not(name: str, buggy: str, clean: str) -> None:
    used = rigs.rig(lambda target, case: (Trace(ended=End(how=Termination.DONE)), []), releases=ADAPTED, lacking="gone")
    passing = command._passing(seed(name), Target(buggy, "emulated"), used)
    assert (passing.sglang if passing else "") == clean


@pytest.mark.parametrize("engine", ["emulated", "cuda"])
@pytest.mark.parametrize("name", SHOWN)
def test_a_test_has_the_form_of_sglangs_own(name: str, engine: str) -> None:
    text = upstream_test(name, seed(name), wanted_of(seed(name)), SHOWN[name], engine)
    assert imported(text) - {"torch"} == {"sglang"}
    tree = ast.parse(text)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    (test,) = (node for node in classes if any("CustomTestCase" in ast.unparse(base) for base in node.bases))
    assert any(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in test.body)
    # sglang's own collector reads this call without running it, so that its arguments must be constants.
    (call,) = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func).startswith("register_"))
    assert ast.unparse(call.func) == {"emulated": "register_cpu_ci", "cuda": "register_cuda_ci"}[engine]
    assert all(isinstance(keyword.value, ast.Constant) for keyword in call.keywords)
    assert ("import without_gpu" in text) == ("TRITON_INTERPRET" in text) == (engine == "emulated")
    assert not any(len(line) > 88 for line in (ast.get_docstring(tree) or "").splitlines())
    assert "if CPU" not in text or engine == "emulated"


def test_a_file_is_run_by_itself() -> None:
    text = "import os, sys\nprint(sorted(os.listdir()), os.environ['PYTHONPATH'])\nsys.exit(len(sys.argv))\n"
    outcome = check(NOTHING, text, Target("here", "emulated"), 2, 3, ["--cpu"])
    assert (outcome.right, outcome.tries, outcome.output) == (3, 3, "['test_repro.py'] here")
    assert str(outcome) == "shows the bug in 3 of 3 runs on here/emulated"
    assert check(NOTHING, text, Target("here", "emulated"), 1, 2, ["--cpu"]).right == 0
    assert check(NOTHING, text, Target("here", "emulated"), 1, 2, says="no such words").right == 0


HOST = "import os\nos.environ['LACKING'] = 'put in'\n"


def test_what_a_host_lacks_is_put_in_first() -> None:
    text = "import os, sys\nprint(os.environ['LACKING'])\n"
    seen = check(NOTHING, text, Target("here", "emulated"), 0, 1, host=HOST)
    assert (seen.right, seen.output) == (1, "put in")
    assert 0 < seen.seconds < 20


def test_comments_that_make_a_line_too_long_stand_above_it() -> None:
    why = "w" * 80
    text = f"x = 1  # {why}\nimport os  # noqa: F401 - {why}\n\n\ndef f():\n    return x  # short\n"
    styled = in_style(text)
    assert f"# {why}\nx = 1\n# {why}\nimport os  # noqa: F401\n" in styled
    assert "    return x  # short\n" in styled


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("try:\n    pass\nexcept* ValueError:\n    pass\n", "no Python 3.10: line 4: Exception groups"),
        ("print(absent)\n", "ruff check: F821"),
    ],
)
def test_what_their_hooks_refuse_is_not_written(text: str, reason: str) -> None:
    with pytest.raises(Refused) as refusal:
        in_style(text)
    assert str(refusal.value).startswith(reason)


TREE = os.environ.get("EAGLEEYE_SGLANG_TREE", "")


@pytest.mark.skipif(not TREE, reason="EAGLEEYE_SGLANG_TREE names no checkout of sglang, whose hooks are to be run")
def test_the_hooks_of_sglang_take_every_exported_test(tmp_path: Path) -> None:
    for name, releases in SHOWN.items():
        for engine in ("emulated", "cuda"):
            text = upstream_test(name, seed(name), wanted_of(seed(name)), releases, engine)
            (tmp_path / f"test_{name.replace('-', '_')}_{engine}.py").write_text(text)
    assert list(complaints(Path(TREE), sorted(tmp_path.iterdir()))) == []


@pytest.mark.slow
def test_a_file_that_says_nothing_for_too_long_is_ended() -> None:
    impatient = replace(NOTHING, patience=0.4)
    outcome = check(impatient, "import time\ntime.sleep(60)\n", Target("here", "emulated"), 0, 1)
    assert (outcome.right, outcome.output) == (0, "silent for 0 s")


def sides(rig: Rig, *arguments: str, name: str = "pr26292-decode") -> command.Sides:
    return command.sides_of(options_of(["script", str(SEEDS / f"{name}.json"), *arguments]), rig)


def test_where_a_file_must_pass_is_what_the_command_line_says(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "x.py").write_text("a = 1\n")
    diff = tmp_path / "some.diff"
    diff.write_text("--- a/python/sglang/x.py\n+++ b/python/sglang/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n")
    world = rigs.rig(
        lambda target, case: (Trace(ended=End(how=Termination.DONE)), []),
        releases=("0.5.12.post1", "0.5.13"),
        source=tmp_path,
        overlays=tmp_path / "overlays",
        lacking="it is gone",
    )
    buggy = ("--target", "0.5.12.post1/emulated")
    assert sides(world, *buggy).clean == Target("0.5.13", "emulated")
    assert sides(world, *buggy, "--fixed", "0.5.14/emulated").clean == Target("0.5.14", "emulated")
    patched = sides(world, *buggy, "--patch", str(diff)).clean
    assert patched is not None and (tmp_path / "overlays" / "sglang" / "x.py").read_text() == "a = 2\n"
    with pytest.raises(BadInput, match="absent/emulated: it is gone"):
        sides(world, "--target", "absent/emulated")
    with pytest.raises(BadInput, match="name the release that a checkout is driven as"):
        sides(world, "--target", f"{tmp_path}@emulated")


def test_a_candidate_patch_gives_the_files_that_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runner.py").write_text("def replay(rows):\n    rows.append(0)\n    rows.sort()\n")
    monkeypatch.setattr("repro.upstream.patch_table.CANDIDATE_PATCHES", (replace(ONE, edits=tuple(EDITS)),))
    world = rigs.rig(lambda target, case: (Trace(ended=End(how=Termination.DONE)), []), source=tmp_path)
    assert command.candidate("a-seed", Target("0.9", "emulated"), world) == {
        "runner.py": "def replay(rows):\n    rows.append(1)\n    pass\n"
    }
    assert command.candidate("a-seed", Target("0.8", "emulated"), world) == {}
    assert command.candidate("another", Target("0.9", "emulated"), world) == {}


def handed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, *more: str, tries: int = 2) -> int:
    monkeypatch.setattr(command, "script", lambda name, seed, failure, releases, checked="": f"{text}\n# {checked}\n")
    monkeypatch.setattr(command, "upstream_test", lambda *arguments, **more: text)
    monkeypatch.setattr(command, "with_helper", lambda rig, target: target)
    arguments = [*more, str(SEEDS / "pr26292-decode.json"), "--target", "0.5.12.post1/emulated", "--tries", str(tries)]
    used = rigs.rig(
        lambda target, case: (Trace(ended=End(how=Termination.DONE)), []),
        releases=("0.5.12.post1", "0.5.13"),
        lacking="gone",
    )
    options = options_of(arguments)
    return (command.export if options.command == "export" else command.go)(options, used)


SIDES = "import os, sys\nsys.exit('post1' in os.environ['PYTHONPATH'])"


def test_k_of_n_is_in_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert handed_over(monkeypatch, tmp_path, SIDES, "script") == 0
    printed = capsys.readouterr().out.replace("\n", " ")
    assert "shows the bug in 2 of 2 runs on 0.5.12.post1/emulated; passes in 2 of 2 runs on 0.5.13/emulated" in printed


def test_what_does_not_do_what_it_says_is_not_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "repro.py"
    for text, message in (
        ("import sys\nsys.exit(1)", "not handed over: passes in 0 of 2 runs on 0.5.13/emulated"),
        (
            "print('all is well')",
            "shows the bug in 0 of 2 runs on 0.5.12.post1/emulated; it ended with code 0 and: all",
        ),
    ):
        assert handed_over(monkeypatch, tmp_path, text, "script", "--out", str(out)) == 1
        assert message in capsys.readouterr().err and not out.exists()


def test_of_an_exception_its_own_words_are_told() -> None:
    advice = "Exception: Capture cuda graph failed: no such dtype\nPossible solutions:\n1. a\n2. b\n3. c\n4. d"
    assert (
        ending(f"Traceback\n  File\n{advice}").splitlines()[0] == "Exception: Capture cuda graph failed: no such dtype"
    )
    assert ending("1\n2\n3\n4\n5") == "2\n3\n4\n5"


UNITTEST = """\
import os, unittest
class Test(unittest.TestCase):
    def test_it(self):
        self.assertEqual(['wrong'] if 'post1' in os.environ['PYTHONPATH'] else [], [])
assert os.environ['LACKING'] == 'put in'
if __name__ == "__main__":
    unittest.main()
"""


@pytest.mark.slow
def test_an_exported_test_must_fail_by_its_assertion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # In place of the real one, which imports torch each time.
    monkeypatch.setattr(command, "host", lambda: HOST)
    out = tmp_path / "test_it.py"
    words = ("export", "--sglang-test", str(out))
    assert handed_over(monkeypatch, tmp_path, UNITTEST, *words, tries=1) == 0, capsys.readouterr()
    assert out.read_text() == UNITTEST
    assert out.with_name("graph_standins.py").read_text() == helper()
    out.unlink()
    # It ends with the same exit code, but by an error of its own.
    broken = UNITTEST.replace("self.assertEqual(", "self.absent(")
    assert handed_over(monkeypatch, tmp_path, broken, *words, tries=1) == 1
    assert not out.exists()


@pytest.mark.exhaustive
@pytest.mark.emulated("0.5.12.post1", "0.5.13")
def test_on_real_sglang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["script", str(SEEDS / "pr26292-decode.json"), "--target", "0.5.12.post1/emulated", "--tries", "1"]
    assert main([*arguments, "--out", str(tmp_path / "repro.py")]) == 0, capsys.readouterr()
    assert "shows the bug in 1 of 1 runs on sglang 0.5.12.post1" in (tmp_path / "repro.py").read_text()


@pytest.mark.exhaustive
@pytest.mark.emulated("0.5.23")
def test_a_function_on_real_sglang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the published release it shows the bug; with the candidate patch it does not."""
    seed_file = str(SEEDS / "draft-padded-branches-keep-pages.json")
    arguments = ["script", seed_file, "--target", "0.5.23/emulated", "--tries", "1"]
    assert main([*arguments, "--out", str(tmp_path / "repro.py")]) == 0, capsys.readouterr()
    assert "with the candidate patch" in (tmp_path / "repro.py").read_text()
