"""Rounds: the oracles on records made by hand, what cases may be, and the scheduler on the newest release, clean and
with planted bugs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles import handed_on, kv_rows, launches, leaks, lifetime, logits, progress, text
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Request, Setup, Step, Target, problems, seq_len_max
from repro.cases.codec import Seed, digest, dumps, loads
from repro.cases.release_list import NEWEST
from repro.cases.words import paragraph
from repro.shrinking.shrink import shrink
from repro.traces.finding import Status
from repro.traces.trace import Array, End, RecordedArray, Termination, Trace
from runners.processes.pool import Pool
from tests.builders.only_verdict import only
from tests.builders.tiers import few

TARGET = Target(NEWEST, "emulated")
CHAIN = Setup(runner="round", topk=1, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2, 4), slots=4)
TREE = replace(CHAIN, topk=2, num_draft_tokens=6)
STEPS = (
    Step(
        requests=(
            Request(slot=1, seq_len=9, data=1, further=14),
            Request(slot=2, seq_len=21, data=2, further=9),
            Request(slot=3, seq_len=4, data=3, further=20),
        )
    ),
    Step(requests=(Request(slot=1, seq_len=30, data=4, further=11),), wait=3),
)
# The running are retracted, the oldest is aborted, and at the end a prompt begins as an earlier one did.
UNDISTURBED = {
    "a chain": replace(CHAIN, radix=True, overlap=True, disagreement=300),
    "a tree": replace(TREE, radix=True, page_size=4, chunk=8, disagreement=300),
}
HAPPENING = (
    STEPS[0],
    Step(requests=(), wait=7, happens="retract"),
    Step(requests=(Request(slot=1, seq_len=30, data=1, further=11),), wait=1, happens="abort"),
    Step(requests=(), wait=1, happens="flush"),
    Step(requests=(Request(slot=1, seq_len=30, data=1, further=9),), wait=20),
)
# A request of three tokens, as a record has it.
SMALL = Case(setup=CHAIN, steps=(Step(requests=(Request(slot=1, seq_len=2, data=1, further=2),)),))
FIRST, SECOND, THIRD = 7, 8, 9


def apart(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same, each request in a step of its own, so that all of them sample where drafts are drawn at random."""
    each = ((step, (request,)) for step in steps for request in step.requests or (None,))
    return tuple(replace(step, requests=tuple(filter(None, requests))) for step, requests in each)


def served(**changes: object) -> Trace:
    """A record of SMALL: the text 7, 8, 9, which the target gives, too."""
    arrays: dict[str, object] = {
        "served.tokens": [[FIRST, SECOND, THIRD]],
        "served.ended": [1],
        "served.best": [[FIRST, SECOND, THIRD]],
        "served.behind": [[0.0, 0.0, 0.0]],
        "served.noise": [1e-6],
        "served.off": [[np.nan, 1e-6, 2e-6]],
        "holdings.free KV slots": [40, 40, 40],
        "holdings.evictable KV slots": [0, 0, 0],
        "holdings.different free pages": [10, 10, 10],
    }
    seen = []
    for place, values in (arrays | changes).items():
        path, _, name = place.partition(".")
        array: Array = np.asarray(values)
        seen.append(RecordedArray(step=-1 if path == "holdings" else 0, path=path, name=name, array=array))
    return Trace(ended=End(how=Termination.DONE), seen=tuple(seen))


def test_a_text_is_the_targets_but_at_ties() -> None:
    assert only(text.judge, SMALL, served()).status is Status.PASS
    other = {"served.tokens": [[FIRST, 3, 4]]}
    wrong = only(text.judge, SMALL, served(**other, **{"served.behind": [[0.0, 0.1, 5.0]]}))
    assert wrong.where == text.TOKEN
    assert wrong.cell and (wrong.cell.column, wrong.cell.got, wrong.cell.want) == (1, "3", "8")
    behind = only(text.judge, SMALL, served(**other, **{"served.behind": [[0.0, 9e-6, 5.0]]}))
    assert behind.cell and behind.cell.column == 2, "a token behind a tie is judged as well"
    tie = only(text.judge, SMALL, served(**other, **{"served.behind": [[0.0, 9e-6, 8e-6]]}))
    assert (tie.status, tie.where) == (Status.UNKNOWN, text.TIES)
    beyond = only(text.judge, SMALL, served(**other, **{"served.behind": [[0.0, 1.1e-5, 5.0]]}))
    assert beyond.status is Status.FAIL


def test_a_text_is_as_long_as_was_asked_for() -> None:
    short = {"served.tokens": [[FIRST, SECOND, -1]]}
    assert only(text.judge, SMALL, served(**short)).where == text.LENGTH
    assert only(text.judge, SMALL, served(**short, **{"served.ended": [0]})).status is Status.PASS
    assert only(text.judge, SMALL, Trace(ended=End(how=Termination.DONE))).status is Status.UNKNOWN


def test_an_abort_is_a_failure_unless_it_was_asked_for() -> None:
    aborted = {"served.ended": [2]}
    assert only(progress.judge, SMALL, served(**aborted, **{"served.aborted": [False]})).where == progress.ABORTED
    assert only(progress.judge, SMALL, served(**aborted, **{"served.aborted": [True]})).status is Status.PASS
    assert (
        only(progress.judge, SMALL, served(**{"served.ended": [0], "served.aborted": [True]})).where == progress.STUCK
    )


def test_a_request_that_never_ends_is_a_failure() -> None:
    assert only(progress.judge, SMALL, served()).status is Status.PASS
    assert only(progress.judge, SMALL, served(**{"served.ended": [0]})).where == progress.STUCK
    assert only(progress.judge, SMALL, served(**{"served.ended": [2]})).where == progress.ABORTED
    assert only(text.judge, SMALL, served(**{"served.ended": [2]})).status is Status.UNKNOWN
    assert only(progress.judge, SMALL, Trace(ended=End(how=Termination.DONE))).status is Status.UNKNOWN


def test_logits_are_the_targets_within_rounding() -> None:
    assert only(logits.judge, SMALL, served()).status is Status.PASS
    wrong = only(logits.judge, SMALL, served(**{"served.off": [[np.nan, 1e-6, 1.1e-5]]}))
    assert (wrong.status, wrong.where) == (Status.FAIL, logits.OFF)
    assert wrong.cell and wrong.cell.column == THIRD - FIRST
    unseen = {"served.off": [[np.nan, np.nan, np.nan]]}
    assert only(logits.judge, SMALL, served(**unseen)).status is Status.UNKNOWN


def test_an_output_that_is_read_late_is_named_with_its_reader() -> None:
    def seen(**arrays: object) -> Trace:
        values = {name: np.asarray(value) for name, value in ({"replays": 3} | arrays).items()}
        late = tuple(RecordedArray(step=-1, path="lifetime", name=n, array=array) for n, array in values.items())
        return Trace(ended=End(how=Termination.DONE), seen=late)

    assert only(lifetime.judge, SMALL, seen()).status is Status.PASS
    words = np.frombuffer(b"srt/worker.py run:17, behind draft, verify", np.uint8)
    verdict = only(lifetime.judge, SMALL, seen(**{"draft read by srt/worker.py run:17": words}))
    assert (verdict.status, verdict.where) == (Status.FAIL, "draft read by srt/worker.py run")
    assert "run:17, when draft, verify had been replayed" in verdict.detail
    assert only(lifetime.judge, SMALL, served()).status is Status.UNKNOWN


def recorded(**arrays: object) -> Trace:
    """A record that has these arrays, each by PATH.NAME."""
    once = ("afresh", "freed")
    seen = []
    for place, values in arrays.items():
        path, _, name = place.partition(".")
        step = -1 if path in once else 0
        seen.append(RecordedArray(step=step, path=path, name=name, array=np.asarray(values)))
    return Trace(ended=End(how=Termination.DONE), seen=tuple(seen))


@pytest.mark.parametrize(("stage", "words"), tuple(enumerate(handed_on.STAGES)))
def test_a_draft_begins_with_what_was_handed_on(stage: int, words: str) -> None:
    relay: dict[str, object] = {"relay.stages": [0, stage], "relay.handed_topk_p": [[0.5], [0.25]]}
    same, other = {"relay.given_topk_p": [[0.5], [0.25]]}, {"relay.given_topk_p": [[0.5], [0.5]]}
    assert only(handed_on.judge, SMALL, recorded(**relay, **same)).status is Status.PASS
    verdict = only(handed_on.judge, SMALL, recorded(**relay, **other))
    assert (verdict.status, verdict.where) == (Status.FAIL, f"topk_p behind {words}")
    assert only(handed_on.judge, SMALL, recorded()).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("rows", "cached", "wheres"),
    [
        ([1.0, 2.0, 3.0, 9.0], 0, set()),  # the last token of a text has no row of the draft
        ([1.0, 2.00001, 3.0, 4.0], 0, set()),
        ([1.0, 2.5, 3.0, 4.0], 0, {"rows of the draft"}),
        ([1.0, 2.5, 3.0, 4.0], 2, {"rows of the draft of a cached prefix"}),
        ([1.0, 2.0, np.nan, 4.0], 2, {"rows of the draft"}),
    ],
)
def test_kv_rows_are_those_of_a_prefill(rows: list[float], cached: int, wheres: set[str]) -> None:
    afresh = {"requests": [0], "lengths": [4], "cached": [cached], "draft_k0": [[1.0, 2.0, 3.0, 4.0]]}
    graph = {"requests": [0], "new_seq_lens": [4], "draft_k0": [rows]}
    places = {"afresh": afresh, "round_graph": graph}
    trace = recorded(**{f"{path}.{name}": value for path, each in places.items() for name, value in each.items()})
    verdicts = kv_rows.judge(SMALL, trace)
    assert {verdict.where for verdict in verdicts if verdict.status is Status.FAIL} == wheres
    assert wheres or [v.status for v in verdicts] == [Status.PASS]


@pytest.mark.parametrize(
    ("window", "row", "engine", "status"),
    [
        (0, 0, "emulated", Status.FAIL),
        (0, 2, "emulated", Status.FAIL),
        (0, 2, "cuda", Status.PASS),
        (2, 0, "emulated", Status.FAIL),  # of the prompt
        (2, 2, "emulated", Status.PASS),  # of the text, which a verify makes
    ],
)
def test_kv_rows_have_the_bits_of_a_prefill(window: int, row: int, engine: str, status: Status) -> None:
    case = replace(SMALL, setup=replace(SMALL.setup, deterministic=True, window=window))
    rows = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    moved = rows.copy()
    moved[0, row] = np.nextafter(moved[0, row], np.float32(9.0))
    afresh = {"requests": [0], "lengths": [4], "cached": [0], "draft_k0": rows}
    graph = {"requests": [0], "new_seq_lens": [4], "draft_k0": moved}
    places = {"afresh": afresh, "round_graph": graph}
    trace = recorded(**{f"{path}.{name}": value for path, each in places.items() for name, value in each.items()})
    [verdict] = kv_rows.judge(case, replace(trace, facts={"engine": engine}))
    assert verdict.status is status


def test_what_is_freed_twice_is_named_with_both_places() -> None:
    first = np.frombuffer(b"srt/mem_cache/common.py release:3", np.uint8)
    [verdict] = leaks.judge(
        SMALL, recorded(**{"freed.frees": 2, "freed.KV slots at srt/scheduler.py retract:71": first})
    )
    assert (verdict.status, verdict.where) == (Status.FAIL, "KV slots freed twice at srt/scheduler.py retract")
    assert "retract:71, which are free since srt/mem_cache/common.py release:3" in verdict.detail


def launched(**changes: object) -> Trace:
    """A launch of the draft graph of two for one request of nine tokens."""
    arrays: dict[str, object] = {
        "input/req_pool_indices": [1],
        "input/seq_lens": [9],
        "input/req_to_token": np.arange(2 * 64).reshape(2, 64),
        "launch/bs": 2,
        "launch/raw_bs": 1,
        "launch/seq_lens": [9, 1, 1, 1],
        "launch/req_pool_indices": [1, 0, 0, 0],
        "neutral/seq_lens": 1,
        "neutral/req_pool_indices": 0,
    }
    seen = tuple(
        RecordedArray(step=0, path="round_launch", name=f"draft/{name}", array=np.asarray(values))
        for name, values in (arrays | changes).items()
    )
    return Trace(ended=End(how=Termination.DONE), seen=seen)


def test_a_launch_is_judged_as_its_runners() -> None:
    case = replace(SMALL, setup=replace(CHAIN, capture_bs=(2, 4)))
    passed = launches.judge(case, launched())
    assert {verdict.status for verdict in passed} == {Status.PASS}
    assert {verdict.oracle for verdict in passed} == {"launches", "bucket", "slot0_padding", "staged"}
    for changes, oracle in (
        ({"launch/req_pool_indices": [1, 3, 0, 0]}, "slot0_padding"),
        ({"launch/seq_lens": [8, 1, 1, 1]}, "staged"),
        ({"launch/bs": 4}, "bucket"),
    ):
        failed = [v for v in launches.judge(case, launched(**changes)) if v.status is Status.FAIL]
        assert [(verdict.oracle, verdict.runner) for verdict in failed] == [(oracle, "draft")]
    [nothing] = [verdict for verdict in judge_all(SMALL, served()) if verdict.oracle == launches.ORACLE]
    assert (nothing.status, nothing.where) == (Status.UNKNOWN, launches.NOTHING), "no graph ran"
    batches = replace(launched(), seen=tuple(array for array in launched().seen if "/input/" in array.name))
    assert only(launches.judge, case, batches).where == launches.UNJUDGED


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("free KV slots", [40, 39, 40]),
        ("free KV slots", [40, 41, 40]),
        ("free KV slots", [40, 40, 39]),
        ("different free pages", [10, 9, 10]),
        ("evictable KV slots", [0, 0, 4]),
    ],
)
def test_what_is_not_given_back_is_a_failure(name: str, counts: list[int]) -> None:
    verdict = only(leaks.judge, SMALL, served(**{f"holdings.{name}": counts}))
    assert (verdict.status, verdict.where) == (Status.FAIL, name)


def test_what_is_cached_is_no_leak() -> None:
    cached = {"holdings.free KV slots": [40, 32, 40], "holdings.evictable KV slots": [0, 8, 0]}
    setup = replace(CHAIN, page_size=4)
    kept = served(**cached, **{"holdings.different free pages": [10, 8, 10]})
    assert only(leaks.judge, replace(SMALL, setup=setup), kept).status is Status.PASS
    assert only(leaks.judge, SMALL, Trace(ended=End(how=Termination.DONE))).status is Status.UNKNOWN


def test_arrivals_are_valid_of_runners_that_serve_alone() -> None:
    case = Case(setup=CHAIN, steps=STEPS)
    assert problems(case) == []
    retracted = replace(STEPS[1], happens="retract")
    assert problems(replace(case, steps=(STEPS[0], retracted, Step(requests=(), happens="flush")))) == []
    assert problems(replace(case, steps=(STEPS[0], Step(requests=()))))
    assert problems(replace(case, steps=(STEPS[0], replace(retracted, happens="burn"))))
    assert problems(replace(case, setup=replace(CHAIN, page_size=4, chunk=6)))
    assert any("arrivals" in each for each in problems(replace(case, setup=replace(CHAIN, runner="draft"))))
    longest = seq_len_max(CHAIN)
    for further in (longest - 8, -1):
        bad = replace(STEPS[0], requests=(replace(STEPS[0].requests[0], further=further),))
        assert problems(Case(setup=CHAIN, steps=(bad,)))
    assert problems(replace(case, steps=(replace(STEPS[0], wait=65),)))
    assert problems(replace(case, setup=replace(CHAIN, pool=5)))
    assert problems(replace(case, setup=replace(CHAIN, runner="draft", disagreement=30)))


def test_arrivals_are_kept_in_files_and_words() -> None:
    case = Case(setup=replace(CHAIN, disagreement=30, overlap=True), steps=STEPS)
    assert loads(dumps(Seed(case=case))).case == case
    sooner = replace(case, steps=(STEPS[0], replace(STEPS[1], wait=2)))
    fewer = replace(STEPS[0], requests=(*STEPS[0].requests[:2], replace(STEPS[0].requests[2], further=1)))
    assert len({digest(case), digest(sooner), digest(replace(case, steps=(fewer, STEPS[1])))}) == 3
    words = "\n".join(paragraph(Seed(case=case)))
    assert "arriving 3 iterations later" in words and "15 tokens asked for" in words


def test_happenings_are_kept_in_files_and_words() -> None:
    case = Case(setup=replace(CHAIN, radix=True, chunk=8), steps=HAPPENING)
    assert loads(dumps(Seed(case=case))).case == case
    calm = replace(case, steps=(HAPPENING[0], replace(HAPPENING[1], happens="flush"), *HAPPENING[2:]))
    assert digest(calm) != digest(case)
    assert "retract, then arriving 7 iterations later" in "\n".join(paragraph(Seed(case=case)))


def test_requests_go_before_tokens_when_a_case_is_made_smaller() -> None:
    """A case fails as long as a prompt of four tokens or more asks for five."""

    def fails(case: Case) -> bool:
        return any(r.seq_len >= 4 and r.further >= 5 for step in case.steps for r in step.requests)

    start = Case(setup=replace(TREE, disagreement=30, overlap=True), steps=STEPS)
    smallest = shrink(start, fails, runs_max=500, seconds_max=30, on_better=lambda case: None)
    assert smallest.steps == (Step(requests=(Request(slot=1, seq_len=4, data=0, further=5),)),)
    assert (smallest.setup.topk, smallest.setup.disagreement, smallest.setup.overlap) == (1, 0, False)


def texts(trace: Trace) -> list[list[list[int]]]:
    return [trace.path(number, "served")["tokens"].tolist() for number in range(len(STEPS))]


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_texts_are_the_same_for_every_way_of_drafting(newest: Pool) -> None:
    """Chains and trees, drafts that are accepted and such that are not, pages, both event loops; graphs ran."""
    ways = (
        CHAIN,
        replace(CHAIN, disagreement=300, overlap=True),
        replace(TREE, disagreement=30, page_size=4),
    )
    traces = []
    for setup in ways:
        case = Case(setup=setup, steps=STEPS)
        trace = newest.run(case)
        assert overall(judge_all(case, trace)) is Status.PASS, judge_all(case, trace)
        launched = {count.split()[2] for count in trace.facts["launches"].split(", ")}
        assert launched == {"draft", "verify", "draft_extend"}
        traces.append(trace)
    assert all(texts(trace) == texts(traces[0]) for trace in traces)
    iterations = [int(trace.facts["iterations"]) for trace in traces]
    assert iterations[1] > iterations[0] + 8, "drafts that disagree are accepted as often"


@pytest.mark.slow
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", few(UNDISTURBED, 1))
def test_retraction_abort_and_a_cached_prefix_change_no_text(newest: Pool, name: str) -> None:
    case = Case(setup=UNDISTURBED[name], steps=HAPPENING)
    trace = newest.run(case)
    assert overall(judge_all(case, trace)) is Status.PASS, judge_all(case, trace)
    assert int(trace.facts["retractions"]) > 0 and int(trace.facts["cached tokens"]) > 0
    assert trace.path(0, "served")["ended"].tolist() == [2, 1, 1]
