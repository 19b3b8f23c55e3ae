"""The first divergence of a run; and compute-sanitizer's reports, through a stand-in for it."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest

from oracles import ended as ended_oracle
from oracles.catalogue import judge_all
from repro.__main__ import main
from repro.cases import codec
from repro.cases.case import Case, Request, Setup, Step, Target
from repro.shrinking.confirm import failure
from repro.shrinking.first_divergence import FirstDivergence, annotate, locate, of_run
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.stacks import reason
from repro.traces.trace import End, Termination, Trace
from repro.upstream.fixes import SEEDS
from runners.processes.causes import last_words
from runners.processes.diagnose import locate_first
from runners.processes.pool import Pool
from runners.processes.sanitizer import Access, Reports, parse, program, wrapper
from runners.targets.environments import NotUsable

SETUP = Setup(runner="toy", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(2, 4), slots=4)


def batch(*slots: int) -> Step:
    return Step(requests=tuple(Request(slot=slot, seq_len=3 + slot, data=slot) for slot in slots))


CASE = Case(setup=SETUP, steps=(batch(1, 2), batch(3, 4), batch(2)))


def fail(oracle: str, step: int, buffer: str) -> Verdict:
    cell = Cell(step=step, buffer=buffer, row=1, column=0, got="2", want="0")
    return Verdict(oracle=oracle, status=Status.FAIL, where="there", detail="So it is.", cell=cell)


CRASH = Verdict(oracle="ended", status=Status.FAIL, where="crashed SIGABRT in replay")
TRACEBACK = """Traceback (most recent call last):
  File "/x/runners/sessions/step.py", line 90, in _graph
    return captured.adapter.graph(captured.runner, forward_batch)
  File "/site-packages/sglang/srt/speculative/eagle_draft_cuda_graph_runner.py", line 345, in replay
    self.graphs[bs].replay()
  File "/site-packages/torch/cuda/graphs.py", line 88, in replay
    super().replay()
torch.AcceleratorError: CUDA error: an illegal memory access was encountered
"""
WRAPPED = (
    TRACEBACK
    + """
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/site-packages/sglang/srt/model_executor/cuda_graph_runner.py", line 628, in __init__
    raise Exception(
Exception: Capture cuda graph failed: CUDA error: an illegal memory access was encountered
AcceleratorError: CUDA error: an illegal memory access was encountered
"""
)
DYING = """Fatal Python error: Aborted

Current thread 0x00007f (most recent call first):
  File "/site-packages/triton/runtime/jit.py", line 5 in run
  File "/site-packages/sglang/srt/layers/attention/triton_backend.py", line 77 in init_forward_metadata
  File "/site-packages/sglang/srt/speculative/eagle_worker.py", line 5 in draft_forward
"""
# As Python writes it; where nothing in the thread that dies is Python's, another thread shows what was being done.
RECORDED = """terminate called after throwing an instance of 'c10::AcceleratorError'
  what():  CUDA error: an illegal memory access was encountered

Fatal Python error: Aborted

Thread 0x00007f2c3bfff640 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
  File "/usr/lib/python3.12/site-packages/tqdm/_monitor.py", line 60 in run
  File "/usr/lib/python3.12/threading.py", line 1032 in _bootstrap

{} 0x00007f2d4f3c1080 (most recent call first):
  File "/usr/lib/python3.12/site-packages/torch/cuda/graphs.py", line 88 in replay
  File "/cache/targets/sglang-0.5.23/sglang/srt/model_executor/runner_backend.py", line 123 in <lambda>
  File "/cache/targets/sglang-0.5.23/sglang/srt/speculative/eagle_draft_cuda_graph_runner.py", line 345 in replay
  File "/x/runners/sessions/step.py", line 90 in _graph
  File "/x/runners/processes/worker.py", line 62 in <module>
  File "<frozen runpy>", line 88 in _run_code
  File "<frozen runpy>", line 198 in _run_module_as_main
"""
IN_THREAD = RECORDED.format("Current thread")
IN_LIBRARY = (
    f"{RECORDED.format('Thread')}\nCurrent thread 0x00007f2b11111640 (most recent call first):\n  <no Python frame>\n"
)


def ended(detail: str = "", how: Termination = Termination.RAISED) -> Trace:
    what = "CUDA error: an illegal memory access"
    return Trace(ended=End(how=how, step=2, path="replay", what=what, detail=detail))


def test_the_earliest_step_and_in_it_the_earliest_oracle_is_first() -> None:
    verdicts = [CRASH, fail("staged", 2, "positions"), fail("kv_indices", 1, "kv_indices"), fail("kv_writes", 1, "kv")]
    divergence = of_run(Trace(ended=End(how=Termination.DONE)), verdicts)
    assert (divergence.oracle, divergence.cell) == ("kv_indices", verdicts[2].cell)
    assert str(divergence) == "First wrong: step 1 kv_indices[1,0] is 2, expected 0 (kv_indices)."


@pytest.mark.parametrize(
    ("detail", "place"),
    [
        (TRACEBACK, "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py:345 in replay"),
        (WRAPPED, "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py:345 in replay"),
        (DYING, "sglang/srt/layers/attention/triton_backend.py:77 in init_forward_metadata"),
        (IN_THREAD, "sglang/srt/model_executor/runner_backend.py:123 in <lambda>"),
        (IN_LIBRARY, "sglang/srt/model_executor/runner_backend.py:123 in <lambda>"),
        ("killed", ""),
    ],
)
def test_a_crash_is_said_to_come_out_at_sglangs_innermost_line(detail: str, place: str) -> None:
    divergence = of_run(ended(detail), [CRASH], exact=True)
    assert divergence.place == place
    at = f", at {place}" if place else ""
    assert str(divergence) == (
        f"With every launch waited for, CUDA error: an illegal memory access came out in replay of step 2{at}."
    )
    assert str(of_run(ended(), [CRASH])).startswith("CUDA error")


@pytest.mark.parametrize(
    ("detail", "line"),
    [
        (IN_THREAD, "Fatal Python error: Aborted, at sglang/srt/model_executor/runner_backend.py:123 in <lambda>"),
        (IN_LIBRARY, "Fatal Python error: Aborted, at sglang/srt/model_executor/runner_backend.py:123 in <lambda>"),
        (
            IN_THREAD.replace("/sglang/", "/other/"),
            "Fatal Python error: Aborted, at runners/sessions/step.py:90 in _graph",
        ),
        ("Fatal Python error: Aborted\n", "Fatal Python error: Aborted"),
        (f"{IN_THREAD}\n{TRACEBACK}", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
        ("the session ended with SIGKILL\n", "the session ended with SIGKILL"),
    ],
)
def test_a_report_comes_to_a_line_that_says_what_happened(detail: str, line: str) -> None:
    assert reason(detail) == line


@pytest.mark.parametrize("detail", [IN_THREAD, IN_LIBRARY])
def test_of_what_a_dying_process_printed_the_innermost_frames_are_told(detail: str) -> None:
    outer = '  File "/site-packages/a.py", line 1 in f\n' * 900
    words = last_words("chatter\n" * 2000 + detail + outer)
    verdict = ended_oracle.judge(CASE, ended(words, Termination.CRASHED))
    assert verdict.detail.endswith(", at sglang/srt/model_executor/runner_backend.py:123 in <lambda>."), verdict.detail
    assert "what():  CUDA error" in words and len(words) <= 8003


def test_what_comes_out_in_the_harnesss_own_code_says_so() -> None:
    """Still a failure, and a person sees that sglang's line only led there."""
    line = '  File "/x/runners/engines/{}.py", line 7, in {}\n'
    staging, launch = line.format("staging", "hold"), line.format("cuda", "replay")
    handed_on = line.format("guards", "__torch_function__")
    where = "step 2, at sglang/srt/speculative/eagle_draft_cuda_graph_runner.py:345 in replay"
    copying = of_run(ended(TRACEBACK.replace("torch.Acc", f"{staging}torch.Acc")), [CRASH], exact=True)
    assert f"{where}, in the harness's own code (runners/engines/staging.py:7 in hold)." in str(copying)
    for passing in (launch, handed_on):
        through = ended(TRACEBACK.replace("torch.Acc", f"{passing}torch.Acc"))
        assert f"{where}." in str(of_run(through, [CRASH], exact=True))


def test_the_thread_that_dies_is_the_one_that_is_looked_at() -> None:
    other = DYING.replace("Current thread", "Thread").replace("triton_backend.py", "other.py")
    for detail in (f"{other}\n{DYING}", f"{DYING}\n{other}"):
        assert "triton_backend.py:77" in of_run(ended(detail), [CRASH], exact=True).place


def test_what_establishes_nothing_says_nothing() -> None:
    assert str(of_run(Trace(ended=End(how=Termination.DONE)), [])) == ""
    for how in (Termination.UNSUPPORTED, Termination.ERROR):
        assert of_run(Trace(ended=End(how=how, what="no memory")), []) == FirstDivergence()
    verdict = fail("staged", 0, "positions")
    assert annotate(verdict, FirstDivergence()) == verdict
    text = annotate(verdict, of_run(Trace(ended=End(how=Termination.DONE)), [verdict]))
    assert text.detail == "So it is. First wrong: step 0 positions[1,0] is 2, expected 0 (staged)."
    assert text.fingerprint == verdict.fingerprint


def test_after_a_crash_the_run_that_waits_counts() -> None:
    questions: list[str] = []

    def run(case: Case) -> Trace:
        questions.append("run")
        return ended()

    def waiting(case: Case) -> Trace:
        questions.append("waiting")
        return ended(TRACEBACK)

    divergence = locate(CASE, CRASH, run, lambda case, trace: [CRASH], waiting)
    assert (questions, divergence.exact, "345" in divergence.place) == (["run", "waiting"], True, True)
    gone = locate(CASE, CRASH, run, lambda case, trace: [CRASH], lambda case: Trace(ended=End(how=Termination.DONE)))
    assert not gone.exact, "waiting drove the failure away, so it is told as it was"
    other = locate(CASE, CRASH, lambda case: Trace(ended=End(how=Termination.DONE)), lambda case, trace: [], waiting)
    assert other == FirstDivergence(), "the failure did not come back"
    assert questions == ["run", "waiting", "run"]


@pytest.mark.parametrize(
    ("bug", "oracle", "buffer", "row", "step"),
    [
        ("stale_padding", "slot0_padding", "req_pool_indices", 1, 2),
        ("stale_req_pool", "slot0_padding", "req_pool_indices", 1, 2),
        ("row_not_staged", "staged", "topk_index", 1, 0),
        ("indptr_off", "metadata_shape", "kv_indptr", 0, 0),
    ],
)
def test_on_the_toy_the_planted_bug_is_first_wrong(bug: str, oracle: str, buffer: str, row: int, step: int) -> None:
    with Pool(Target(bug, "toy")) as pool:
        verdict = failure(judge_all(CASE, pool.run(CASE)))
        assert verdict
        divergence = locate_first(pool, CASE, verdict, judge_all)
    cell = divergence.cell
    assert cell and (divergence.oracle, cell.buffer, cell.row, cell.step) == (oracle, buffer, row, step)


def test_a_crash_on_the_toy_says_where() -> None:
    with Pool(Target("crash", "toy")) as pool:
        verdict = failure(judge_all(CASE, pool.run(CASE)))
        assert verdict
        divergence = locate_first(pool, CASE, verdict, judge_all)
    assert (divergence.error, divergence.step, divergence.path, divergence.exact) == ("SIGABRT", 0, "replay", False)


def test_the_pool_that_waits_is_told_so_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.processes.pool.Log", lambda path=None: None)
    pools = [Pool(Target("0.5.13", engine), device="3", variables={"A": "b"}) for engine in ("cuda", "emulated")]
    variables = [(other._variables, other._like.keywords["device"]) for other in (pool.waiting() for pool in pools)]
    assert variables == [({"A": "b", "CUDA_LAUNCH_BLOCKING": "1"}, "3"), ({"A": "b"}, "3")]


REPORT = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at generate_draft_decode_kv_indices+0x8f0
=========     by thread (33,0,0) in block (3,0,1)
=========     Access at 0x7f2a1c400404 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7f2a1c400000 of size 1,024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuGraphLaunch [0x2eee3f] in libcuda.so.1
=========     Host Frame:  by thread (9,9,9) in block (9,9,9)
=========
========= Invalid __global__ write of size 4 bytes
=========     at generate_draft_decode_kv_indices+0x8f0
=========     by thread (34,0,0) in block (3,0,1)
=========     Access at 0x7f2a1c400408 is out of bounds
=========
========= Invalid __shared__ read of size 16 bytes
=========     at void at::native::index_kernel<int, (long)3>(int *)+0x120 in index.cu:17
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x87 is misaligned
=========
========= Uninitialized __global__ memory read of size 8 bytes
=========     at kernel():0x60 in demo.cu:6
=========     by thread (1,0,0) in block (0,0,0)
=========     Address 0x7f00
=========
========= Error: process didn't terminate successfully
========= Target application returned an error
========= ERROR SUMMARY: 4 errors
"""


def test_a_report_is_read() -> None:
    first, second, third, fourth = parse(REPORT)
    assert first == Access(
        what="Invalid __global__ write",
        size=4,
        kernel="generate_draft_decode_kv_indices",
        thread="(33,0,0)",
        block="(3,0,1)",
        address="0x7f2a1c400404",
        near="5 bytes after the nearest allocation at 0x7f2a1c400000 of size 1,024 bytes",
    )
    assert str(first) == (
        "Invalid __global__ write of 4 bytes in generate_draft_decode_kv_indices by thread (33,0,0) of block (3,0,1) "
        "at 0x7f2a1c400404, 5 bytes after the nearest allocation at 0x7f2a1c400000 of size 1,024 bytes"
    )
    assert second.thread == "(34,0,0)"
    assert (third.kernel, third.size) == ("void at::native::index_kernel<int, (long)3>(int *)", 16)
    assert (fourth.what, fourth.kernel) == ("Uninitialized __global__ memory read", "kernel()")
    assert parse("") == parse("garbage\n=== more ===\n========= ERROR SUMMARY: 0 errors\n") == ()


def test_each_access_is_told_once(tmp_path: Path) -> None:
    reports = Reports(tmp_path)
    assert reports.fresh() == ()
    (tmp_path / "11.txt").write_text(REPORT)
    assert len(reports.fresh()) == 3, "two threads of one kernel are one"
    (tmp_path / "12.txt").write_text(REPORT.replace("kernel()", "another()"))
    assert [access.kernel for access in reports.fresh()] == ["another()"]


def test_where_the_program_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NotUsable, match="neither on PATH nor in CUDA_HOME/bin"):
        program({"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path)})
    there = tmp_path / "bin" / "compute-sanitizer"
    there.parent.mkdir()
    there.write_text("#!/bin/sh\n")
    there.chmod(0o755)
    assert program({"PATH": "", "CUDA_HOME": str(tmp_path)}) == there
    assert program({"PATH": str(there.parent)}) == there


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that notes how it was called, writes a report where it was told to, and runs what it was given."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "report.txt").write_text(REPORT)
    script = f"""\
        #!{sys.executable}
        import os, sys
        from pathlib import Path
        words = sys.argv[1:]
        at = next(n for n, word in enumerate(words) if "python" in Path(word).name)
        options = dict(zip(words[:at:2], words[1:at:2]))
        here = Path(__file__).parent
        (here / "called.txt").write_text(repr(options) + os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", ""))
        log = options["--log-file"].replace("%p", str(os.getpid()))
        Path(log).write_text((here / "report.txt").read_text())
        os.execv(words[at], words[at:])
    """
    (place / "compute-sanitizer").write_text(textwrap.dedent(script))
    (place / "compute-sanitizer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    return place


@pytest.fixture
def seed(tmp_path: Path) -> Path:
    path = tmp_path / "seed.json"
    codec.write(path, codec.Seed(case=CASE))
    return path


def test_a_run_under_the_sanitizer_names_the_kernel(
    stand_in: Path, seed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(seed), "--target", "crash/toy", "--sanitizer", "memcheck"]) == 1
    text = capsys.readouterr().out
    assert (
        "compute-sanitizer: Invalid __global__ write of 4 bytes in generate_draft_decode_kv_indices by thread" in text
    )
    assert "SIGABRT came out in replay of step 0" in text
    called = (stand_in / "called.txt").read_text()
    assert "'--tool': 'memcheck', '--target-processes': 'all'" in called
    assert called.endswith("}"), "memory cannot be asked for while a graph is captured"


def test_where_nothing_is_captured_each_tensor_has_memory_of_its_own(stand_in: Path, seed: Path) -> None:
    codec.write(seed, codec.read(SEEDS / "verify-mask-not-padded.json"))
    main(["run", str(seed), "--target", "clean/toy", "--sanitizer", "memcheck"])
    assert (stand_in / "called.txt").read_text().endswith("}1")


@pytest.mark.slow
def test_a_bad_access_fails_a_run_that_nothing_else_fails(
    stand_in: Path, seed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", str(seed), "--target", "clean/toy", "--sanitizer", "memcheck", "--json"]
    assert main(arguments) == 1
    (replay,) = json.loads(capsys.readouterr().out)["replays"]
    assert replay["status"] == "PASS"
    assert [note.partition(" by ")[0] for note in replay["notes"]][:1] == [
        "compute-sanitizer: Invalid __global__ write of 4 bytes in generate_draft_decode_kv_indices"
    ]
    (stand_in / "report.txt").write_text("========= ERROR SUMMARY: 0 errors\n")
    assert main(arguments) == 0


def test_without_the_sanitizer_one_clear_line(
    seed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert main(["run", str(seed), "--target", "clean/toy", "--sanitizer", "memcheck"]) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: compute-sanitizer is neither on PATH nor in CUDA_HOME/bin")
    assert len(output.err.splitlines()) == 1
    assert main(["run", str(seed), "--target", "clean/toy", "--sanitizer", "valgrind"]) == 3


def test_the_words_in_front_of_a_worker(stand_in: Path, tmp_path: Path) -> None:
    words = wrapper("initcheck", tmp_path)
    assert words[0] == str(stand_in / "compute-sanitizer")
    assert words[1:3] == ("--tool", "initcheck")
    assert words[-1] == str(tmp_path / "%p.txt")
