"""sglang's backend over TensorRT-LLM's attention, on an emulated GPU of SM100."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oracles.catalogue import judge_all
from repro.cases.case import Case, Request, Setup, Step, engine_refuses, problems
from repro.traces.finding import Status
from runners.processes.pool import Pool

pytestmark = pytest.mark.emulated
SETUP = Setup(
    runner="verify",
    backend="trtllm_mha",
    topk=1,
    num_steps=3,
    num_draft_tokens=4,
    capture_bs=(2, 3),
    slots=4,
    page_size=16,
    dtype="float16",
    head_dim=64,
)
ONE: dict[str, Any] = {"num_steps": 1, "num_draft_tokens": 2}
SETUPS = {
    "verify, a sliding and a full layer": replace(SETUP, window=7, swa=True),
    "verify, larger pages": replace(SETUP, page_size=64, dtype="bfloat16"),
    "decode, a sliding and a full layer": replace(SETUP, runner="decode", window=7, swa=True, **ONE),
    "draft": replace(SETUP, runner="draft", num_kv_heads=1),
    "draft_extend in a window": replace(SETUP, runner="draft_extend", window=7, **ONE),
}
# Requests grow over ends of pages, leave, and come back shorter.
BATCHES = (((1, 15), (2, 31), (3, 1)), ((3, 17), (1, 16)), ((4, 33),), ((1, 2), (4, 34)))


def case(setup: Setup) -> Case:
    accepted = int(setup.runner == "draft_extend")
    batches = [[Request(slot=slot, seq_len=n, data=slot, accepted=accepted) for slot, n in batch] for batch in BATCHES]
    return Case(setup=setup, steps=tuple(Step(requests=tuple(batch)) for batch in batches))


def judged(made: Case, pool: Pool) -> dict[str, Status]:
    assert not problems(made)
    return {verdict.oracle: verdict.status for verdict in judge_all(made, pool.run(made))}


COMPARED = {"ended", "metadata_shape", "kv_indices", "kv_reads", "row_width", "graph_equals_eager", "reference"}


def test_sound_calls_pass_every_oracle(newest: Pool) -> None:
    verdicts = judged(case(SETUPS["verify, a sliding and a full layer"]), newest)
    assert {name for name, status in verdicts.items() if status is Status.FAIL} == set()
    assert {name for name in COMPARED if verdicts[name] is Status.PASS} == COMPARED


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in SETUPS if "verify, a" not in name])
def test_other_sound_calls_do_too(name: str, newest: Pool) -> None:
    verdicts = judged(case(SETUPS[name]), newest)
    assert {name for name, status in verdicts.items() if status is Status.FAIL} == set()
    assert {name for name in COMPARED if verdicts[name] is Status.PASS} == COMPARED


def test_what_it_takes_is_said() -> None:
    assert not problems(case(SETUP))
    assert "trtllm_mha has pages of (16, 32, 64) tokens, not of 4" in text_of(page_size=4)
    assert "trtllm_mha has topk 1 only" in text_of(topk=2)
    # flashinfer's multi-step backend, from which it derives its own, asserts that there is none.
    assert "drafts with a window are unsupported on trtllm_mha" in text_of(runner="draft", window=7)
    assert "SM100" in engine_refuses(SETUP, "cuda") and not engine_refuses(SETUP, "emulated")


def text_of(**changes: Any) -> str:
    return " ".join(problems(case(replace(SETUP, **changes))))
