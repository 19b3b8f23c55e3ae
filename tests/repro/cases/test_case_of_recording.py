"""Cases of recordings; what is none, or says too little, is refused in one line."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from repro.__main__ import main as repro
from repro.cases.case import Case, Request, Setup, Step, Target
from repro.cases.codec import read
from repro.cases.option import SERVER
from repro.cases.options import OPTIONS
from repro.cases.release_list import ADAPTED, NEWEST
from repro.cases.releases import release_order
from repro.cases.runner_facts import RUNNER_FACTS
from repro.commands import recorded
from repro.traces.exit_codes import ExitCode
from repro.upstream.edits import Edit
from runners.__main__ import main as runners
from runners.processes.pool import Pool
from runners.recorder import ring, rows
from runners.recorder.ring import Ring
from runners.targets.environments import import_path, sglang_path
from runners.targets.overlay import Overlay, make_overlay
from tests.builders.recordings import LOOP, only_ring, recording, written

NAMES = frozenset(rows.SETTINGS)


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """No release needs to be installed."""
    monkeypatch.setattr("repro.commands.case.argument_names", lambda targets: NAMES)


def test_an_exception_names_its_line_and_gives_a_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = recording(tmp_path, LOOP.format(fails_at=240, count=300))
    assert code == ExitCode.FAIL
    path = only_ring(out)
    content = ring.read(path.read_bytes())
    failure = content.facts["failure"]
    assert failure["error"] == "IndexError" and failure["call"] == content.calls[-1].number == 241
    assert failure["place"].startswith("sglang/srt/speculative/eagle_draft_cuda_graph_runner.py:")
    assert content.calls[-1].state == ring.RAISED
    snapshots = [each for each in out.iterdir() if each != path]
    assert len(snapshots) == 1 and ring.read(snapshots[0].read_bytes()).facts["failure"] == failure
    assert f"eagleeye case from-recording {path}" in capsys.readouterr().out

    case_file = tmp_path / "server.case.json"
    assert repro(["case", "from-recording", str(path), "--out", str(case_file)]) == ExitCode.PASS
    seed = read(case_file)
    setup, steps = seed.case.setup, seed.case.steps
    assert (setup.runner, setup.topk, setup.page_size, setup.capture_bs) == ("draft", 2, 4, (2, 4))
    assert len(steps) == 64 and [r.slot for r in steps[-1].requests] == [3, 7, 1]
    assert seed.about["ended"] == (f"IndexError: index 9 is out of bounds at {failure['place']}",)
    assert "data: by request" in seed.about["guessed"]
    assert any("64 of" in line for line in seed.about["scaled down"])


def test_a_release_without_adapter_is_not_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out = recording(tmp_path, LOOP.format(fails_at=-1, count=3), version="0.5.10")
    assert code == ExitCode.ERROR and not out.exists()
    errors = capfd.readouterr().err
    assert "eagleeye: nothing is recorded of sglang 0.5.10: the first release is 0.5.13" in errors
    assert "error: nothing was recorded: sh ended with 0 before a graph runner" in errors


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no recording of eagleeye's"),
        (b"eagleeye", "no recording of eagleeye's"),
        (b"x" * 5000, "no recording of eagleeye's"),
        (ring._START.pack(ring.MAGIC, 7, 8, 4), "a recording of format 7, not 1"),
        (ring._START.pack(ring.MAGIC, ring.FORMAT, 8, 4), "the recording is cut"),
        (ring._START.pack(ring.MAGIC, ring.FORMAT, 2**32 - 1, 2**32 - 1), "the recording is cut"),
    ],
)
def test_what_is_no_recording_is_refused_in_a_line(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "calls.recording"
    path.write_bytes(content)
    assert repro(["case", "from-recording", str(path)]) == ExitCode.ERROR
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and words in errors[0] and str(path) in errors[0]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"release": "0.5.9", "runners": {}}, "a recording of sglang 0.5.9, which has no adapter"),
        ({"release": "0.5.23", "runners": {}}, "a recording without a call"),
        ({"release": "0.5.23", "runners": {"1": {"name": "draft"}}}, "runner 1 is not described"),
    ],
)
def test_a_recording_that_says_too_little_is_refused(
    facts: dict[str, object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Ring(tmp_path / "calls.recording", calls=4, rows=4)
    writer.say(facts)
    writer.enter(0, 1, 0, 1, 0, 0, [1], [1])
    assert repro(["case", "from-recording", str(writer.path)]) == ExitCode.ERROR
    assert words in capsys.readouterr().err


def test_a_runner_that_was_not_called_is_refused_with_those_that_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["case", "from-recording", str(written(tmp_path, 3)), "--runner", "verify"]
    assert repro(words) == ExitCode.ERROR
    assert "no call of the verify runner; there are calls of draft (--runner)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "a command behind -- or --snapshot FOLDER is needed"),
        (["--", "no-such-command-there"], "no-such-command-there: No such file"),
        (["--snapshot", "no/such"], "no/such: no server records in this folder"),
        (["--out", "/dev/null/x", "--", "true"], "/dev/null/x: Not a directory"),
    ],
)
def test_a_command_that_cannot_be_recorded_is_refused(
    words: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert runners(["record", *words]) == ExitCode.ERROR
    assert reason in capsys.readouterr().err


def test_the_settings_are_those_that_options_are_named_by() -> None:
    server_names = {name for option in OPTIONS if option.part == SERVER for name in (option.name, *option.older)}
    assert server_names - {"num_draft_tokens"} <= set(rows.SETTINGS) | {"max_total_tokens", "cuda_graph_bs"}


@pytest.mark.parametrize(
    "release",
    [
        pytest.param(release, marks=pytest.mark.emulated(release))
        for release in ADAPTED
        if release_order(release) >= release_order(rows.SINCE)
    ],
)
def test_a_release_has_one_class_for_each_runner(release: str) -> None:
    folders = import_path(Target(release, "emulated"))
    kinds: dict[str, int] = {}
    for hook in rows.HOOKS:
        path = folders[0] / f"{hook.module.replace('.', '/')}.py"
        nodes = ast.parse(path.read_text()).body if path.exists() else []
        methods = [
            method
            for node in nodes
            if isinstance(node, ast.ClassDef) and node.name == hook.kind
            for method in node.body
            if isinstance(method, ast.FunctionDef) and method.name in hook.methods
            if [each.arg for each in method.args.args[1:2]] == ["forward_batch"]
        ]
        kinds[hook.runner] = kinds.get(hook.runner, 0) + len(methods)
    assert kinds == dict.fromkeys(("decode", "draft", "draft_extend", "frozen_kv_mtp", "multi_layer"), 1)


def test_cases_are_of_the_last_call_of_a_request(tmp_path: Path) -> None:
    """A slot whose length falls belongs to another request from then on."""
    path = tmp_path / "calls.ring"
    writer = Ring(path, calls=8, rows=4)
    about = {"name": "draft_extend", "class": "X", "buckets": [2], "width": 4}
    writer.say({"release": "0.5.23", "runners": {"1": about}, "settings": {}})
    for lengths in ([14, 24], [17, 25], [9, 29]):
        writer.enter(0, 1, ring.GRAPH | ring.LENGTHS | ring.SLOTS, 2, 2, 0, lengths, [1, 2])
    rows_of = [
        [(row.request, row.length, row.accepted) for row in batch.rows]
        for batch in recorded.batches(recorded.read(path), "draft_extend")
    ]
    assert rows_of == [
        [("1.0", 10, 2), ("2.0", 20, 0)],
        [("1.0", 13, None), ("2.0", 21, 3)],
        [("1.1", 5, None), ("2.0", 25, None)],
    ]


def test_a_runner_that_lacks_the_servers_algorithm_has_its_own(tmp_path: Path) -> None:
    writer = Ring(tmp_path / "calls.ring", calls=4, rows=4)
    about = {"name": "verify", "class": "X", "buckets": [1, 2], "width": 4}
    settings = {
        "speculative_algorithm": "NEXTN",
        "speculative_eagle_topk": 1,
        "speculative_num_steps": 3,
        "speculative_num_draft_tokens": 4,
    }
    writer.say({"release": "0.5.23", "runners": {"1": about}, "settings": settings})
    writer.enter(0, 1, ring.GRAPH | ring.LENGTHS | ring.SLOTS, 2, 2, 0, [9, 4], [2, 1])
    assert repro(["case", "from-recording", str(writer.path)]) == ExitCode.PASS
    seed = read(tmp_path / "calls.case.json")
    assert (seed.case.setup.runner, seed.case.setup.num_steps) == ("verify", 3)
    assert seed.case.setup.algorithm == RUNNER_FACTS["verify"].algorithms[0]
    assert ("algorithm: EAGLE3, here EAGLE, with which verify is driven" in seed.about["scaled down"]) == (
        "EAGLE3" not in RUNNER_FACTS["verify"].algorithms
    )


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_a_crash_in_rounds_becomes_a_case_that_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two requests run well; the third one makes padding, whose line is planted to fail."""
    file, line = "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py", "self.seq_len_fill_value"
    edit = Edit(
        file=file,
        function="EAGLEDraftCudaGraphRunner.execute",
        old=f"buffers.seq_lens.fill_({line})",
        new=f"buffers.seq_lens.fill_(self.capture_bs[self.capture_bs.index(bs) + 1] and {line})",
    )
    release = sglang_path(Target(NEWEST, "emulated"))
    target = Target(str(make_overlay(release, Overlay(release=NEWEST, change="planted"), [edit], tmp_path)), "emulated")
    setup = Setup(runner="round", topk=1, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2, 4), slots=4)
    first = Step(requests=tuple(Request(slot=slot, seq_len=9 + slot, data=slot, further=30) for slot in (1, 2)))
    case = Case(setup=setup, steps=(first, Step(requests=(Request(slot=3, seq_len=5, data=3, further=9),), wait=8)))
    with Pool(
        target,
        timeout_s=600,
        session="tests.builders.recorded_session",
        variables={"EAGLEEYE_X": str(tmp_path / "live")},
    ) as pool:
        assert pool.run(case).ended.what == "IndexError"
    path = only_ring(tmp_path / "live")
    content = recorded.read(path)
    names_of = [content.runners[call.runner].name for call in content.calls]
    assert set(names_of) == {"draft", "verify", "draft_extend"} and names_of[-1] == "draft"
    place = content.facts["failure"]["place"]
    assert place.startswith(f"{file}:") and place.endswith(" in execute")
    seed = tmp_path / "server.case.json"
    assert repro(["case", "from-recording", str(path), "--out", str(seed)]) == ExitCode.PASS
    capsys.readouterr()
    assert repro(["run", str(seed), "--target", str(target)]) == ExitCode.FAIL
    assert (
        f"IndexError came out in graph of step {len(read(seed).case.steps) - 1}, at {place}" in capsys.readouterr().out
    )
