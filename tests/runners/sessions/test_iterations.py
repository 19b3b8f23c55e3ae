"""The iterations that requests may take: enough for each chunk of each prefill."""

from __future__ import annotations

from dataclasses import replace

from repro.cases.case import Case, Request, Step
from repro.cases.rows.serving import pool_least
from runners.sessions.iterations import iterations_max, prefills_max
from tests.runners.releases.test_round import CHAIN

LONG = Request(slot=1, seq_len=60, data=1, further=4)
STEPS = (Step(requests=(LONG, replace(LONG, slot=2))), Step(requests=(LONG,), wait=3))


def test_chunks_of_prompts_are_iterations() -> None:
    case = Case(setup=CHAIN, steps=STEPS)
    whole = iterations_max(case)
    assert whole >= 3 + 3 * 5, "a prefill and a token an iteration"
    chunked = replace(case, setup=replace(CHAIN, chunk=1, page_size=1))
    assert iterations_max(chunked) >= whole + 3 * 60 - 3
    assert iterations_max(replace(case, setup=replace(CHAIN, chunk=16))) == whole + 3 * (4 - 1)


def test_what_is_retracted_is_prefilled_again() -> None:
    setup = replace(CHAIN, chunk=1, page_size=1)
    again = (STEPS[0], replace(STEPS[1], happens="retract"))
    never, retracted = (iterations_max(Case(setup=setup, steps=steps)) for steps in (STEPS, again))
    assert retracted == never + 3 * 64
    small = replace(setup, pool=pool_least(setup))
    assert iterations_max(Case(setup=small, steps=STEPS)) == never + 3 * 64 * 4, "by a small pool, for each token"


def test_a_prefill_afresh_may_take_an_iteration_for_each_token() -> None:
    lengths = [145, 145, 10]  # of a case with chunks of one token, for which 256 were too few
    assert prefills_max(lengths, chunk=1) >= sum(lengths)
    assert prefills_max(lengths, chunk=1) - prefills_max(lengths, chunk=0) == sum(lengths) - 3
    assert prefills_max(lengths, chunk=0) == prefills_max(lengths, chunk=200)
