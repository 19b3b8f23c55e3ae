"""Real CUDA graphs: known bugs, random cases without a false alarm, and crashes that cost one case and no more.

tests/runners/releases/test_adapters.py is run on them as well: pytest -m cuda --target 0.5.13/cuda.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from fuzz.campaign import campaign
from fuzz.case_source import CaseStream
from fuzz.commands.session_hooks import Place, session_hooks
from fuzz.draw.rounds import rounds
from fuzz.stats import Plan
from oracles.catalogue import OF_SOME_ENGINES, judge_all, overall
from repro.cases import codec
from repro.cases.case import Case, Request, Setup, Step, Target, engine_refuses
from repro.cases.releases import expected, release_order
from repro.ledger.run import LedgerRun
from repro.shrinking.confirm import confirm
from repro.shrinking.replay import AS_EXPECTED, beside_expected, outcome_of, wanted_oracle
from repro.traces.finding import Status
from repro.traces.trace import Termination, Trace
from runners.processes.pool import Pool
from runners.processes.warm import room_for
from tests.builders.project import PROJECT
from tests.builders.ways_to_die import WAYS, data_of

SEEDS = sorted(PROJECT.glob("repro/seeds/*.json"))
# After a crash the next case has to start within this, where kernels have been compiled before.
NEXT_CASE_S = 3.0
# A session that is opened in the background is open by then.
OPENING_S = 15.0
# What is known to fail in random cases: by backend, the last release that has the bug, and the oracles it shows in.
KNOWN = {
    "triton": ("0.5.10.post1", {"slot0_padding", "kv_indices"}),
    "flashinfer": ("0.5.12.post1", {"slot0_padding", "kv_indices", "metadata_shape", "graph_equals_eager", "ended"}),
}
SETUP = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2, 4), slots=6)


def batch(*rows: tuple[int, int, int]) -> Step:
    return Step(requests=tuple(Request(slot=slot, seq_len=seq_len, data=data) for slot, seq_len, data in rows))


FULL = batch((1, 9, 1), (2, 17, 2), (3, 5, 3), (4, 30, 4))
GOOD = Case(setup=SETUP, steps=(FULL, batch((4, 33, 9), (1, 2, 1))))


def failures(case: Case, trace: Trace) -> dict[str, str]:
    return {v.oracle: v.where for v in judge_all(case, trace) if v.status is Status.FAIL}


@pytest.fixture(scope="session")
def cuda_pool(cuda_target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """One worker for all tests of a release: importing it takes seconds."""
    with Pool(cuda_target, log=tmp_path_factory.mktemp("worker") / "log") as opened:
        yield opened


@pytest.mark.cuda("0.5.13")
def test_what_the_last_eager_pass_of_a_case_breaks_is_not_the_next_ones_doing(cuda_pool: Pool) -> None:
    """Trees behind the context, of more requests than any graph has, are built beyond the end of the mask."""
    setup = replace(SETUP, runner="verify", backend="triton", topk=2, num_steps=1, num_draft_tokens=2)
    setup = replace(setup, context_len=53, overhang=6, page_size=1, capture_bs=(2, 4), slots=5)
    first = Case(setup=setup, steps=(batch(*((slot, 52, slot) for slot in range(1, 6))),))
    second = Case(setup=setup, steps=(batch((3, 30, 3)),))
    assert cuda_pool.run(first).ended.how is Termination.DONE
    assert failures(second, cuda_pool.run(second)) == {}


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_a_seed_says_what_its_file_expects(path: Path, cuda_pool: Pool, cuda_target: Target) -> None:
    if cuda_target.is_checkout:
        pytest.skip("seeds state expectations for releases, not for checkouts")
    seed = codec.read(path)
    if engine_refuses(seed.case.setup, "cuda"):
        pytest.skip("this runner runs on a CPU")
    oracle = expected(seed.about, cuda_target.sglang, "cuda")
    assert oracle is not None
    outcome = outcome_of(path, seed.case, cuda_target, cuda_pool.run_fresh, judge_all, overall, 1)
    assert outcome.ended.how.took_place, outcome.ended
    # Of an oracle that has nothing to judge on a GPU nothing is expected.
    says_nothing = wanted_oracle(outcome, seed.about, cuda_target.sglang) is None and oracle in OF_SOME_ENGINES
    assert beside_expected(outcome, seed.about) == ("" if says_nothing else AS_EXPECTED), outcome


@pytest.mark.parametrize(
    ("name", "release"),
    [
        pytest.param("pr23037-stale-padding", "0.5.10.post1", marks=pytest.mark.cuda("0.5.10.post1")),
        pytest.param("pr27338-row-too-narrow", "0.5.12.post1", marks=pytest.mark.cuda("0.5.12.post1")),
    ],
)
def test_a_known_bug_comes_back_in_every_fresh_process(name: str, release: str, tmp_path: Path) -> None:
    (path,) = [path for path in SEEDS if path.stem == name]
    seed = codec.read(path)
    with Pool(Target(release, "cuda"), log=tmp_path / "log") as pool:
        counts = confirm(pool.run_fresh, judge_all, seed.case, str(seed.about["fingerprint"]), 3)
    assert counts == (3, 3)


@pytest.mark.parametrize("backend", KNOWN)
@pytest.mark.parametrize("part", range(4))
def test_random_cases_without_a_false_alarm(backend: str, part: int, cuda_pool: Pool, cuda_target: Target) -> None:
    """In parts, so that several GPUs have something to do."""
    last, oracles = KNOWN[backend]
    judged = 0
    for case in islice(rounds(1000 + part, "draft", backend, 12), 24):
        trace = cuda_pool.run(case)
        if trace.ended.how is Termination.UNSUPPORTED:
            continue  # some releases refuse some setups
        wrongs = failures(case, trace)
        if cuda_target.is_checkout or release_order(cuda_target.sglang) > release_order(last):
            assert wrongs == {}, codec.dumps(codec.Seed(case=case))
        else:
            assert wrongs.keys() <= oracles, codec.dumps(codec.Seed(case=case))
        judged += overall(judge_all(case, trace)) is not Status.UNKNOWN
    assert judged


def dying(way: str) -> Case:
    """A case that goes well for one step and dies in the next."""
    last = batch((2, 11, 6), (5, 7, data_of(way)))
    return Case(setup=SETUP, steps=(FULL, last, FULL))


def check_that_a_crash_costs_one_case(pool: Pool, way: str) -> float:
    """Run a good case, one that dies, and a good one again. Seconds from the death until the last could start."""
    _, how, what = WAYS[way]
    before = pool.run(GOOD)
    assert overall(judge_all(GOOD, before)) is Status.PASS, judge_all(GOOD, before)
    case = dying(way)
    trace = pool.run(case)
    ended = trace.ended
    assert (ended.how, ended.step, ended.path) == (how, 1, "replay"), ended
    if how == "error":
        assert ended.what.startswith(what) and "ended" not in failures(case, trace)
    else:
        assert ended.what == what and failures(case, trace)["ended"] == f"{how} {what} in replay"
    assert trace.get(0, "eager", "tokens") is not None and trace.get(1, "launch", "topk_index") is not None
    start = time.monotonic()
    after = pool.run(GOOD)
    seconds = time.monotonic() - start - sum(after.seconds[stage] for stage in ("graph", "eager", "record"))
    assert overall(judge_all(GOOD, after)) is Status.PASS, judge_all(GOOD, after)
    return seconds


def dying_pool(target: Target, folder: Path) -> Pool:
    standbys = room_for(target.engine)
    return Pool(target, session="tests.builders.dying_session", log=folder / "log", timeout_s=15, standbys=standbys)


@pytest.mark.parametrize("way", WAYS)
def test_a_crash_is_a_failure_with_a_name_and_costs_one_case(way: str, cuda_target: Target, tmp_path: Path) -> None:
    with dying_pool(cuda_target, tmp_path) as pool:
        check_that_a_crash_costs_one_case(pool, way)


@pytest.mark.emulated("0.5.13")
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=pytest.mark.exhaustive if way in ("hang", "out of memory") else ())
        for way in WAYS
        if way != "device assert"
    ],
)
def test_the_same_without_a_gpu(way: str, tmp_path: Path) -> None:
    """So that the tests above are known to work before a GPU is at hand."""
    with dying_pool(Target("0.5.13", "emulated"), tmp_path) as pool:
        if way == "hang":
            pool._timeout_s = 8
        check_that_a_crash_costs_one_case(pool, way)


def test_the_next_case_starts_soon_after_a_crash(
    cuda_target: Target, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """After the first crash of a campaign, and after two at once when sessions stand by again."""
    if room_for(cuda_target.engine) < 3:
        pytest.skip("this machine has no cores to spare for a session that stands by")
    with dying_pool(cuda_target, tmp_path) as pool:
        assert pool.run(GOOD).ended.how is Termination.DONE  # compiles what is to be compiled
    with dying_pool(cuda_target, tmp_path) as pool:
        first = check_that_a_crash_costs_one_case(pool, "device assert")
        until = time.monotonic() + OPENING_S
        while time.monotonic() < until:
            assert pool.run(GOOD).ended.how is Termination.DONE
        again = [check_that_a_crash_costs_one_case(pool, "device assert") for _ in range(2)]
    record_property("seconds_to_next_case", first)
    record_property("seconds_to_next_case_again", str(again))
    assert max(first, *again) < NEXT_CASE_S


@pytest.mark.cuda("0.5.12.post1")
def test_what_a_real_crash_leaves_is_no_ones_trouble(tmp_path: Path) -> None:
    """#27338 as the illegal memory access that it may become; whether it does is up to what lies behind the buffer."""
    (path,) = [path for path in SEEDS if path.stem == "pr27338-illegal-access"]
    case = codec.read(path).case
    good = replace(GOOD, setup=replace(SETUP, backend="flashinfer", dtype="float16", head_dim=64, topk=1))
    with Pool(Target("0.5.12.post1", "cuda"), log=tmp_path / "log") as pool:
        for _ in range(2):
            trace = pool.run(case)
            wrongs = failures(case, trace)
            assert "kv_indices" in wrongs
            if trace.ended.how is not Termination.DONE:
                assert wrongs["ended"].endswith("CUDA error: an illegal memory access in replay"), trace.ended
            verdicts = judge_all(good, pool.run(good))
            assert overall(verdicts) is Status.PASS, verdicts


@pytest.mark.cuda("0.5.23")
@pytest.mark.parametrize("name", ["draft-extend-pages-end-at-the-context", "multi-layer-pages-end-at-the-context"])
def test_an_illegal_access_is_found_confirmed_and_named_by_its_line(name: str, tmp_path: Path) -> None:
    """In a campaign, between cases of its setup that are well, whatever copy or wait it comes out at."""
    (path,) = [path for path in SEEDS if path.stem == name]
    bad = codec.read(path).case
    good = replace(bad, steps=(batch((1, 4, 1)),))
    target, setup = Target("0.5.23", "cuda"), bad.setup
    plan = Plan(target=target, runner=setup.runner, backend=setup.backend, seed=0, cases=3, shrink_runs=4)
    place = Place(target=target, out=tmp_path, log=tmp_path / "log", timeout_s=120, setups_per_session=16)
    with session_hooks(place, LedgerRun(), lambda progress: None) as hooks:
        done = campaign(plan, CaseStream(iter((good, bad, good))), hooks)
    assert (done.judged, done.errors) == (3, {})
    (finding,) = [finding for finding in done.findings if finding.oracle == "ended"]
    assert finding.where.startswith("raised CUDA error: an illegal memory access in ")
    assert (finding.failed, finding.tried, finding.cases) == (5, 5, 1)
    assert "With every launch waited for" in finding.detail and "sglang/srt/" in finding.detail, finding.detail
    assert codec.read(Path(finding.seed)).case.setup.runner == setup.runner
