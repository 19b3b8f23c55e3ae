"""Conformance of every runner on every release, whichever adapter drives it: a whole record, the verdicts that are
known, the same bits again, inputs that all matter, and oracles that see what is wrong.

A new runner gets all of it by its row in runner_facts; a new release by --target. Whatever is special about one
runner has tests of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Setup, Step, Target, engine_refuses, problems
from repro.cases.layout import req_to_token
from repro.cases.release_list import ADAPTED, NEWEST, has_runner
from repro.cases.releases import release_order
from repro.cases.runner_facts import RUNNER_FACTS, TOY
from repro.traces.finding import Status
from repro.traces.paths import MOVES, PATHS, When, recorded_by, row_of
from repro.traces.trace import Termination, Trace
from runners.processes.pool import Pool
from tests.builders.altered import OTHER_SLOT, PARTS, SHIFT
from tests.builders.bad_variants import VARIANTS, Variant
from tests.builders.cases import FULL, PAIR, SINGLE, case_of, failures, setup_of, statuses, step
from tests.builders.known_failures import may_fail, must_fail
from tests.builders.same_bits import bits

PAIRS = [(runner, backend) for runner, facts in RUNNER_FACTS.items() if runner != TOY for backend in facts.backends]
# A worker with altered inputs imports sglang once more, so one release of each way to replay is enough.
ALTERED_IN = ("0.5.13", NEWEST)
IN_EACH_STEP = {When.STEP, When.LAUNCH, When.LAUNCHES, When.PLAN}
FACTS = {"sglang", "adapter", "adapted", "engine", "torch", "triton", "python", "device"}
OF_KV = {"kv_slots", "kv_rows", "kv_same"}


def each_pair_but(is_later: Callable[[tuple[str, str]], bool]) -> pytest.MarkDecorator:
    """The others with all that repeats."""
    pairs = [pytest.param(pair, marks=pytest.mark.exhaustive if is_later(pair) else ()) for pair in PAIRS]
    return pytest.mark.parametrize("pair", pairs, ids="/".join)


def is_slow(pair: tuple[str, str]) -> bool:
    """True for a pair that is compiled, which takes each of its sessions ten seconds."""
    return RUNNER_FACTS[pair[0]].compiled


def repeats(pair: tuple[str, str]) -> bool:
    """A runner over one more backend."""
    return is_slow(pair) or pair[1] != RUNNER_FACTS[pair[0]].backends[0]


each_pair = each_pair_but(is_slow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """One case, run twice in a session with another case between, and that other one, without any padding."""

    case: Case
    trace: Trace
    again: Trace
    unpadded: Case
    unpadded_trace: Trace


@pytest.fixture(scope="module")
def run(pool: Pool) -> Callable[[tuple[str, str]], Runs]:
    """The runs of a pair, made when they are first asked for. Skips what the release or the engine does not have."""

    @functools.cache
    def runs(pair: tuple[str, str]) -> Runs:
        setup = setup_of(*pair)
        case, unpadded = case_of(setup), case_of(setup, FULL, PAIR, SINGLE)
        return Runs(
            case=case,
            trace=pool.run(case),
            unpadded=unpadded,
            unpadded_trace=pool.run(unpadded),
            again=pool.run(case),
        )

    def asked(pair: tuple[str, str]) -> Runs:
        if why := missing(pair, pool.target):
            pytest.skip(why)
        return runs(pair)

    return asked


def missing(pair: tuple[str, str], target: Target) -> str:
    """Why this target has no such runner; "" if it has."""
    runner, backend = pair
    since = RUNNER_FACTS[runner].backend_since.get(backend, "")
    if refusal := engine_refuses(setup_of(*pair), target.engine):
        return refusal
    if target.is_checkout:
        return ""
    if not has_runner(target.sglang, runner) or (since and release_order(target.sglang) < release_order(since)):
        return f"sglang {target.sglang} has no {runner} runner on {backend}"
    return ""


def test_each_case_is_valid() -> None:
    for pair in PAIRS:
        assert problems(case_of(setup_of(*pair))) == [], pair


@each_pair
def test_what_a_release_does_not_have_is_unsupported_and_says_why(pair: tuple[str, str], pool: Pool) -> None:
    if not missing(pair, pool.target):
        pytest.skip("this release has the runner")
    ended = pool.run(case_of(setup_of(*pair))).ended
    assert ended.how is Termination.UNSUPPORTED
    assert ended.what


@each_pair
def test_the_oracles_say_what_is_known_of_the_release(
    pair: tuple[str, str], run: Callable[[tuple[str, str]], Runs]
) -> None:
    runs = run(pair)
    release, engine = runs.trace.facts["sglang"], runs.trace.facts["engine"]
    known = may_fail(*pair, release, engine)
    failing = failures(runs.case, runs.trace)
    assert failing.keys() <= known, failing
    assert failing.keys() >= must_fail(*pair, release), failing
    if "ended" in known and runs.trace.ended.how is not Termination.DONE:
        return
    assert runs.trace.ended.how is Termination.DONE, runs.trace.ended
    # The record has what each oracle looks for; without metadata of attention, kv_indices has guard bands alone, and
    # not every backend keeps what planned compares, nor has Triton kernels, whose memory is checked.
    unknown = {oracle for oracle, status in statuses(runs.case, runs.trace).items() if status is Status.UNKNOWN}
    assert unknown <= {"planned", "memory", *(() if RUNNER_FACTS[pair[0]].reads else ("kv_indices",))}, judge_all(
        runs.case, runs.trace
    )
    if not failing:
        assert overall(judge_all(runs.case, runs.trace)) is Status.PASS


@each_pair
def test_without_padding_nothing_is_stale(pair: tuple[str, str], run: Callable[[tuple[str, str]], Runs]) -> None:
    runs = run(pair)
    if not RUNNER_FACTS[pair[0]].graph or runs.unpadded.setup.bucket(4) != 4:
        pytest.skip("this runner pads every batch")
    verdicts = statuses(runs.unpadded, runs.unpadded_trace)
    assert verdicts["slot0_padding"] is Status.UNKNOWN
    others = may_fail(*pair, runs.trace.facts["sglang"], runs.trace.facts["engine"]) - {"slot0_padding"}
    assert failures(runs.unpadded, runs.unpadded_trace).keys() <= others


@each_pair
def test_the_record_is_complete(pair: tuple[str, str], run: Callable[[tuple[str, str]], Runs]) -> None:
    trace = run(pair).trace
    assert len(trace.seen) == len({(s.step, s.path, s.name) for s in trace.seen}), "a name is used twice"
    assert trace.facts.keys() >= FACTS and all(trace.facts.values())
    assert trace.facts["adapted"] == "yes" or trace.facts["sglang"] not in ADAPTED
    if not RUNNER_FACTS[pair[0]].graph:
        return
    assert trace.seconds.keys() >= {"build", "graph", "eager", "record"}
    assert all(seconds > 0 for seconds in trace.seconds.values())
    # Every input buffer is known, be it with the reason why nothing is compared (repro/cases/exemptions.py).
    assert "unwatched" not in trace.facts
    setup = run(pair).case.setup
    rows = recorded_by(setup, trace.facts["engine"])
    always = {"input", *(row.name for row in rows if row.when in IN_EACH_STEP and not row.where)}
    table = trace.get(-1, "input", "req_to_token")
    assert table is not None
    np.testing.assert_array_equal(table, req_to_token(setup))
    for number, each in enumerate(run(pair).case.steps):
        assert trace.paths(number) >= always | ({"metadata"} if RUNNER_FACTS[pair[0]].reads else set())
        is_launched(trace, number, each, setup.bucket(len(each.requests)), setup.max_bs)
        leaves_outputs(trace, number, len(each.requests))


@each_pair
def test_what_is_recorded_is_what_the_rows_say(pair: tuple[str, str], run: Callable[[tuple[str, str]], Runs]) -> None:
    """Nothing but what a row says of this setup and engine, and all that it says without a condition."""
    runs = run(pair)
    if runs.trace.ended.how is not Termination.DONE:
        pytest.skip("a known issue ends this run")  # a record that was cut off lacks rows
    rows = {row.name: row for row in recorded_by(runs.case.setup, runs.trace.facts["engine"])}
    recorded = {row_of(seen.path) for seen in runs.trace.seen}
    assert {row and row.name for row in recorded} <= rows.keys()
    assert {row.name for row in rows.values() if not row.where} <= {row.name for row in recorded if row}


# Setups that bring about what rows say under a condition, beside those of PAIRS[0] and of runners without a graph.
WITNESSES = (
    setup_of("decode", "triton", dp_attention=True),
    setup_of("draft", "triton", dp_attention=True),
    setup_of("draft", "triton", padded=False),
    setup_of("draft", "triton", topk=1, num_draft_tokens=4, adaptive=2),
    setup_of("draft_extend", "triton"),
    setup_of("verify_eager", "triton"),
    setup_of("kv_move", "triton", page_size=4),
    setup_of("round", "triton"),
)
# What a published release does not bring about: another token or value than eager's by rounding, which depends on the
# host's instructions, lists that its batches do not have yet, and bugs and buffers that tests plant. Of moves each
# release has some.
NOT_ALWAYS = {"reference_graph", "ranks_captured", "eager_again", "eager_nudged_up", "eager_nudged_down"}
NOT_ALWAYS |= {"field", "staged", "round_nudged_up", "round_nudged_down"}


@pytest.mark.exhaustive
def test_each_row_is_recorded_by_some_runner(pool: Pool) -> None:
    engine, recorded, driven = pool.target.engine, set[str](), list[Setup]()
    for setup in WITNESSES:
        trace = pool.run(case_of(setup))
        assert trace.ended.how in (Termination.DONE, Termination.UNSUPPORTED), trace.ended
        driven += [setup] if trace.ended.how is Termination.DONE else []
        recorded |= {seen.path for seen in trace.seen}
    expected = {row.name for row in PATHS if engine in row.engines and any(map(row.sessions.hold, driven))}
    assert expected - recorded <= {*NOT_ALWAYS, *MOVES} - {"branches"}
    assert recorded & {*MOVES}


def is_launched(trace: Trace, number: int, step: Step, bucket: int, max_bs: int) -> None:
    """The launch is that of the batch, and each of its buffers has a row a request and something to be held to."""
    count = len(step.requests)
    launch, inputs = trace.path(number, "launch"), trace.path(number, "input")
    assert (int(launch["raw_bs"]), int(launch["bs"])) == (count, bucket)
    buffers = {name: array for name, array in launch.items() if name not in ("raw_bs", "bs")}
    assert buffers.keys() >= {"seq_lens", "req_pool_indices"}
    assert {len(array) for array in buffers.values()} == {max_bs}
    assert buffers.keys() <= trace.path(-1, "neutral").keys()
    assert inputs["req_pool_indices"].reshape(count, -1)[:, 0].tolist() == [request.slot for request in step.requests]
    # Where requests are extended, their lengths count the new tokens as well.
    more = inputs["seq_lens"].reshape(count, -1)[:, 0] - [request.seq_len for request in step.requests]
    assert set(more.tolist()) == {0 if "extend_seq_lens" not in inputs else int(inputs["extend_seq_lens"][0])}
    for name in ("seq_lens", "req_pool_indices"):
        np.testing.assert_array_equal(launch[name][:count], inputs[name], err_msg=name)
    assert trace.path(number, "before").keys() == trace.path(number, "after_graph").keys()
    assert int(trace.path(number, "guard")["intact"]) > 1000


def leaves_outputs(trace: Trace, number: int, count: int) -> None:
    """Graph and eager leave the same outputs, a row a request, and write where they were told to."""
    graph, eager = trace.path(number, "graph"), trace.path(number, "eager")
    assert graph.keys() - OF_KV == eager.keys() - OF_KV != set()
    assert {len(array) for name, array in graph.items() if name not in OF_KV} == {count}
    assert all(np.isfinite(array).all() for name, array in eager.items() if name not in OF_KV)
    inputs = trace.path(number, "input")
    places = [inputs[name] for name in ("out_cache_loc", "rewritten") if name in inputs]
    allowed = {0, *(int(slot) for slots in places for slot in slots.flatten())}
    assert set(graph["kv_slots"].tolist()) | set(eager["kv_slots"].tolist()) <= allowed
    assert bool(places) == bool(set(eager["kv_slots"].tolist()) - {0})


@each_pair
def test_the_same_case_gives_the_same_bits(pair: tuple[str, str], run: Callable[[tuple[str, str]], Runs]) -> None:
    runs = run(pair)
    # Of verifies without a graph, padding alone makes some raise.
    assert runs.unpadded_trace.ended.how in (runs.trace.ended.how, Termination.DONE)
    assert bits(runs.again) == bits(runs.trace)
    assert bits(runs.trace), "nothing was recorded"


@each_pair
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_bad_variant_is_seen(variant: Variant, pair: tuple[str, str], run: Callable[[tuple[str, str]], Runs]) -> None:
    """The recorded run with one thing changed: the oracle that is there for it, which passed it, no longer does."""
    runs = run(pair)
    if statuses(runs.case, runs.trace).get(variant.oracle) is not Status.PASS:
        pytest.skip(f"{variant.oracle} is not asked here, or fails on this release")
    bad = variant.of(runs.case, runs.trace)
    if bad is None:
        pytest.skip(f"nothing here that {variant} could change")
    assert statuses(runs.case, bad)[variant.oracle] in variant.statuses


# Inputs that reach rows behind their own as well: kv_indices are laid out by seq_lens and cut by positions.
REACH_OTHERS = {
    "draft": {"positions", "seq_lens"},
    "draft_v1": {"positions", "seq_lens"},
    "verify": {"seq_lens"},
}
# Inputs that reach no output: positions are made anew from seq_lens; of the others one generation reads these two,
# the other that one. A chain has one candidate a step, so its probability orders nothing.
UNUSED = {
    ("frozen_kv_mtp", "triton"): ({"positions", "topk_index", "topk_p"}, {"positions", "bonus_tokens"}),
    **dict.fromkeys([("draft", "trtllm_mha"), ("verify", "trtllm_mha")], ({"topk_p"},)),
}
# Inputs that cannot be changed alone: what is planned of them must agree with the rest.
NOT_ALONE = {("draft_extend", "flashinfer"): {"seq_lens"}}
DATAS = (10, 20)
# Of drafts only trees are compared, and few change where an input moves a score by little.
MORE_DATAS = {
    **dict.fromkeys([("draft", "fa3"), ("draft", "triton")], (10, 20, 30, 40, 50, 60)),
    ("draft", "trtllm_mha"): tuple(range(10, 130, 10)),
}


@pytest.fixture(scope="module")
def altered(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    if target.sglang not in ALTERED_IN and not target.is_checkout:
        pytest.skip(f"inputs are altered in {' and '.join(ALTERED_IN)} only")
    session, log = "tests.builders.altered_session", tmp_path_factory.mktemp("altered") / "log"
    # Outputs are compared with each other, and none with the reference's.
    with Pool(target, session=session, log=log, variables={"EAGLEEYE_REFERENCE": "0"}) as altered_pool:
        yield altered_pool


@each_pair_but(repeats)
def test_every_input_reaches_the_result(pair: tuple[str, str], altered: Pool) -> None:
    """Rows 0 and 2 are changed in one input at a time; rows 1 and 3 have nothing to do with it."""
    runner = pair[0]
    if runner not in PARTS:
        pytest.skip("this runner's inputs are not altered one by one")
    if why := missing(pair, altered.target):
        pytest.skip(why)
    parts = PARTS[runner]
    alone = [number for number, name in enumerate(parts, start=1) if name not in NOT_ALONE.get(pair, set())]
    numbers = [(data, part) for data in MORE_DATAS.get(pair, DATAS) for part in (0, *alone)]
    setup = setup_of(*pair)
    accepts = RUNNER_FACTS[runner].accepts

    def batch(data: int, part: int) -> Step:
        code = part << SHIFT
        rows = (1, 9, data + code, 1), (2, 20, data + 50, 2), (3, 31, data + 100 + code, 0), (4, 6, data + 150, 3)
        return step(*(row if accepts else row[:3] for row in rows))

    trace = altered.run(Case(setup=setup, steps=tuple(batch(data, part) for data, part in numbers)))
    assert trace.ended.how is Termination.DONE, trace.ended
    elsewhere = set(req_to_token(setup)[OTHER_SLOT].tolist())
    reached = {parts[part - 1]: 0 for part in alone}
    for number, (data, part) in enumerate(numbers):
        name = parts[part - 1] if part else ""
        now, before = (trace.path(n, "graph") for n in (number, numbers.index((data, 0))))
        if name not in REACH_OTHERS.get(runner, set()):
            assert not changed(now, before, (1, 3)), f"{name} reached others"
        if name:
            moved = name == "out_cache_loc" and bool(set(now["kv_slots"].tolist()) & elsewhere)
            reached[name] += moved or changed(now, before, (0, 2))
    assert {name for name, count in reached.items() if not count} in UNUSED.get(pair, (set(),))


def changed(now: dict[str, np.ndarray], before: dict[str, np.ndarray], rows: tuple[int, ...]) -> bool:
    """True if an output of one of these requests differs by more than another order of summation would."""
    names = now.keys() - OF_KV
    return any(
        not np.allclose(now[name][row], before[name][row], atol=2e-3 if now[name].dtype == np.float16 else 1e-5)
        for name in names
        for row in rows
    )
