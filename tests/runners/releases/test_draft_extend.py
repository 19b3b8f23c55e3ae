"""EAGLEDraftExtendCudaGraphRunner: its record to the last shape, trees, and what padding and counts reach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from repro.cases.case import Case, Setup, Step, problems
from repro.cases.releases import release_order
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.trace import Termination, Trace
from runners.processes.pool import Pool
from tests.builders.cases import failures, setup_of, step

SETUP = setup_of("draft_extend")
TREE = replace(SETUP, topk=2, num_draft_tokens=6, page_size=4, context_len=48, kv_splits=2)
OUTPUTS = ("next_token_logits", "hidden_states", "topk_index", "topk_p", "next_hidden_states")


FULL = step((1, 9, 1, 0), (2, 17, 2, 3), (3, 5, 3, 1), (4, 30, 4, 2))
OTHER = step((4, 3, 11, 3), (1, 20, 12, 0), (6, 8, 13, 2), (5, 11, 14, 1))
PADDED = step((5, 7, 5, 3), (2, 11, 6, 0), (3, 21, 7, 2))
ONE = step((6, 1, 8, 1))


def case(*steps: Step, setup: Setup = SETUP) -> Case:
    return Case(setup=setup, steps=steps)


WHOLE = case(FULL, PADDED, ONE)


@pytest.fixture(scope="module")
def trace(pool: Pool) -> Trace:
    return pool.run(WHOLE)


def test_trees_on_pages(pool: Pool, trace: Trace) -> None:
    example = case(FULL, PADDED, ONE, setup=TREE)
    run = pool.run(example)
    since = RUNNER_FACTS["draft_extend"].branches_since
    if release_order(trace.facts["sglang"]) < release_order(since):
        assert run.ended.how is Termination.UNSUPPORTED
        assert "topk 1 only" in run.ended.what
    else:
        assert run.ended.how is Termination.DONE, run.ended
        assert failures(example, run) == {}


@pytest.fixture(scope="module")
def selects(trace: Trace) -> bool:
    """True if the graph of this release gives the results of each request's last accepted token alone."""
    return "select_index" in trace.path(0, "input")


def shapes(batch: int, selects: bool) -> dict[str, dict[str, tuple[int, ...]]]:
    """The shapes that are recorded of every step. -1: any size from 1 on."""
    width, hidden = SETUP.num_draft_tokens, SETUP.hidden_size
    tokens = dict.fromkeys(("input_ids", "positions", "out_cache_loc"), (width,))
    counts = dict.fromkeys(("seq_lens", "req_pool_indices", "extend_seq_lens", "num_accept_tokens"), ())

    def rows(count: int) -> dict[str, tuple[int, ...]]:
        return {name: (count, *rest) for name, rest in (counts | tokens | {"hidden_states": (width * hidden,)}).items()}

    flat: dict[str, tuple[int, ...]] = dict.fromkeys(tokens, (batch * width,))
    caller = {name: (batch,) for name in counts if name != "num_accept_tokens"} | flat
    caller |= {"batch_size": (), "seq_lens_cpu": (batch,), "seq_lens_sum": (), "hidden_states": (batch * width, hidden)}
    left = {
        "next_token_logits": (batch, width * SETUP.vocab_size),
        "hidden_states": (batch, width * hidden),
        "next_hidden_states": (batch, hidden),
        "topk_index": (batch, 1),
        "topk_p": (batch, 1),
        "kv_slots": (-1,),
    }
    if selects:
        counts |= {"select_index": ()}
        left |= {"next_token_logits": (batch, SETUP.vocab_size)}
        del left["hidden_states"]
    return {
        "input": rows(batch) | {"extend_prefix_lens": (batch,), "num_correct_drafts": (batch,)},
        "before": caller,
        "launch": rows(SETUP.max_bs) | {"seq_lens_cpu": (SETUP.max_bs,), "bs": (), "raw_bs": ()},
        "metadata": {"kv_indptr": (1, -1), "kv_indices": (1, -1), "qo_indptr": (1, -1)},
        "graph": left,
        "after_graph": caller,
        "eager": left | {"kv_same": ()},
        "after_eager": caller,
        "guard": {"intact": ()},
    }


def test_the_record_has_these_shapes(trace: Trace, selects: bool) -> None:
    for number, example in enumerate(WHOLE.steps):
        expected = shapes(len(example.requests), selects)
        assert trace.paths(number) >= expected.keys()
        for path, names in expected.items():
            seen = trace.path(number, path)
            optional = {"num_correct_drafts"} if path == "launch" else set()
            if path in ("graph", "eager"):
                # Of the two, the one that says whether both paths wrote the same bits, or the other, what they wrote.
                optional |= {"kv_rows", "kv_same"}
            assert seen.keys() - optional == names.keys() - optional, (number, path)
            for name, shape in names.items():
                got = seen[name].shape if name in seen else shape
                assert len(got) == len(shape), (number, path, name, got)
                assert all(a == b or (b < 0 < a) for a, b in zip(got, shape, strict=True)), (number, path, name, got)
        written = trace.path(number, "graph")["kv_slots"]
        inputs = trace.path(number, "input")["out_cache_loc"]
        assert set(written.tolist()) - {0} == set(inputs.flatten().tolist())
    width = SETUP.num_draft_tokens
    assert {name: int(value) for name, value in trace.path(-1, "neutral").items() if value} == {
        "seq_lens": 1,
        "seq_lens_cpu": 1,
        "extend_seq_lens": width,
        "num_accept_tokens": width,
        **({"num_correct_drafts": width} if "num_correct_drafts" in trace.path(1, "launch") else {}),
    }


def test_what_padded_rows_hold_of_earlier_tokens_reaches_nothing(pool: Pool, trace: Trace) -> None:
    """Why their input_ids and hidden_states need no value of their own: another batch before, and not a bit differs."""
    other = pool.run(case(OTHER, PADDED))
    for name in ("input_ids", "hidden_states"):
        padded = [run.path(1, "launch")[name][3] for run in (trace, other)]
        assert not np.array_equal(*padded), "the rows are stale, and not of the same batch"
    for name in trace.path(1, "graph").keys() & set(OUTPUTS):
        np.testing.assert_array_equal(trace.path(1, "graph")[name], other.path(1, "graph")[name], err_msg=name)


def test_as_many_drafts_as_were_accepted_decide_what_is_drawn(pool: Pool, selects: bool) -> None:
    """The same tokens with other counts: the same logits, of which another row is used, or another row is all."""
    counts = (0, 1, 2, 3)
    example = case(*(step((1, 9, 1, count)) for count in counts))
    run = pool.run(example)
    for number, count in enumerate(counts):
        left = run.path(number, "graph")
        logits = left["next_token_logits"].reshape(1 if selects else SETUP.num_draft_tokens, SETUP.vocab_size)
        if not selects:
            np.testing.assert_array_equal(left["next_token_logits"], run.path(0, "graph")["next_token_logits"])
        assert left["topk_index"].item() == int(logits[0 if selects else count].argmax())
    assert len({run.path(number, "graph")["topk_p"].item() for number in range(len(counts))}) == len(counts)
    tree = Setup(runner="draft_extend", topk=4, num_steps=3, num_draft_tokens=2, capture_bs=(1,), slots=1)
    # Nobody accepts more drafts than the tree has besides its root.
    assert problems(case(step((1, 1, 1, 1)), setup=tree)) == []
    assert problems(case(step((1, 1, 1, 2)), setup=tree)) == ["step 0 request 0: num_correct_drafts 2 is outside 0..1"]
