"""python -m runners conform: what a row says of a run, what no adapter names, and the table that is made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Target, problems
from repro.cases.codec import read
from repro.cases.runner_facts import RUNNER_FACTS
from repro.ledger.known import load
from repro.traces.finding import TIE, Status, Verdict
from repro.traces.trace import End, Termination, Trace
from repro.upstream.fixes import SEEDS
from runners.conformance import conform, report
from runners.conformance.jobs import jobs
from runners.conformance.report import Release
from runners.conformance.rows import Row, State, culprit, row, rows
from runners.conformance.unnamed import unnamed
from runners.targets.install import Ran, newest

JOB = jobs()[0]
TRACEBACK = """Traceback (most recent call last):
  File "/w/runners/processes/session_process.py", line 63, in session
    run_case = open_session(case.setup, target, watch)
  File "/w/runners/releases/adapters/draft/v0_5_14.py", line 34, in graph
    return outputs(runner.execute(forward_batch), counts, runner.topk)
  File "/root/.cache/targets/0.5.99/sglang/srt/speculative/runner.py", line 7, in __getattr__
    raise AttributeError(name)
AttributeError: no attribute 'topk'
"""


def test_there_is_a_valid_job_for_every_runner_and_backend() -> None:
    assert all(problems(job.case) == [] for job in jobs())
    pairs = {(job.runner, job.backend) for job in jobs()}
    expected = {(runner, backend) for runner, facts in RUNNER_FACTS.items() for backend in facts.backends}
    assert pairs == {place for place in expected if place[0] != "toy"}
    assert {job.algorithm for job in jobs() if job.runner == "draft"} == {"EAGLE", "EAGLE3", "NEXTN"}
    # Padded and stale, so that what is judged is what is to be judged.
    assert {tuple(len(step.requests) for step in job.case.steps) for job in jobs()} == {(2, 1)}


def ended(how: Termination, what: str = "", detail: str = "", adapter: str = "0.5.14") -> Trace:
    return Trace(ended=End(how=how, what=what, detail=detail), facts={"adapter": adapter})


def verdict(oracle: str, status: Status, where: str = "") -> Verdict:
    return Verdict(oracle=oracle, status=status, where=where)


PASSED = (verdict("ended", Status.PASS), verdict("graph_equals_eager", Status.PASS))


def made(trace: Trace, verdicts: Sequence[Verdict] = ()) -> Row:
    return row(JOB, trace, verdicts, overall)


def test_a_judged_run_is_green_also_where_an_oracle_fails() -> None:
    good = made(ended(Termination.DONE), PASSED)
    assert (good.state, good.fails, good.passes) == (State.GREEN, (), ("ended", "graph_equals_eager"))
    known = made(ended(Termination.DONE), (*PASSED, verdict("slot0_padding", Status.FAIL, "padded rows of x")))
    assert (known.state, known.fails) == (State.GREEN, ("slot0_padding: padded rows of x",))


def test_a_run_that_nobody_judged_is_red() -> None:
    unjudged = made(
        ended(Termination.DONE), (verdict("ended", Status.PASS), verdict("bucket", Status.UNKNOWN, "no graph"))
    )
    assert unjudged.state is State.RED and "bucket: no graph" in unjudged.words


def test_what_is_declared_is_unsupported_in_its_own_words() -> None:
    refused = made(ended(Termination.UNSUPPORTED, "Triton's interpreter has\nno bfloat16"))
    assert (refused.state, refused.words) == (State.UNSUPPORTED, "Triton's interpreter has no bfloat16")


@pytest.mark.parametrize("how", [Termination.ERROR, Termination.RAISED, Termination.CRASHED, Termination.HUNG])
def test_everything_else_is_red_with_the_line_at_fault(how: Termination) -> None:
    bad = made(ended(how, "AttributeError", TRACEBACK))
    place = "sglang/srt/speculative/runner.py:7 in __getattr__"
    assert (bad.state, bad.words) == (State.RED, f"{place}: AttributeError: no attribute 'topk'")


def test_what_is_known_to_raise_in_a_release_is_no_fault_of_its_adapter() -> None:
    verdicts = (verdict("ended", Status.FAIL, "raised RuntimeError in verify"),)
    trace = ended(Termination.RAISED, "RuntimeError", TRACEBACK)
    assert row(JOB, trace, verdicts, overall, known=lambda case, verdict: False).state is State.RED
    known = row(JOB, trace, verdicts, overall, known=lambda case, verdict: True)
    assert (known.state, known.fails) == (State.GREEN, ("ended: raised RuntimeError in verify",))
    error = row(JOB, ended(Termination.ERROR, "x"), (), overall, known=lambda case, verdict: True)
    assert error.state is State.RED


def test_the_line_at_fault_is_none_that_every_call_of_torch_passes() -> None:
    passed = """  File "/x/runners/engines/cuda_to_cpu.py", line 21, in __torch_function__
    return func(*args, **(kwargs or {}))
IndexError: index 41 is out of bounds
"""
    detail = TRACEBACK.rpartition("AttributeError")[0] + passed
    assert (
        culprit("", detail)
        == "sglang/srt/speculative/runner.py:7 in __getattr__: IndexError: index 41 is out of bounds"
    )


def test_what_a_finding_raises_is_known_by_its_place() -> None:
    """Else the adapter would be blamed."""
    stored = read(SEEDS / "verify-tree-indexes-behind-mask.json")
    failed = verdict("ended", Status.FAIL, str(stored.about["where"]))
    assert any(issue.names(stored.case.setup, failed) for issue in load() if issue.holds_on("0.5.23", "emulated"))


def test_without_a_traceback_the_words_are_what_there_is() -> None:
    assert culprit("SIGSEGV", "") == "SIGSEGV"
    assert culprit("the worker cannot import what it needs", "no lines") == "the worker cannot import what it needs"


def test_what_no_adapter_names(tmp_path: Path) -> None:
    srt = tmp_path / "sglang" / "srt"
    for file, text in {
        "speculative/spec_info.py": "class SpeculativeAlgorithm(Enum):\n    EAGLE = 1\n    WARP = 2\n    NONE = 3\n",
        "speculative/a.py": "class EAGLEDraftCudaGraphRunner:\n    pass\nclass WarpGraphRunner(Base):\n    pass\n"
        "class NpuGraphRunner:\n    pass\nclass EagleDraftInputBuffers(B):\n    seq_lens: torch.Tensor\n"
        "    warp_factors: Optional[torch.Tensor]\n    count: int\n",
        "server_args.py": "class ServerArgs:\n    warp_cuda_graph: A[bool]\n    tp_size: int\n",
    }.items():
        (srt / file).parent.mkdir(parents=True, exist_ok=True)
        (srt / file).write_text(text)
    assert unnamed(tmp_path) == {
        "graph runners": ("WarpGraphRunner",),
        "algorithms": ("WARP",),
        "input buffers": ("warp_factors",),
        "arguments": ("warp_cuda_graph",),
    }


def sample() -> list[Release]:
    good, bad = made(ended(Termination.DONE), PASSED), made(ended(Termination.ERROR, "AttributeError", TRACEBACK))
    refused = made(ended(Termination.UNSUPPORTED, "not there"))
    nothing: dict[str, tuple[str, ...]] = {"algorithms": ()}
    return [
        Release(name="0.5.10", sglang="0.5.10", adapted=True, rows=(refused,), unnamed=nothing),
        Release(name="0.5.14", sglang="0.5.14", adapted=True, rows=(good,), unnamed=nothing),
        Release(
            name="0.5.99",
            sglang="0.5.99",
            adapted=False,
            rows=(bad,),
            moved=("torch 3",),
            unnamed={"algorithms": ("WARP",)},
        ),
    ]


def test_the_table_has_a_column_a_release_and_notes() -> None:
    text = report.to_markdown(sample(), "the command")
    assert "Made by `the command`" in text
    assert "| draft | triton | EAGLE | no (1) | yes | **RED** (2) |" in text
    assert "1. not there" in text and "2. sglang/srt/speculative/runner.py:7" in text
    assert "## Algorithms that no adapter names\n\n- `WARP`: 0.5.99\n" in text
    assert "## Pinned otherwise than in the last adapted release\n\n- 0.5.99: torch 3\n" in text
    form = json.loads(report.to_json(sample()))
    assert [release["rows"][0]["state"] for release in form["releases"]] == ["unsupported", "green", "red"]


def test_releases_that_differ_in_their_name_alone_share_a_note_and_a_span() -> None:
    def release(name: str, reason: str, *names: str) -> Release:
        refused = made(ended(Termination.UNSUPPORTED, f"sglang {name} is {reason}"))
        return Release(name=name, sglang=name, adapted=True, rows=(refused,), unnamed={"algorithms": names})

    text = report.to_markdown(
        [release("1", "old", "UNO"), release("2", "old", "UNO"), release("3", "new"), release("4", "new", "UNO")], "c"
    )
    assert "| no (1) | no (1) | no (2) | no (2) |" in text
    assert "1. the release is old\n2. the release is new\n" in text
    assert "- `UNO`: 1 to 2, 4\n" in text


def test_the_summary_says_what_is_new() -> None:
    lines = report.summary(sample()[2])
    assert lines[0].startswith("0.5.99: 0 green, 0 unsupported, 1 red")
    assert any("newer than every adapter" in line for line in lines)
    assert "no adapter names these algorithms: WARP" in lines


def test_the_newest_release_is_what_pip_says() -> None:
    listed = "sglang (0.5.24)\nAvailable versions: 0.5.24, 0.5.23\n  INSTALLED: 0.5.13\n"
    assert newest(lambda arguments: Ran(code=0, output=listed)) == "0.5.24"


def test_each_job_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Case] = []

    def run(case: Case) -> Trace:
        ran.append(case)
        return ended(Termination.UNSUPPORTED, "no")

    done = list(rows(jobs(), run, lambda case, trace: (), overall, lambda: 0.0))
    assert ran == [job.case for job in jobs()] and {row.state for row in done} == {State.UNSUPPORTED}


@pytest.mark.parametrize(("ties", "runs", "state"), [(0, 1, State.GREEN), (1, 2, State.GREEN), (9, 3, State.RED)])
def test_a_job_whose_values_tie_is_run_with_others(ties: int, runs: int, state: State) -> None:
    ran: list[Case] = []

    def run(case: Case) -> Trace:
        ran.append(case)
        return ended(Termination.DONE)

    def judged(case: Case, trace: Trace) -> tuple[Verdict, ...]:
        doubt = verdict("graph_equals_eager", Status.UNKNOWN, TIE)
        return (verdict("ended", Status.PASS), doubt) if len(ran) <= ties else PASSED

    (only,) = rows([JOB], run, judged, overall, lambda: 0.0)
    assert only.state is state and len(ran) == runs == len(set(ran)) and ran[0] == JOB.case


@pytest.mark.exhaustive
@pytest.mark.emulated("0.5.23")
def test_the_newest_release_conforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest of its runners, and one that is not there any more."""
    some = [job for job in jobs() if job.runner in ("kv_move", "decode", "draft_v1") and job.backend == "triton"]
    monkeypatch.setattr(conform, "jobs", lambda: tuple(some))
    rows: list[Row] = []
    release = conform.release(Target("0.5.23", "emulated"), judge_all, overall, log=tmp_path / "log", tell=rows.append)
    assert release.adapted and release.moved == () and tuple(rows) == release.rows
    states = {row.runner: row.state for row in release.rows}
    assert states == {"kv_move": State.GREEN, "decode": State.GREEN, "draft_v1": State.UNSUPPORTED}
    assert "RowBucketGraphRunner" in release.unnamed["graph runners"]
    assert replace(release, adapted=False).red == ()
