"""The recorder in servers that know nothing of it: calls are kept, and the server goes on whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from repro.commands import recorded
from repro.traces.exit_codes import ExitCode
from runners.__main__ import main as runners
from runners.recorder import hooks, ring
from tests.builders.project import PROJECT
from tests.builders.recordings import LOOP, only_ring, recording
from tests.builders.served_sglang import DEVICE, server, sglang


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
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where these tests run under nohup
    recording = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    signal.signal(signal.SIGHUP, hang_up)
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
