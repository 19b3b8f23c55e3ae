"""Cases of what a server left: tables of batches, decode lines of a log; guesses are marked, refusals name a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.__main__ import main
from repro.cases.batches import BadEvidence, of_csv, of_log
from repro.cases.codec import Seed, read
from repro.traces.exit_codes import ExitCode
from tests.builders.project import DATA

TRACE = """step,request,length,accepted
0,a,1000,0
0,b,31,0
0,c,40,0
1,a,1003,2
1,c,41,0
"""
FLAGS = (
    "--speculative-algorithm EAGLE --speculative-eagle-topk 1 --speculative-num-steps 3 --page-size 16 "
    "--speculative-num-draft-tokens 4 --attention-backend fa3 --context-length 1004 --cuda-graph-max-bs 8"
)
STARTED = (
    "[2026-11-26 01:00:00] server_args=ServerArgs(model_path='x', speculative_algorithm='EAGLE3', page_size=1, "
    "speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4, attention_backend='triton')\n"
)
# As 0.5.13 to 0.5.23 log them; the last one of a model with sliding layers.
DECODE = (
    "[2026-11-26 01:00:01 TP{rank}] Decode batch, #running-req: 3, #token: 301, token usage: 0.01, accept len: 2.60, "
    "accept rate: 0.53, cuda graph: {graph}, gen throughput (token/s): 10.00, #queue-req: 0\n"
)
SLIDING = (
    "[2026-11-26 01:00:02 TP0] Decode batch [812], #running-req: 2, #full token: 250, full token usage: 0.01, #swa "
    "token: 30, swa token usage: 0.01, accept len: 1.20, accept rate: 0.07, cuda graph: True, gen throughput "
    "(token/s): 9.00, #queue-req: 0\n"
)
LOG = STARTED + DECODE.format(rank=0, graph=True) + DECODE.format(rank=1, graph=True) + SLIDING
NAMES = frozenset(word[2:].replace("-", "_") for word in FLAGS.split() if word.startswith("--"))


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """No release needs to be installed."""
    monkeypatch.setattr("repro.commands.case.argument_names", lambda targets: NAMES | {"model_path"})


def written(tmp_path: Path, text: str, *words: str, source: str = "from-trace") -> Seed:
    file = tmp_path / "server.txt"
    file.write_text(text)
    assert main(["case", source, str(file), *words]) == ExitCode.PASS
    return read(tmp_path / "server.case.json")


def batches_of(seed: Seed) -> list[list[tuple[int, int, int]]]:
    return [[(r.slot, r.seq_len, r.accepted) for r in step.requests] for step in seed.case.steps]


def test_a_trace_keeps_places_in_pages_growth_and_the_distance_to_the_context(tmp_path: Path) -> None:
    seed = written(tmp_path, TRACE, "--like", FLAGS)
    setup = seed.case.setup
    assert (setup.runner, setup.backend, setup.page_size, setup.capture_bs) == ("draft", "fa3", 16, (2, 3))
    (first, second), lengths = batches_of(seed), [1000, 31, 40]
    assert [slot for slot, _, _ in first] == [1, 2, 3] and [slot for slot, _, _ in second] == [1, 3]
    assert all((length - new) % 16 == 0 for length, (_, new, _) in zip(lengths, first, strict=True))
    assert second[0][1] - first[0][1] == 3 and second[1][1] - first[2][1] == 1
    assert setup.context_len - second[0][1] == 1004 - 1003 and setup.overhang > 0
    assert any("prefixes: up to 1003" in line for line in seed.about["scaled down"])
    assert any("overhang" in line for line in seed.about["guessed"])


def test_prefixes_below_the_longest_stay(tmp_path: Path) -> None:
    seed = written(tmp_path, TRACE, "--like", FLAGS, "--longest", "2000")
    assert [length for _, length, _ in batches_of(seed)[0]] == [1000, 31, 40]
    assert seed.case.setup.context_len == 1004


@pytest.mark.parametrize(
    ("flags", "buckets"),
    [
        ("", (4,)),
        ("--disable-cuda-graph-padding", (3,)),
        ("--cuda-graph-max-bs 3", (3,)),
        ("--cuda-graph-bs 1 8", (8,)),
        ("--cuda-graph-max-bs 2", (2,)),
    ],
)
def test_buckets_are_those_that_such_a_server_has(
    flags: str, buckets: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = frozenset({"attention_backend", "disable_cuda_graph_padding"})
    monkeypatch.setattr("repro.commands.case.argument_names", lambda targets: known)
    text = "step,request,length\n0,a,5\n0,b,6\n0,c,6\n"
    assert written(tmp_path, text, "--like", f"--attention-backend triton {flags}").case.setup.capture_bs == buckets


def test_a_request_that_ended_leaves_its_slot(tmp_path: Path) -> None:
    seed = written(tmp_path, "step,request,length\n0,a,5\n0,b,6\n1,b,7\n1,c,8\n")
    assert batches_of(seed) == [[(1, 5, 0), (2, 6, 0)], [(2, 7, 0), (1, 8, 0)]]
    assert any("flags" in line for line in seed.about["missing"])


def test_accepted_drafts_are_guessed_from_growth_where_the_runner_is_told(tmp_path: Path) -> None:
    seed = written(tmp_path, "step,request,length\n0,a,5\n1,a,8\n", "--like", FLAGS, "--runner", "draft_extend")
    assert batches_of(seed) == [[(1, 5, 0)], [(1, 8, 2)]]
    assert "accepted: by how much a request grew" in seed.about["guessed"]


def test_the_last_steps_are_taken(tmp_path: Path) -> None:
    text = "step,request,length\n" + "".join(f"{step},a,{step + 1}\n" for step in range(100))
    seed = written(tmp_path, text)
    assert batches_of(seed)[0] == [(1, 37, 0)] and len(seed.case.steps) == 64
    assert "the last 64 of 100 batches" in seed.about["scaled down"]


def test_a_log_gives_flags_and_the_batches_of_its_first_rank(tmp_path: Path) -> None:
    seed = written(tmp_path, LOG, source="from-log")
    assert (seed.case.setup.algorithm, seed.case.setup.backend, seed.case.setup.num_steps) == ("EAGLE3", "triton", 3)
    assert [[length for _, length, _ in batch] for batch in batches_of(seed)] == [[101, 100, 100], [125, 125]]
    assert any("spread evenly" in line for line in seed.about["guessed"])


def test_a_log_says_what_was_accepted_and_where_no_graph_ran(tmp_path: Path) -> None:
    text = STARTED + DECODE.format(rank=0, graph=False) + SLIDING
    seed = written(tmp_path, text, "--runner", "draft_extend", source="from-log")
    assert [[accepted for _, _, accepted in batch] for batch in batches_of(seed)] == [[2, 2, 2], [0, 0]]
    assert seed.case.setup.capture_bs == (2,)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "line 1: the file is empty"),
        ("step,request,lenght\n0,a,5\n", "line 1: unknown column 'lenght'; did you mean length"),
        ("step,request\n0,a\n", "line 1: each of length is needed"),
        ("step,request,length\n", "line 2: no rows"),
        ("step,request,length\n0,a,5\n2,a,6\n", "line 3: step 2 after step 0"),
        ("step,request,length\n1,a,5\n0,a,6\n", "line 3: step 0 after step 1"),
        ("step,request,length\n0,a,5\n0,a,6\n", "line 3: request a is twice"),
        ("step,request,length\n0,a,5\n1,a\n", "line 3: 2 fields, not 3"),
        ("step,request,length\n0,a,5\n1,a,6", "line 3: no line break at its end"),
        ("step,request,length\n0,a,five\n", "line 2: length 'five' is no integer"),
        ("step,request,length\n0,a,0\n", "line 2: length '0' is no integer in 1"),
        ("step,request,length\n0,a,1005\n", "line 2: length 1005 is beyond the context of 1004"),
        ("step,request,length\n0,,5\n", "line 2: request is empty"),
    ],
)
def test_a_bad_table_is_refused_by_its_line(text: str, place: str) -> None:
    with pytest.raises(BadEvidence) as refusal:
        of_csv(text, context=1004)
    assert str(refusal.value).startswith(place)


@pytest.mark.parametrize(
    ("text", "place"),
    [("nothing\n", "no line with"), (LOG + DECODE[:60], "line 5: a decode line that is cut")],
)
def test_a_bad_log_is_refused(text: str, place: str) -> None:
    with pytest.raises(BadEvidence) as refusal:
        of_log(text)
    assert str(refusal.value).startswith(place)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TRACE[:-3], ["--like", FLAGS]),
        (TRACE, ["--like", f"{FLAGS} --page-sise 8"]),
        (TRACE.replace("1003", "1005"), ["--like", FLAGS]),
        ("step,request,length,accepted\n0,a,5,4\n", ["--like", FLAGS, "--runner", "draft_extend"]),
        ("step,request,length\n" + "".join(f"0,{n},5\n" for n in range(300)), []),
        (TRACE, ["--runner", "cpu_decode", "--like", f"{FLAGS}"]),
        (TRACE, ["--runner", "round"]),
        (TRACE, ["--out", "no/such/folder/case.json"]),
    ],
)
def test_bad_evidence_ends_in_a_line_and_nothing_is_written(
    text: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "server.txt").write_text(text)
    assert main(["case", "from-trace", str(tmp_path / "server.txt"), *words]) == ExitCode.ERROR
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["server.txt"]


def test_a_folder_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["case", "from-trace", str(tmp_path), "--out", str(tmp_path / "case.json")]) == ExitCode.ERROR
    assert capsys.readouterr().err == f"error: {tmp_path}: Is a directory\n"


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, TRACE)
    assert main(["case", "from-trace", str(tmp_path / "server.txt")]) == ExitCode.ERROR
    assert "is there already" in capsys.readouterr().err


@pytest.mark.slow
def test_a_case_of_a_trace_replays(tmp_path: Path) -> None:
    written(tmp_path, TRACE, "--runner", "toy")
    assert main(["run", str(tmp_path / "server.case.json"), "--target", "clean/toy"]) == ExitCode.PASS


def test_migrated_files_keep_their_cases_and_one_bad_file_leaves_all_as_they_are(tmp_path: Path) -> None:
    old, bad = tmp_path / "old.json", tmp_path / "bad.json"
    text = (DATA / "seed-format-1.json").read_text()
    old.write_text(text)
    bad.write_text(text.replace("topk", "top_k"))
    seed = read(old)
    assert main(["case", "migrate", str(old), str(bad)]) == ExitCode.ERROR and old.read_text() == text
    assert main(["case", "migrate", str(old)]) == ExitCode.PASS
    assert '"format": 2,' in old.read_text() and read(old) == seed
