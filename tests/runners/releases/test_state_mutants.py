"""Mutants that history, kv_reads, attributes, bucket and verified alone see: sglang changed so that graph and eager
still agree and every watched buffer holds what it should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.mutation.sites import mutants
from oracles.catalogue import judge_all
from repro.cases.case import Case, Target
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from tests.builders.cases import FULL, PADDED, PAIR, case_of, setup_of

RELEASE = "0.5.13"
TARGET = Target(RELEASE, "emulated")
pytestmark = pytest.mark.emulated(RELEASE)
ATTENTION = "sglang/srt/layers/attention/"
# The padded rows 2 and 3 of a bucket of four.
HALF_FULL = case_of(setup_of("verify", capture_bs=(4,)), PAIR)
# In this order: behind a full batch 0.5.13 leaves positions of padded rows as they were (#24401).
DECODE = case_of(setup_of("decode"), PADDED, FULL)


def edit(file: str, function: str, old: str, new: str) -> dict[str, object]:
    every = mutants(file, (sglang_path(TARGET) / file).read_text())
    return {"edit": next(m for m in every if (m.function, m.old, m.new) == (function, old, new)).change()}


def failing(pool: Pool, case: Case) -> set[tuple[str, str]]:
    trace = pool.run(case)
    assert trace.ended.how is Termination.DONE, trace.ended
    return {(v.oracle, v.where) for v in judge_all(case, trace) if v.status is Status.FAIL}


@pytest.fixture(scope="module")
def worker() -> Iterator[Pool]:
    with Pool(TARGET, timeout_s=120) as pool:
        yield pool


@pytest.fixture
def pool(worker: Pool) -> Pool:
    worker.change({})
    return worker


def test_a_mutant_that_kv_reads_sees(pool: Pool) -> None:
    """Keys without their last element, in the graph and in eager alike: the reference sees by values that both are
    wrong."""
    kernel, bound = ATTENTION + "triton_ops/decode_attention.py", "mask_d = offs_d < Lk"
    narrow = edit(kernel, "_fwd_kernel_stage1", bound, f"{bound} - 1")
    assert failing(pool, HALF_FULL) == failing(pool, DECODE) == set()
    pool.change(narrow)
    seen = failing(pool, DECODE)
    assert ("kv_reads", "a slot is read in part") in seen
    assert {oracle for oracle, _ in seen} == {"kv_reads", "reference"}


def test_mutants_that_bucket_and_verified_see(pool: Pool) -> None:
    """A runner that takes no full batch any more, though it was captured for one; a verify without a graph whose result
    keeps one row of each request, in a batch that is padded."""
    refusing = edit(
        "sglang/srt/model_executor/cuda_graph_runner.py",
        "CudaGraphRunner.can_run",
        "is_bs_supported = graph_key in self.graphs if self.disable_padding else cuda_graph_bs <= self.max_bs",
        "is_bs_supported = graph_key in self.graphs if self.disable_padding else cuda_graph_bs <= self.max_bs - 1",
    )
    short = edit(
        "sglang/srt/model_executor/forward_batch_info.py",
        "ForwardBatch.post_forward_mlp_sync_batch",
        "num_tokens = bs * self.spec_info.draft_token_num",
        "num_tokens = bs",
    )
    eager = case_of(setup_of("verify_eager", backend="fa3", head_dim=64, dtype="float16", capture_bs=(4,)), PAIR)
    assert failing(pool, eager) == set()
    pool.change(refusing)
    assert failing(pool, DECODE) == {("bucket", "a batch refused that a graph holds")}
    pool.change(short)
    assert failing(pool, eager) == {("verified", "rows of an output")}


def test_mutants_that_attributes_sees(pool: Pool) -> None:
    """A backend that keeps the KV pool that it was lent for its metadata, which every later call lends it again; and a
    worker without a number that it reads behind what this release comes to."""
    keeping = edit(
        "sglang/srt/speculative/frozen_kv_mtp_utils.py",
        "frozen_kv_target_view",
        "draft_attn_backend.token_to_kv_pool = saved_backend_pool",
        "pass",
    )
    lacking = edit(
        "sglang/srt/speculative/multi_layer_eagle_worker_v2.py",
        "MultiLayerEagleWorkerV2.__init__",
        "self.speculative_num_draft_tokens = server_args.speculative_num_draft_tokens",
        "pass",
    )
    lent = case_of(setup_of("frozen_kv_mtp"), PAIR)
    assert failing(pool, lent) == set()
    pool.change(keeping)
    assert failing(pool, lent) == {("attributes", "token_to_kv_pool")}
    pool.change(lacking)
    layered = case_of(setup_of("verify_eager_multi_layer"), PAIR)
    absent = [v.where for v in judge_all(layered, pool.run(layered)) if v.oracle == "attributes"]
    assert absent == ["never made: speculative_num_draft_tokens"]


def test_what_a_session_forgets(tmp_path: Path) -> None:
    session = "tests.builders.forgetful_session"
    with Pool(TARGET, timeout_s=120, fresh=True, session=session, log=tmp_path / "log") as pool:
        assert failing(pool, DECODE) == {("attributes", "enable_torch_compile")}
        assert failing(pool, HALF_FULL) == {("history", "attn_backend.mask_indptr")}
