"""Shrinking: the exact minimum for mistakes of the kinds that runners make, and what it costs to get there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.draw.strategies import cases, setups
from repro.cases.case import Case, Request, Setup, Step, accepted_max, problems
from repro.cases.codec import digest
from repro.cases.families import DEEPSEEK, GDN, GPT_OSS, fitted
from repro.cases.sort_key import sort_key
from repro.shrinking.passes import PASSES
from repro.shrinking.shrink import NotFailing, shrink

LEAST = Setup(
    runner="draft", topk=1, num_steps=2, num_draft_tokens=3, capture_bs=(1,), slots=1, page_size=1, context_len=8
)
LARGE = Setup(
    runner="draft",
    topk=4,
    num_steps=5,
    num_draft_tokens=16,
    capture_bs=(1, 2, 4, 8),
    slots=12,
    page_size=16,
    context_len=1000,
    vocab_size=512,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    dtype="bfloat16",
    kv_splits=4,
)


def batch(*rows: tuple[int, int, int]) -> Step:
    return Step(requests=tuple(Request(slot=slot, seq_len=seq_len, data=data) for slot, seq_len, data in rows))


def large(*sizes: int, setup: Setup = LARGE) -> Case:
    """A case with batches of these sizes and nothing small in it: slots wander, lengths and data differ."""
    steps = []
    for n, size in enumerate(sizes):
        slots = [(n + 5 * row) % setup.slots + 1 for row in range(size)]
        steps.append(batch(*((slot, 100 + 13 * slot + 7 * n, 7_000_003 * slot + n) for slot in slots)))
    return Case(setup=setup, steps=tuple(steps))


START = large(3, 8, 2, 7, 4, 3, 6, 1)


class Runs:
    """A predicate that is counted, and all that the shrinker does with it."""

    def __init__(self, fails: Callable[[Case], bool]) -> None:
        self.fails = fails
        self.run: list[Case] = []
        self.better: list[Case] = []

    def __call__(self, case: Case) -> bool:
        assert problems(case) == [], "an invalid case was run"
        self.run.append(case)
        return self.fails(case)

    def shrink(self, start: Case, runs_max: int = 2000) -> Case:
        return shrink(start, self, runs_max=runs_max, seconds_max=60, on_better=self.better.append)


def stale_padding(case: Case) -> bool:
    """A batch leaves rows of its bucket unused that an earlier, larger one had filled."""
    sizes = [batch for step in case.steps if case.setup.replays(batch := len(step.requests))]
    return any(later < case.setup.bucket(later) and max(sizes[:n]) > later for n, later in enumerate(sizes) if n)


def stale_padding_in_the_same_bucket(case: Case) -> bool:
    sizes = [len(step.requests) for step in case.steps]
    return any(b < a and case.setup.bucket(a) == case.setup.bucket(b) for a, b in itertools.combinations(sizes, 2))


def row_too_narrow(case: Case) -> bool:
    """A row of kv_indices lacks the factor topk."""
    room = case.setup.max_bs * case.setup.context_len
    return any(case.setup.topk * sum(r.seq_len for r in step.requests) > room for step in case.steps)


def slot_continues(case: Case) -> bool:
    """Some slot is longer by exactly three tokens in the next step."""
    for before, after in itertools.pairwise(case.steps):
        lengths = {r.slot: r.seq_len for r in before.requests}
        if any(lengths.get(r.slot, -9) + 3 == r.seq_len for r in after.requests):
            return True
    return False


def slot_reused(case: Case) -> bool:
    """A slot comes back after a step without it, in a batch of at least two."""
    for a, b, c in itertools.combinations(case.steps, 3):
        there = [{r.slot for r in step.requests} for step in (a, b, c)]
        if len(c.requests) > 1 and (there[0] & there[2]) - there[1]:
            return True
    return False


def lengths(case: Case) -> list[int]:
    return [r.seq_len for step in case.steps for r in step.requests]


TWO_ONE = (batch((1, 1, 0), (2, 1, 0)), batch((1, 1, 0)))
# (name, what fails, the exact minimum, how many runs it may take from START)
MINIMA: list[tuple[str, Callable[[Case], bool], Case, int]] = [
    ("anything", lambda case: True, Case(setup=LEAST, steps=(batch((1, 1, 0)),)), 10),
    ("stale padding", stale_padding, Case(setup=replace(LEAST, capture_bs=(2,), slots=2), steps=TWO_ONE), 40),
    (
        "stale padding in the same bucket",
        stale_padding_in_the_same_bucket,
        Case(setup=replace(LEAST, capture_bs=(2,), slots=2), steps=TWO_ONE),
        40,
    ),
    (
        "a smaller batch in a bucket that the larger one did not use",
        lambda case: any(
            len(a.requests) > len(b.requests) < case.setup.bucket(len(b.requests)) < case.setup.bucket(len(a.requests))
            for a, b in itertools.combinations(case.steps, 2)
        ),
        Case(
            setup=replace(LEAST, capture_bs=(2, 3), slots=3),
            steps=(batch((1, 1, 0), (2, 1, 0), (3, 1, 0)), batch((1, 1, 0))),
        ),
        75,
    ),
    (
        "a narrow row",
        row_too_narrow,
        Case(setup=replace(LEAST, topk=2, num_draft_tokens=2, context_len=9), steps=(batch((1, 5, 0)),)),
        80,
    ),
    (
        "two requests that do not fill a bucket, behind another batch of two",
        lambda case: [len(s.requests) for s in case.steps].count(2) >= 2 and case.setup.bucket(2) > 2,
        Case(
            setup=replace(LEAST, capture_bs=(3,), slots=3),
            steps=(batch((1, 1, 0), (2, 1, 0)), batch((1, 1, 0), (2, 1, 0))),
        ),
        40,
    ),
    (
        "a long prefix",
        lambda case: max(lengths(case)) >= 137,
        Case(setup=replace(LEAST, context_len=139), steps=(batch((1, 137, 0)),)),
        45,
    ),
    (
        "a long batch",
        lambda case: any(sum(r.seq_len for r in step.requests) >= 300 for step in case.steps),
        Case(setup=replace(LEAST, context_len=302), steps=(batch((1, 300, 0)),)),
        55,
    ),
    (
        "a full last page",
        lambda case: case.setup.page_size > 4 and any(n % case.setup.page_size == 0 for n in lengths(case)),
        Case(setup=replace(LEAST, page_size=8, context_len=10), steps=(batch((1, 8, 0)),)),
        80,
    ),
    (
        "a slot that grows",
        slot_continues,
        Case(setup=LEAST, steps=(batch((1, 1, 0)), batch((1, 4, 0)))),
        30,
    ),
    (
        "a slot that comes back",
        slot_reused,
        Case(
            setup=replace(LEAST, capture_bs=(2,), slots=2),
            steps=(batch((1, 1, 0)), batch((2, 1, 0)), batch((1, 1, 0), (2, 1, 0))),
        ),
        40,
    ),
    (
        "two different contents",
        lambda case: len({r.data for step in case.steps for r in step.requests}) > 1,
        Case(setup=replace(LEAST, capture_bs=(2,), slots=2), steps=(batch((1, 1, 0), (2, 1, 1)),)),
        25,
    ),
    (
        "branches over several steps, some of them left out",
        lambda case: case.setup.topk >= 3 and case.setup.num_steps >= 4 and case.setup.num_draft_tokens > 5,
        Case(
            setup=replace(LEAST, topk=3, num_steps=4, num_draft_tokens=6, context_len=13),
            steps=(batch((1, 1, 0)),),
        ),
        55,
    ),
    (
        "one data type and split attention",
        lambda case: case.setup.dtype == "bfloat16" and case.setup.kv_splits > 2,
        Case(setup=replace(LEAST, dtype="bfloat16", kv_splits=3), steps=(batch((1, 1, 0)),)),
        30,
    ),
    (
        "more slots than rows",
        lambda case: case.setup.slots > 2 * case.setup.max_bs + 3,
        Case(setup=replace(LEAST, slots=6), steps=(batch((1, 1, 0)),)),
        35,
    ),
]  # fmt: skip


STARTS = {
    "a slot that grows": Case(
        setup=LARGE,
        steps=(
            batch((3, 50, 9), (4, 60, 8)),
            batch((5, 200, 7), (4, 63, 5), (3, 51, 4)),
            batch((5, 201, 3), (4, 64, 2)),
        ),
    ),
    "a full last page": replace(START, steps=(*START.steps, batch((3, 77, 5), (4, 176, 6), (9, 333, 7)))),
    "a narrow row": replace(large(2, 8), setup=replace(LARGE, topk=8, context_len=600)),
    "more slots than rows": replace(large(3, 8, 2), setup=replace(LARGE, slots=40)),
    "a smaller batch in a bucket that the larger one did not use": large(2, 7, 8, 3, 5),
    "two requests that do not fill a bucket, behind another batch of two": large(
        5, 2, 3, 2, 4, setup=replace(LARGE, capture_bs=(1, 3, 6))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fails", "least", "runs"), MINIMA, ids=[name for name, *_ in MINIMA])
def test_the_exact_minimum_at_a_bounded_cost(name: str, fails: Callable[[Case], bool], least: Case, runs: int) -> None:
    start = STARTS.get(name, START)
    search = Runs(fails)
    assert search.shrink(start) == least
    assert len(search.run) <= runs


@pytest.mark.slow
@pytest.mark.parametrize("fails", [stale_padding, row_too_narrow, slot_reused], ids=lambda fails: fails.__name__)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_from_any_failing_case_to_the_same_simplest_one(fails: Callable[[Case], bool], data: st.DataObject) -> None:
    """Whatever was drawn, and with all that is run on the way valid, new and simpler than what was known."""
    case = data.draw(setups().flatmap(cases))
    search = Runs(fails)
    if not fails(case):
        with pytest.raises(NotFailing):
            search.shrink(case)
        assert search.run == [case]
        return
    smallest = search.shrink(case)
    assert fails(smallest)
    known: dict[Callable[[Case], bool], str] = {
        stale_padding: "stale padding",
        row_too_narrow: "a narrow row",
        slot_reused: "a slot that comes back",
    }
    assert [least for name, _, least, _ in MINIMA if name == known[fails]] == [smallest]
    assert len({digest(run) for run in search.run}) == len(search.run)
    assert [sort_key(c) for c in search.better] == sorted({sort_key(c) for c in search.better}, reverse=True)


@pytest.mark.slow
@given(case=setups().flatmap(cases))
@settings(max_examples=40, deadline=None)
def test_the_least_of_all_cases_is_reached_from_each_in_a_few_runs(case: Case) -> None:
    search = Runs(lambda _: True)
    assert search.shrink(case) == Case(setup=LEAST, steps=(batch((1, 1, 0)),))
    assert len(search.run) <= 25


def test_a_changed_setup_is_tried_seldom() -> None:
    """Capturing again costs ten replays."""
    search = Runs(stale_padding)
    search.shrink(START)
    assert sum(a.setup != b.setup for a, b in itertools.pairwise(search.run)) <= 5


def test_every_improvement_is_told_before_anything_else_is_run() -> None:
    events: list[tuple[str, Case]] = []

    def fails(case: Case) -> bool:
        events.append(("fails" if stale_padding(case) else "passes", case))
        return stale_padding(case)

    smallest = shrink(START, fails, runs_max=500, seconds_max=60, on_better=lambda case: events.append(("told", case)))
    announced = [case for what, case in events if what == "told"]
    assert announced[-1] == smallest
    for (what, case), after in itertools.pairwise(events[1:]):
        assert (after == ("told", case)) == (what == "fails")


@pytest.mark.parametrize(("runner", "family"), [("verify", GDN), ("verify", GPT_OSS), ("draft", DEEPSEEK)])
def test_a_family_becomes_llama_where_it_still_fails(runner: str, family: str) -> None:
    """A case shrinks to Llama although Llama's verify takes no counts of accepted drafts."""
    setup = fitted(replace(START.setup, runner=runner, family=family, capture_bs=(2,), slots=2, page_size=1))
    requests = tuple(Request(slot=n, seq_len=2, data=n, accepted=min(1, accepted_max(setup))) for n in (1, 2))
    case = Case(setup=setup, steps=(Step(requests=requests),))
    assert not problems(case)

    def fails(tried: Case) -> bool:
        return len(tried.steps[0].requests) > 1 and (not tried.setup.family or _accepted(tried) == _accepted(case))

    assert not Runs(fails).shrink(case).setup.family
    assert Runs(lambda tried: tried.setup.family == family).shrink(case).setup.family == family


def _accepted(case: Case) -> list[int]:
    return [request.accepted for request in case.steps[0].requests]


def test_what_does_not_fail_is_not_shrunk() -> None:
    search = Runs(lambda _: False)
    with pytest.raises(NotFailing, match=digest(START)):
        search.shrink(START)
    assert search.run == [START]
    assert search.better == []


def test_an_invalid_start_is_refused_before_any_run() -> None:
    search = Runs(lambda _: True)
    with pytest.raises(ValueError, match="a case has 1"):
        search.shrink(replace(START, steps=()))
    assert search.run == []


def test_the_budget_of_runs_is_kept() -> None:
    best = sort_key(START)
    for runs_max in (1, 2, 5, 20):
        search = Runs(stale_padding)
        smallest = search.shrink(START, runs_max)
        assert len(search.run) == runs_max
        assert stale_padding(smallest)
        assert smallest == (search.better[-1] if search.better else START)
        assert sort_key(smallest) <= best
        best = sort_key(smallest)
    with pytest.raises(ValueError, match="no run at all"):
        Runs(stale_padding).shrink(START, 0)


def test_the_budget_of_seconds_is_kept() -> None:
    now = 0.0
    runs = 0

    def fails(case: Case) -> bool:
        nonlocal now, runs
        now, runs = now + 2.0, runs + 1
        return stale_padding(case)

    smallest = shrink(START, fails, runs_max=999, seconds_max=9.0, on_better=lambda _: None, clock=lambda: now)
    assert (runs, now) == (4, 8.0), "a fifth would end behind them"
    assert sort_key(smallest) < sort_key(START)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_was_found_before_an_interruption_was_told(error: type[BaseException]) -> None:
    better: list[Case] = []
    runs = 0

    def fails(case: Case) -> bool:
        nonlocal runs
        runs += 1
        if runs == 12:
            raise error
        return stale_padding(case)

    with pytest.raises(error):
        shrink(START, fails, runs_max=999, seconds_max=60, on_better=better.append)
    assert better
    assert stale_padding(better[-1])


@pytest.mark.slow
@given(case=setups().flatmap(cases))
@settings(max_examples=30, deadline=None)
def test_no_pass_proposes_without_end_or_breaks_on_any_answer(case: Case) -> None:
    """Each pass ends, whether all or none or every other of its candidates is taken."""
    answers: Sequence[Callable[[int], bool]] = (lambda n: True, lambda n: False, lambda n: n % 2 == 0)
    for begin, answer in itertools.product(PASSES, answers):
        moves = begin(case)
        count = 0
        try:
            candidate = next(moves)
            while True:
                count += 1
                assert count < 2000
                taken = answer(count) and not problems(candidate)
                candidate = moves.send(taken)
        except StopIteration as end:
            assert end.value is None or problems(end.value) == []
