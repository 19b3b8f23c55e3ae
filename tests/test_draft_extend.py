"""EAGLEDraftExtendCudaGraphRunner on every installed release."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Request, Setup, Step, Target, problems
from repro.cases.layout import req_to_token
from repro.cases.releases import release_order
from repro.traces.finding import Status
from repro.traces.trace import How, Trace
from runners.processes.pool import Pool
from tests.altered_draft_extend import OTHER_SLOT, PARTS, SHIFT
from tests.same_bits import bits

SETUP = Setup(runner="draft_extend", topk=1, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2, 4), slots=6)
TREE = replace(SETUP, topk=2, num_draft_tokens=6, page_size=4, context_len=48, kv_splits=2)
OUTPUTS = ("next_token_logits", "hidden_states", "topk_index", "topk_p", "next_hidden_states")
ONE_OF_EACH = ("0.5.13", "0.5.15.post1")  # replay(), and execute() on a runner that derives from the target's
# The releases that leave req_pool_indices of padded rows stale (#26292), and whose graph reads the new tokens as a
# prefix of their own as well.
STALE_UNTIL = TWICE_UNTIL = CHAINS_ONLY_UNTIL = release_order("0.5.12.post1")
TWICE = {
    "metadata_shape": "length of a real row",
    "kv_indices": "segment of a real row",
    "graph_equals_eager": "draft tree",
}
STALE = {"slot0_padding": "padded rows of req_pool_indices"}


def step(*rows: tuple[int, int, int, int]) -> Step:
    """A call with these requests: slot, seq_len, data, accepted."""
    return Step(requests=tuple(Request(slot=s, seq_len=n, data=data, accepted=a) for s, n, data, a in rows))


FULL = step((1, 9, 1, 0), (2, 17, 2, 3), (3, 5, 3, 1), (4, 30, 4, 2))
OTHER = step((4, 3, 11, 3), (1, 20, 12, 0), (6, 8, 13, 2), (5, 11, 14, 1))
PADDED = step((5, 7, 5, 3), (2, 11, 6, 0), (3, 21, 7, 2))
ONE = step((6, 1, 8, 1))


def case(*steps: Step, setup: Setup = SETUP) -> Case:
    return Case(setup=setup, steps=steps)


WHOLE = case(FULL, PADDED, ONE)


def failures(one: Case, trace: Trace) -> dict[str, str]:
    assert trace.ended.how is How.DONE, trace.ended
    return {v.oracle: v.where for v in judge_all(one, trace) if v.status is Status.FAIL}


@pytest.fixture(scope="module")
def trace(pool: Pool) -> Trace:
    return pool.run(WHOLE)


@pytest.fixture(scope="module")
def release(trace: Trace) -> tuple[int, ...]:
    return release_order(trace.facts["sglang"])


def test_the_oracles_say_what_is_known_of_the_release(trace: Trace, release: tuple[int, ...]) -> None:
    assert failures(WHOLE, trace) == (STALE if release <= STALE_UNTIL else {}) | (
        TWICE if release <= TWICE_UNTIL else {}
    )
    if release > STALE_UNTIL:
        assert overall(judge_all(WHOLE, trace)) is Status.PASS


def test_trees_on_pages(pool: Pool, release: tuple[int, ...]) -> None:
    one = case(FULL, PADDED, ONE, setup=TREE)
    run = pool.run(one)
    if release <= CHAINS_ONLY_UNTIL:
        assert run.ended.how is How.UNSUPPORTED
        assert "topk 1 only" in run.ended.what
    else:
        assert failures(one, run) == {}


def shapes(batch: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """What is recorded of every step. -1: any size from 1 on."""
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


def test_the_record_is_complete(pool: Pool, trace: Trace, release: tuple[int, ...]) -> None:
    for number, one in enumerate(WHOLE.steps):
        wanted = shapes(len(one.requests))
        if release > STALE_UNTIL:
            assert trace.paths(number) - {"reference"} == wanted.keys()
        for path, names in wanted.items():
            seen = trace.path(number, path)
            optional = {"num_correct_drafts"} if path == "launch" else set()
            if release <= TWICE_UNTIL and path in ("graph", "eager"):
                optional |= {"kv_rows", "kv_same"}
            assert seen.keys() - optional == names.keys() - optional, (number, path)
            for name, shape in names.items():
                got = seen[name].shape if name in seen else shape
                assert len(got) == len(shape), (number, path, name, got)
                assert all(a == b or (b < 0 < a) for a, b in zip(got, shape, strict=True)), (number, path, name, got)
        written = trace.path(number, "graph")["kv_slots"]
        given = trace.path(number, "input")["out_cache_loc"]
        assert set(written.tolist()) - {0} == set(given.flatten().tolist())
    width = SETUP.num_draft_tokens
    assert {name: int(value) for name, value in trace.path(-1, "neutral").items() if value} == {
        "seq_lens": 1,
        "seq_lens_cpu": 1,
        "extend_seq_lens": width,
        "num_accept_tokens": width,
    }
    ranges = {name: value.tolist() for name, value in trace.path(-1, "range").items()}
    assert ranges["input_ids"] == [0, SETUP.vocab_size]
    assert ranges.keys() - {"num_correct_drafts"} == {"input_ids", "hidden_states"}


def test_the_same_case_gives_the_same_bits(pool: Pool, trace: Trace) -> None:
    assert pool.run(case(ONE, OTHER)).ended.how is How.DONE
    assert bits(pool.run(WHOLE)) == bits(trace)


def test_what_padded_rows_hold_of_earlier_tokens_reaches_nothing(pool: Pool, trace: Trace) -> None:
    """Why their input_ids and hidden_states need no value of their own: another batch before, and not a bit differs."""
    other = pool.run(case(OTHER, PADDED))
    for name in ("input_ids", "hidden_states"):
        padded = [run.path(1, "launch")[name][3] for run in (trace, other)]
        assert not np.array_equal(*padded), "the rows are stale, and not of the same batch"
    for name in OUTPUTS:
        np.testing.assert_array_equal(trace.path(1, "graph")[name], other.path(1, "graph")[name], err_msg=name)


def test_as_many_drafts_as_were_accepted_decide_what_is_drawn(pool: Pool, release: tuple[int, ...]) -> None:
    """The same tokens with other counts: the same logits, of which another row is used."""
    counts = (0, 1, 2, 3)
    one = case(*(step((1, 9, 1, count)) for count in counts))
    run = pool.run(one)
    for number, count in enumerate(counts):
        left = run.path(number, "graph")
        logits = left["next_token_logits"].reshape(SETUP.num_draft_tokens, SETUP.vocab_size)
        np.testing.assert_array_equal(left["next_token_logits"], run.path(0, "graph")["next_token_logits"])
        assert left["topk_index"].item() == int(logits[count].argmax())
    assert len({run.path(number, "graph")["topk_p"].item() for number in range(len(counts))}) == len(counts)
    tree = Setup(runner="draft_extend", topk=4, num_steps=3, num_draft_tokens=2, capture_bs=(1,), slots=1)
    # Nobody accepts more drafts than the tree has besides its root.
    assert problems(case(step((1, 1, 1, 1)), setup=tree)) == []
    assert problems(case(step((1, 1, 1, 2)), setup=tree)) == ["step 0 request 0: accepted 2 is outside 0..1"]


# Every input matters ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def altered(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool(target, session="tests.altered_draft_extend", log=tmp_path_factory.mktemp("altered") / "log") as one:
        yield one


def test_every_input_reaches_the_result(request: pytest.FixtureRequest, target: Target) -> None:
    """Rows 0 and 2 are changed in one input at a time; rows 1 and 3 have nothing to do with it."""
    if target.sglang not in ONE_OF_EACH:
        pytest.skip(f"one release of each way to replay is enough: {', '.join(ONE_OF_EACH)}")
    altered: Pool = request.getfixturevalue("altered")

    def batch(part: int) -> Step:
        code = part << SHIFT
        return step((1, 9, 10 + code, 1), (2, 20, 60, 2), (3, 31, 110 + code, 0), (4, 6, 160, 3))

    run = altered.run(case(*(batch(part) for part in range(len(PARTS) + 1))))
    assert run.ended.how is How.DONE, run.ended
    base = {name: run.path(0, "graph")[name] for name in OUTPUTS}
    for number, part in enumerate(PARTS, start=1):
        left = run.path(number, "graph")
        changed = {name for name in OUTPUTS for row in (0, 2) if not np.array_equal(left[name][row], base[name][row])}
        for name in OUTPUTS:
            np.testing.assert_array_equal(left[name][[1, 3]], base[name][[1, 3]], err_msg=f"{part} reached others")
        if part == "out_cache_loc":
            # Where tokens are kept changes where they are written, and nothing else.
            assert set(left["kv_slots"].tolist()) & set(req_to_token(SETUP)[OTHER_SLOT].tolist())
        elif part == "num_accept_tokens":
            assert changed == {"topk_index", "topk_p", "next_hidden_states"}
        else:
            assert changed >= {"next_token_logits", "hidden_states", "topk_p"}, part
