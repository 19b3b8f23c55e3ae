"""The recorder: rings that outlive their process, servers that know nothing of it, cases of what was recorded."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from repro.__main__ import main as repro
from repro.cases.batches import BadEvidence
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
from runners.recorder import hooks, ring, rows
from runners.recorder.ring import BadRing, Ring
from runners.targets.environments import import_path, sglang_path
from runners.targets.overlay import Overlay, make_overlay
from tests.builders.served_sglang import DEVICE, server, sglang

PROJECT = Path(__file__).parent.parent
NAMES = frozenset(rows.SETTINGS)
LOOP = """
Scheduler(ARGUMENTS, {fails_at}).event_loop_normal(batches({count}))
"""


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """No release needs to be installed."""
    monkeypatch.setattr("repro.commands.case.argument_names", lambda targets: NAMES)


def recording(tmp_path: Path, body: str, *words: str, version: str = "0.5.23") -> tuple[int, Path]:
    """The exit code of `record` of a server with this body, and the folder that it wrote."""
    path = sglang(tmp_path / "path", version)
    script = server(tmp_path, body)
    out = tmp_path / "out"
    # As a server's own import path: behind the recorder's, which the environment has.
    command = ["sh", "-c", f'PYTHONPATH="$PYTHONPATH:{path}" exec {sys.executable} {script}']
    return runners(["record", "--out", str(out), *words, "--", *command]), out


def only_ring(out: Path) -> Path:
    (path,) = [path for path in out.iterdir() if path.stem.count("-") == 1]
    return path


def written(tmp_path: Path, count: int, calls: int = 8) -> Path:
    """A ring of so many calls, with one row each whose length is the call's number."""
    path = tmp_path / "calls.ring"
    writer = Ring(path, calls, rows=4)
    about = {"name": "draft", "class": "X", "buckets": [1, 2], "width": 2}
    writer.say({"release": "0.5.23", "runners": {"1": about}, "settings": {}})
    for number in range(1, count + 1):
        flags = ring.GRAPH | ring.LENGTHS | ring.SLOTS
        assert writer.enter(number, 1, flags, 1, 1, 0, [number], [3]) == number
        writer.leave(number, ring.LEFT)
    writer.close()
    return path


# Rings


def test_a_ring_keeps_the_last_calls(tmp_path: Path) -> None:
    content = ring.read(written(tmp_path, 20).read_bytes())
    assert [call.number for call in content.calls] == list(range(13, 21))
    assert [call.lengths for call in content.calls] == [(number,) for number in range(13, 21)]
    assert {call.state for call in content.calls} == {ring.LEFT} and content.lost == 0


def test_a_call_that_was_overwritten_is_not_said_to_have_ended(tmp_path: Path) -> None:
    writer = Ring(tmp_path / "calls.ring", calls=4, rows=4)
    writer.say({"runners": {}})
    for _ in range(6):
        writer.enter(0, 1, 0, 1, 0, 0, [1], [1])
    writer.leave(2, ring.RAISED)
    assert {call.state for call in ring.read(writer.path.read_bytes()).calls} == {ring.ENTERED}


def test_a_call_of_more_requests_than_a_slot_has_is_cut(tmp_path: Path) -> None:
    writer = Ring(tmp_path / "calls.ring", calls=4, rows=4)
    writer.say({"runners": {}})
    writer.enter(0, 1, 0, 6, 8, 0, range(6), range(6))
    (call,) = ring.read(writer.path.read_bytes()).calls
    assert (call.requests, call.lengths, call.slots) == (6, (0, 1, 2, 3), (0, 1, 2, 3)) and call.flags & ring.CUT


def test_a_call_that_is_damaged_is_lost_and_the_others_are_kept(tmp_path: Path) -> None:
    path = written(tmp_path, 8)
    content = bytearray(path.read_bytes())
    size = ring.slot_size(4)
    content[-size * 3 + 20] ^= 1
    damaged = ring.read(bytes(content))
    assert damaged.lost == 1 and len(damaged.calls) == 7


def test_facts_that_were_being_written_do_not_take_the_ones_before_with_them(tmp_path: Path) -> None:
    writer = Ring(tmp_path / "calls.ring", calls=4, rows=4)
    for state in ("first", "second", "third"):
        writer.say({"state": state})
    content = bytearray(writer.path.read_bytes())
    place = content.index(b'{"state": "third"')
    content[place + 3] ^= 1
    assert ring.read(bytes(content)).facts == {"state": "second"}


def test_a_ring_that_is_cut_is_refused_wherever(tmp_path: Path) -> None:
    content = written(tmp_path, 20).read_bytes()
    for end in range(0, len(content), len(content) // 50):
        with pytest.raises(BadRing):
            ring.read(content[:end])


def test_a_ring_with_a_changed_byte_is_read_or_refused(tmp_path: Path) -> None:
    path = written(tmp_path, 20)
    content = path.read_bytes()
    places = [*range(64), *range(4096, len(content), 997)]
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 0xFF
        path.write_bytes(bytes(changed))
        try:
            recorded.batches(recorded.read(path), "draft")
        except BadEvidence as error:
            assert len(str(error).splitlines()) == 1


# Servers


def test_a_server_is_recorded_without_knowing_of_it(tmp_path: Path) -> None:
    code, out = recording(tmp_path, LOOP.format(fails_at=-1, count=300), "--calls", "50")
    assert code == ExitCode.PASS
    path = only_ring(out)
    content = ring.read(path.read_bytes())
    assert [call.number for call in content.calls] == list(range(251, 301))
    last = content.calls[-1]
    assert (last.requests, last.bucket, last.lengths, last.slots) == (2, 2, (10 + 2 * 19, 20 + 2 * 19), (3, 7))
    assert content.facts["runners"]["1"] | {"class": ""} == {
        "name": "draft",
        "class": "",
        "buckets": [1, 2, 4],
        "width": 2,
    }
    assert content.facts["settings"]["speculative_eagle_topk"] == 2 and content.facts["release"] == "0.5.23"
    # No token, no name of a request, no key, no path.
    assert not any(word in path.read_bytes() for word in (b"SECRET", b"424242", (424242).to_bytes(4, "little")))


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


def test_a_server_that_catches_every_failure_does_not_fill_the_disk(tmp_path: Path) -> None:
    body = """
loop = Scheduler(ARGUMENTS, 5)
for _ in range(9):
    try:
        loop.event_loop_normal(batches(6))
    except IndexError:
        pass
"""
    code, out = recording(tmp_path, body)
    assert code == ExitCode.PASS and len(list(out.iterdir())) == 1 + 4
    assert len(recorded.read(only_ring(out)).calls) == 54


def test_without_pinned_memory_the_schedulers_lengths_are_kept(tmp_path: Path) -> None:
    body = f"""{DEVICE}
def refuse(*_, **__):
    raise RuntimeError("no pinned memory")

sys.modules["torch"].full = refuse
for number in range(20):
    call(number, 100 + number, 90)
"""
    _, out = recording(tmp_path, body)
    assert [call.lengths for call in recorded.read(only_ring(out)).calls] == [(90,)] * 20


def test_a_server_that_is_killed_leaves_its_calls(tmp_path: Path) -> None:
    body = """
def dying(count):
    yield from batches(count)
    Scheduler.run_batch(loop, batch(count, (5, 77)))
    os.kill(os.getpid(), signal.SIGKILL)

loop = Scheduler(ARGUMENTS, -1)
loop.event_loop_normal(dying(40))
"""
    code, out = recording(tmp_path, body)
    assert code == ExitCode.FAIL
    content = recorded.read(only_ring(out))
    assert len(content.calls) == 41 and content.calls[-1].lengths == (77,)


def test_a_call_under_way_is_the_one_that_it_is_about(tmp_path: Path) -> None:
    body = """
from sglang.srt.speculative import eagle_draft_cuda_graph_runner as module
loop = Scheduler(ARGUMENTS, -1)
loop.event_loop_normal(batches(7))
class Killing:
    batch_size = 1
    forward_mode = None
    class seq_lens_cpu:
        is_cpu = True
        tolist = staticmethod(lambda: [9])
    @property
    def fails(self):
        os.kill(os.getpid(), signal.SIGKILL)
loop.runner.execute(Killing())
"""
    code, out = recording(tmp_path, body)
    assert code == ExitCode.FAIL
    content = recorded.read(only_ring(out))
    assert content.calls[-1].state == ring.ENTERED
    assert recorded.ending(content) == "call 8 of draft was under way"
    (*_, batch) = recorded.batches(content, recorded.failing(content))
    assert [(row.request, row.length) for row in batch.rows] == [("row 0", 9)]


def test_a_live_process_is_recorded_and_copied_on_demand(tmp_path: Path) -> None:
    body = f"""
sys.path.append({str(hooks.ON_PATH)!r})
import eagleeye_recorder
recorder = eagleeye_recorder.start({str(tmp_path / "live")!r})
loop = Scheduler(ARGUMENTS, -1)
loop.event_loop_normal(batches(5))
print(recorder.snapshot())
loop.event_loop_normal(batches(5))
"""
    script = server(tmp_path, body)
    environment = {**os.environ, "PYTHONPATH": str(sglang(tmp_path / "path"))}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    assert len(recorded.read(Path(done.stdout.strip())).calls) == 5
    live = tmp_path / "live"
    assert runners(["record", "--snapshot", str(live)]) == ExitCode.PASS
    (copy,) = live.glob(f"*-2{ring.ENDING}")
    assert len(recorded.read(copy).calls) == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "stubborn"), [(signal.SIGINT, False), (signal.SIGTERM, True), (signal.SIGHUP, False)], ids=str
)
def test_a_signal_ends_the_server_and_keeps_its_calls(number: signal.Signals, stubborn: bool, tmp_path: Path) -> None:
    ignored = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if stubborn else ""
    body = f"""
import time
{ignored}
signal.signal(signal.SIGINT, signal.SIG_IGN)
Scheduler(ARGUMENTS, -1).event_loop_normal(batches(9))
print(os.getpid(), flush=True)
time.sleep(120)
"""
    script, out = server(tmp_path, body), tmp_path / "out"
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT}:{sglang(tmp_path / 'path')}"}
    command = [sys.executable, "-m", "runners", "record", "--out", str(out), "--", sys.executable, str(script)]
    recording = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert recording.stdout
    served = int(recording.stdout.readline())
    recording.send_signal(number)
    assert recording.wait(timeout=60) == ExitCode.FAIL
    assert len(recorded.read(only_ring(out)).calls) == 9
    with pytest.raises(ProcessLookupError):
        os.kill(served, 0)


def test_a_process_with_the_number_of_an_earlier_one_has_a_ring_of_its_own(tmp_path: Path) -> None:
    body = """
from pathlib import Path
folder = Path(os.environ["EAGLEEYE_RECORDER"])
(folder / f"calls-{os.getpid()}.ring").write_text("an earlier one")
import eagleeye_recorder
Scheduler(ARGUMENTS, -1).event_loop_normal(batches(3))
print(eagleeye_recorder.start("elsewhere").snapshot())
"""
    code, out = recording(tmp_path, body)
    assert code == ExitCode.PASS and not (tmp_path / "elsewhere").exists()
    (path,) = (each for each in out.iterdir() if each.stem.endswith(".2"))
    (snapshot,) = (each for each in out.iterdir() if each.stem.endswith(".2-1"))
    assert [len(recorded.read(each).calls) for each in (path, snapshot)] == [3, 3]


def test_a_batch_that_the_recorder_cannot_read_does_not_harm_the_server(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
from sglang.srt.managers.scheduler import Thing
loop = Scheduler(ARGUMENTS, -1)
loop.event_loop_normal(batches(3))
assert loop.runner.execute(Thing(fails=False)) == "drafts"
loop.event_loop_normal(batches(3))
"""
    code, out = recording(tmp_path, body)
    assert code == ExitCode.PASS and len(recorded.read(only_ring(out)).calls) == 3
    assert capfd.readouterr().err.count("eagleeye: recording ends: AttributeError") == 1


def test_what_no_graph_runs_is_recorded_so(tmp_path: Path) -> None:
    body = """
loop = Scheduler(ARGUMENTS, -1)
loop.event_loop_normal([batch(0, *((slot, 9) for slot in range(1, 7))), batch(1, (2, 10))])
"""
    _, out = recording(tmp_path, body)
    content = recorded.read(only_ring(out))
    assert [(call.requests, call.bucket, call.flags & ring.GRAPH) for call in content.calls] == [(6, 0, 0), (1, 1, 1)]
    assert [batch.graph for batch in recorded.batches(content, "draft")] == [False, True]


def test_lengths_on_a_device_are_copied_without_a_wait(tmp_path: Path) -> None:
    body = f"""{DEVICE}
for number in range(40):
    call(number, 100 + number, 90)
    if number < 30:
        reach()
"""
    code, out = recording(tmp_path, body)
    assert code == ExitCode.PASS
    calls = ring.read(only_ring(out).read_bytes()).calls
    # Those that were left alone for long enough, and had come.
    assert [call.lengths for call in calls[:23]] == [(100 + number,) for number in range(23)]
    assert {call.flags & (ring.LENGTHS | ring.COUNTED) for call in calls[:23]} == {ring.LENGTHS}
    assert [call.lengths for call in calls[24:]] == [(90,)] * 16
    assert {call.flags & (ring.LENGTHS | ring.COUNTED) for call in calls[24:]} == {ring.COUNTED}
    assert {call.slots for call in calls} == {(3,)}


def test_a_snapshot_has_the_lengths_that_have_come(tmp_path: Path) -> None:
    body = f"""{DEVICE}
for number in range(5):
    call(number, 100 + number, 90)
reach()
call(5, 105, 90)
try:
    Scheduler.event_loop_normal(loop, [None])
except AttributeError:
    pass
"""
    _, out = recording(tmp_path, body)
    content = recorded.read(only_ring(out))
    assert [call.lengths for call in content.calls] == [*((100 + number,) for number in range(5)), (90,)]
    (*_, last) = recorded.batches(content, "draft")
    assert last.rows[0].length == 89
    assert "a round late under overlap" in next(recorded.guessed(content))


def test_a_sitecustomize_of_the_servers_own_still_runs(tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text("import builtins\nbuiltins.OWN = True\n")
    code, _ = recording(tmp_path, f"assert OWN\n{LOOP.format(fails_at=-1, count=3)}")
    assert code == ExitCode.PASS


# Refusals


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


# Releases


def test_the_settings_are_those_that_options_are_named_by() -> None:
    server_names = {name for option in OPTIONS if option.part == SERVER for name in (option.name, *option.older)}
    assert server_names - {"num_draft_tokens"} <= set(rows.SETTINGS) | {"max_total_tokens", "cuda_graph_bs"}


@pytest.mark.parametrize(
    "release", [release for release in ADAPTED if release_order(release) >= release_order(rows.SINCE)]
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
        "speculative_algorithm": "EAGLE3",
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


@pytest.mark.slow
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
