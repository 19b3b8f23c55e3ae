"""sglang's flashinfer backend on every installed release: a crowded batch overflows where #27338 is not fixed, in the
same way every time, and nothing else is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oracles.catalogue import judge_all, overall
from oracles.kv_indices import NARROW
from oracles.metadata_shape import PAST
from repro.cases.case import Case, Request, Setup, Step, seq_len_max
from repro.cases.families import DEEPSEEK, fitted
from repro.cases.release_list import NEWEST
from repro.cases.releases import release_order
from repro.traces.finding import Status
from repro.traces.trace import Termination, Trace
from runners.processes.pool import Pool
from tests.builders.cases import failures
from tests.builders.known_failures import has_fix_of
from tests.builders.same_bits import bits

SETUP = Setup(
    runner="draft",
    backend="flashinfer",
    topk=4,
    num_steps=3,
    num_draft_tokens=6,
    capture_bs=(1, 2, 4),
    slots=6,
    head_dim=64,
    dtype="float16",
)
# A padded draft batch is planned with the sum of its own lengths.
RAW_SUM_UNTIL = release_order("0.5.13.post1")


def step(setup: Setup, *lengths: int) -> Step:
    return Step(requests=tuple(Request(slot=n + 1, seq_len=length, data=n) for n, length in enumerate(lengths)))


def crowded(setup: Setup) -> Case:
    """Every bucket as full and as long as can be, and at last a short batch in the largest."""
    most = seq_len_max(setup)
    batches = [step(setup, *[most] * bs) for bs in setup.capture_bs]
    return Case(setup=setup, steps=(*batches, step(setup, 3, 2, 1)))


def raw_sum(trace: Trace) -> set[str]:
    """The oracles that fail of a padded draft batch in this release, whatever it holds."""
    planned = {"planned"} if release_order(trace.facts["sglang"]) <= RAW_SUM_UNTIL else set()
    return planned | both_wrong(trace)


def both_wrong(trace: Trace) -> set[str]:
    """The oracles that fail of drafts of several steps in this release, by graph and eager alike."""
    return set() if has_fix_of("draft-positions-ahead", trace.facts["sglang"]) else {"reference"}


def stale_rows(trace: Trace) -> set[str]:
    """The oracles that may fail of padded rows in this release: what they hold, and what is read by it."""
    fixed = has_fix_of("pr23037-stale-padding", trace.facts["sglang"])
    return set() if fixed else {"slot0_padding", "kv_indices", "kv_reads", "history"}


@pytest.mark.parametrize("changes", [{}, {"num_heads": 4, "num_kv_heads": 1, "head_dim": 128}], ids=str)
def test_a_crowded_batch(changes: dict[str, Any], pool: Pool) -> None:
    case = crowded(replace(SETUP, **changes))
    trace = pool.run(case)
    wrongs = failures(case, trace)
    if has_fix_of("pr27338-row-too-narrow", trace.facts["sglang"]):
        assert wrongs.keys() == raw_sum(trace)
        assert raw_sum(trace) or overall(judge_all(case, trace)) is Status.PASS
        return
    assert NARROW in wrongs.pop("kv_indices") and PAST in wrongs.pop("metadata_shape")
    # Attention goes on into the row of the next draft step, or into what lies behind the buffer: drafts are wrong.
    assert any(where.startswith("draft tree") for where in wrongs.pop("graph_equals_eager"))
    if trace.facts["engine"] == "emulated":
        # The kernel writes past its row: over the next row's entries, behind those that it is given, and behind the
        # last row outside the buffer.
        kernel = "kv_indices in generate_draft_decode_kv_indices"
        ways = ("store outside", "store outside the view of", "two values stored to")
        assert wrongs.pop("memory") == {f"{way} {kernel}" for way in ways}
    assert wrongs.keys() <= stale_rows(trace) | raw_sum(trace) | {"kv_reads", "history"}


@pytest.mark.exhaustive
def test_it_is_the_same_every_time(pool: Pool) -> None:
    """Also where kernels write and read past their buffers."""
    case = crowded(SETUP)
    first = pool.run(case)
    assert bits(pool.run_fresh(case)) == bits(first)
    assert bits(pool.run(case)) == bits(first)


def test_a_sparse_batch_passes_everywhere(pool: Pool) -> None:
    """All branches together are no longer than the batch without branches may be; even right behind one
    that wrote past the buffer, into a guard band."""
    assert pool.run(crowded(SETUP)).ended.how is Termination.DONE
    case = Case(setup=SETUP, steps=(step(SETUP, 9, 12, 7, 14), step(SETUP, 15, 20), step(SETUP, 6)))
    trace = pool.run(case)
    assert failures(case, trace).keys() <= both_wrong(trace)


def test_a_single_branch_never_overflows(pool: Pool) -> None:
    case = crowded(replace(SETUP, topk=1, num_draft_tokens=SETUP.num_steps + 1))
    trace = pool.run(case)
    stale = stale_rows(trace)
    wrongs = failures(case, trace).keys()
    always = stale & {"slot0_padding", "kv_indices"} | (raw_sum(trace) - both_wrong(trace))
    assert always <= wrongs <= stale | raw_sum(trace)


def test_a_runner_that_sglang_does_not_have_is_unsupported(pool: Pool) -> None:
    ended = pool.run(replace(crowded(SETUP), setup=replace(SETUP, runner="toy"))).ended
    assert (ended.how, ended.what) == (Termination.UNSUPPORTED, "no adapter drives the toy runner")


@pytest.mark.emulated(NEWEST)
def test_padded_rows_of_a_latent_draft_are_seen_as_they_lie_in_memory(newest: Pool) -> None:
    """Fewer of their keys are planned than written: what is wrong is the plan of real rows (a known issue)."""
    latent = fitted(replace(SETUP, topk=1, num_steps=2, num_draft_tokens=3, capture_bs=(4,), family=DEEPSEEK))
    case = Case(setup=latent, steps=(step(latent, 9, 5, 3, 2), step(latent, 4)))
    failed = failures(case, newest.run(case))
    assert failed["metadata_shape"] == {"length of a real row"}
    assert "segment of a padded row" not in failed.get("kv_indices", ())
