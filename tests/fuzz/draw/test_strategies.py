"""The strategies: what comes out is valid, does what its move says, and reaches the whole domain."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.draw.rounds import SHORT_ROUNDS, different, examples, rounds
from fuzz.draw.strategies import cases, setups
from fuzz.draw.swarm import EVERYTHING, LARGE, LENGTHS, MIDDLE, MOVES, SMALL, Swarm, swarms
from repro.cases.case import Case, Request, Setup, problems, seq_len_max, setup_problems
from repro.cases.codec import digest
from repro.cases.options import OPTION
from repro.cases.runner_facts import LATENT
from tests.builders.project import PROJECT, in_front

PLAIN = Swarm(shuffled=False, jumps=False)
SETUP = Setup(
    runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2, 4), slots=6, page_size=4, context_len=64
)


def drawn(swarm: Swarm, count: int, setup: Setup = SETUP) -> list[Case]:
    return list(different(f"test {swarm}", cases(setup, swarm), count))


def pairs(sequences: list[Case]) -> Iterator[tuple[tuple[Request, ...], tuple[Request, ...]]]:
    """Every batch with the one after it."""
    for case in sequences:
        yield from itertools.pairwise(step.requests for step in case.steps)


def owners(batch: tuple[Request, ...]) -> set[tuple[int, int]]:
    return {(request.slot, request.data) for request in batch}


def many_setups(swarm: Swarm = EVERYTHING) -> list[Setup]:
    draw = examples(setups("draft", "triton", swarm))
    return [draw(f"setup {number}") for number in range(400)]


def test_campaign_cases_are_valid() -> None:
    cases_drawn = [case for seed in range(2) for case in itertools.islice(rounds(seed, "draft", "triton", 4), 60)]
    assert [problem for case in cases_drawn for problem in problems(case)] == []


@pytest.mark.slow
@settings(database=None, deadline=None, max_examples=40)
@given(st.data())
def test_valid_under_any_swarm_with_hypothesis_itself(data: st.DataObject) -> None:
    swarm = data.draw(swarms())
    setup = data.draw(setups("toy", "flashinfer", swarm))
    assert (setup.runner, setup.backend) == ("toy", "flashinfer")
    assert problems(data.draw(cases(setup, swarm))) == []


@pytest.mark.slow
def test_setups_reach_the_whole_domain() -> None:
    drawn_setups = many_setups()
    assert [problem for setup in drawn_setups for problem in setup_problems(setup)] == []
    assert {setup.topk for setup in drawn_setups} == set(range(2, 9))
    assert {setup.num_steps for setup in drawn_setups} == set(range(2, 7))
    assert {setup.page_size for setup in drawn_setups} == {2, 4, 8, 16, 32, 64}  # no larger one fits with branches
    assert {setup.num_heads for setup in drawn_setups} == {1, 2, 3, 4}
    assert any(setup.num_kv_heads < setup.num_heads for setup in drawn_setups)
    assert {setup.hidden_size for setup in drawn_setups if setup.algorithm not in LATENT} == set(
        OPTION["hidden_size"].drawn
    )
    assert {setup.vocab_size for setup in drawn_setups} == set(OPTION["vocab_size"].drawn)
    assert {len(setup.capture_bs) for setup in drawn_setups} == {1, 2, 3, 4}
    assert {setup.max_bs for setup in drawn_setups} == set(range(2, 9))
    assert {setup.slots - setup.max_bs for setup in drawn_setups} == set(
        range(1, 5)
    )  # room for a batch beyond all buckets
    assert {setup.hidden_size % setup.num_heads for setup in drawn_setups} == {0}
    # Wide trees on long pages leave little room below; most of a campaign's setups are small.
    small = many_setups(replace(EVERYTHING, size=SMALL))
    assert min(setup.context_len for setup in (*drawn_setups, *small)) == 32
    assert max(setup.context_len for setup in drawn_setups) == 128
    # The number of draft tokens reaches both of its ends: the root and one more, and the whole tree.
    assert any(setup.num_draft_tokens == 2 for setup in drawn_setups)
    trees = [(s.num_draft_tokens, s.topk + (s.num_steps - 1) * s.topk**2 + 1) for s in drawn_setups]
    assert any(tokens == most for tokens, most in trees)


@pytest.mark.slow
def test_features_of_the_swarm() -> None:
    swarm = Swarm(size=SMALL, branching=False, paged=False, sparse=False)
    draw = examples(setups("draft", "triton", swarm))
    drawn_setups = [draw(f"setup {number}") for number in range(100)]
    assert {(setup.topk, setup.page_size) for setup in drawn_setups} == {(1, 1)}
    assert all(setup.num_draft_tokens == setup.num_steps + 1 for setup in drawn_setups)
    assert {setup.capture_bs for setup in drawn_setups} == {tuple(range(1, n + 1)) for n in range(1, 5)}
    assert max(setup.num_heads for setup in drawn_setups) == SMALL.num_heads
    assert max(setup.hidden_size for setup in drawn_setups if setup.algorithm not in LATENT) == SMALL.hidden_size
    # Sparse buckets always leave a size out, so that some batch is padded.
    sparse = examples(setups("draft", "triton", replace(swarm, sparse=True)))
    for number in range(100):
        setup = sparse(f"setup {number}")
        assert set(setup.capture_bs) < set(range(1, setup.max_bs + 1))


@pytest.mark.slow
def test_swarms_differ() -> None:
    draw = examples(swarms())
    drawn_swarms = [draw(f"swarm {number}") for number in range(200)]
    assert {swarm.size for swarm in drawn_swarms} == {SMALL, MIDDLE, LARGE}
    assert Counter(swarm.size for swarm in drawn_swarms).most_common(1)[0][0] == SMALL
    for feature in ("sparse", "shuffled", "jumps", "unmirrored", "crowded", "relocating", "halfway", "idle"):
        assert {getattr(swarm, feature) for swarm in drawn_swarms} == {True, False}
    for names, part in ((MOVES, "moves"), (LENGTHS, "lengths")):
        used = [getattr(swarm, part) for swarm in drawn_swarms]
        for name in names:
            assert {0, 1, 2, 4} <= {chosen.count(name) for chosen in used}
        assert all(used)


@pytest.mark.slow
@pytest.mark.parametrize("move", MOVES)
def test_each_move_does_what_it_says(move: str) -> None:
    cases_drawn = drawn(replace(PLAIN, moves=(move,)), 120)
    seen = 0
    for before, after in pairs(cases_drawn):
        if (move == "grow" and len(before) == SETUP.max_bs) or (move == "shrink" and len(before) == 1):
            # Not possible now, so everyone simply goes on.
            assert owners(after) == owners(before)
            continue
        seen += 1
        if move == "grow":
            assert owners(before) < owners(after)
        elif move == "shrink":
            assert owners(after) < owners(before)
        elif move == "finish_and_reuse":
            assert {request.slot for request in after} == {request.slot for request in before}
            assert owners(after) != owners(before)
        elif move == "same":
            assert owners(after) == owners(before)
        elif move == "alike":
            assert sorted(r.seq_len for r in after) == sorted(r.seq_len for r in before)
        elif move == "one":
            assert len(after) == 1
        else:
            assert len(after) in SETUP.capture_bs
    assert seen > 40


def test_a_batch_of_one_is_old_or_new() -> None:
    moves = list(pairs(drawn(replace(PLAIN, moves=("one",)), 100)))
    assert {owners(after) <= owners(before) for before, after in moves} == {True, False}


def test_full_reaches_every_bucket() -> None:
    moves = pairs(drawn(replace(PLAIN, moves=("full",)), 100))
    assert {len(after) for _, after in moves} == set(SETUP.capture_bs)


def test_continued_requests_grow_by_accepted_tokens() -> None:
    limit = seq_len_max(SETUP)
    grown = set()
    for before, after in pairs(drawn(replace(PLAIN, moves=("same",)), 80)):
        for old, new in zip(before, after, strict=True):
            grown.add(new.seq_len - old.seq_len)
            assert new.seq_len in {min(limit, old.seq_len + n) for n in range(1, SETUP.num_steps + 1)}
    assert grown == {0, 1, 2, 3}  # 0 at the limit


def test_jumps_also_stay_or_leap() -> None:
    moves = pairs(drawn(replace(PLAIN, moves=("same",), jumps=True), 80))
    grown = [new.seq_len - old.seq_len for before, after in moves for old, new in zip(before, after, strict=True)]
    usual = sum(0 < n <= SETUP.num_steps for n in grown)
    assert len(grown) / 2 < usual < len(grown)
    assert min(grown) < 0
    assert max(grown) > SETUP.num_steps


def test_shuffled_rows_change_places() -> None:
    moves = pairs(drawn(replace(PLAIN, moves=("same",), shuffled=True), 80))
    orders = [([r.slot for r in before], [r.slot for r in after]) for before, after in moves]
    moved = sum(before != after for before, after in orders)
    assert 0 < moved < len(orders) / 2
    assert all(sorted(before) == sorted(after) for before, after in orders)


@pytest.mark.slow
def test_lengths() -> None:
    unpaged = replace(SETUP, page_size=1)
    limit = seq_len_max(unpaged)
    ranges = {
        "one": {1},
        "short": set(range(1, 9)),
        "any": set(range(1, limit + 1)),
        "page": set(range(1, limit + 1)),
        "long": set(range(limit - 8, limit + 1)),
        "limit": {limit},
    }
    assert set(ranges) == set(LENGTHS)
    for name, lengths in ranges.items():
        firsts = {
            r.seq_len
            for case in drawn(replace(PLAIN, lengths=(name,), calls_max=2), 60, unpaged)
            for r in case.steps[0].requests
        }
        assert firsts <= lengths
        assert len(firsts) > len(lengths) / 2


@pytest.mark.slow
def test_cases_are_as_long_as_the_swarm_allows() -> None:
    assert {len(case.steps) for case in drawn(replace(PLAIN, calls_max=6), 160)} == {1, 2, 3, 4, 5, 6}
    assert {len(case.steps) for case in drawn(replace(PLAIN, calls_max=2), 20)} == {1, 2}


@pytest.mark.slow
def test_a_round_has_no_case_twice_and_few_setups_repeat() -> None:
    cases_drawn = list(itertools.islice(rounds(3, "draft", "triton", 16, range(SHORT_ROUNDS, SHORT_ROUNDS + 15)), 240))
    batches = [cases_drawn[n : n + 16] for n in range(0, 240, 16)]
    assert all(len({digest(case) for case in batch}) == 16 for batch in batches)
    assert all(len({case.setup for case in batch}) == 1 for batch in batches)
    assert len({batch[0].setup for batch in batches}) == 15


def test_a_strategy_with_little_to_offer_ends_the_round() -> None:
    only = drawn(Swarm(), 1)
    assert list(different("few", st.sampled_from(only), 16)) == only


@pytest.mark.slow
def test_the_largest_case_fits_the_bytes() -> None:
    """Eight requests in each of six calls, or a few more in some, with every choice that costs bytes turned on; an idle
    call costs none."""
    setup = replace(SETUP, capture_bs=(8,), slots=12)
    draw = examples(cases(setup, replace(EVERYTHING, moves=("full",), idle=False)))
    large_cases = [draw(f"large {number}") for number in range(130)]
    assert max(sum(len(step.requests) for step in case.steps) for case in large_cases) >= 48


def test_a_strategy_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match="gave no value"):
        examples(st.integers().filter(lambda _: False))("none")


@pytest.mark.slow
def test_same_seed_same_cases_in_any_process() -> None:
    """Neither the hash seed nor the loaded modules may matter. Of more rounds than a plan's cycle has."""
    code = (
        "import sys, itertools, reports.html, fuzz.__main__\n"
        "from fuzz.draw.rounds import rounds\nfrom repro.cases.codec import digest\n"
        "print(*map(digest, itertools.islice(rounds(int(sys.argv[1]), 'decode', 'fa3', 2), 80)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, "11"],
        cwd=PROJECT,
        env={"PYTHONHASHSEED": "77", "PYTHONPATH": in_front(PROJECT)},
        capture_output=True,
        text=True,
        check=True,
    )
    here = [digest(case) for case in itertools.islice(rounds(11, "decode", "fa3", 2), 80)]
    assert ran.stdout.split() == here
    assert here != [digest(case) for case in itertools.islice(rounds(12, "decode", "fa3", 2), 80)]
