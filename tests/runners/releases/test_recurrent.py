"""Families with recurrent layers: the states beside the KV cache, and the oracles that judge them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fuzz.mutation.sites import mutants
from oracles.catalogue import judge_all
from repro.cases.case import Case, Step, Target, accepted_max, engine_refuses
from repro.cases.families import GDN, KDA, MAMBA2, fitted
from repro.cases.layout import state_rows, state_slots, track_interval, tracked_slots
from repro.cases.release_list import NEWEST
from repro.cases.tree import descent
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path
from tests.builders.cases import PADDED, PAIR, SINGLE, setup_of, step

TARGET = Target(NEWEST, "emulated")
BACKEND = "sglang/srt/layers/attention/hybrid_linear_attn_backend.py"
DECODE = fitted(setup_of("decode", capture_bs=(4,), family=GDN))
COMMITS = "sglang/srt/speculative/spec_utils.py"
LINEAR = "sglang/srt/layers/attention/linear/gdn_backend.py"
NOTHING = "retrieve_next_token = forward_metadata.retrieve_next_token"
SCATTER = "sglang/kernels/ops/mamba/mamba_state_scatter_triton.py"
VERIFY = fitted(setup_of("verify", capture_bs=(4,), family=GDN))
# Only the statement outside of other branches counts.
ACCEPTED_LAST = " " * 16 + "last_correct_step_indices=last_correct_step_indices"
MORE = f"{ACCEPTED_LAST.rstrip()} + 1"
CASE = Case(setup=DECODE, steps=(step(*SINGLE), replace(step(*PADDED), layout=3), replace(step(*PAIR), layout=5)))

ACCEPTED = Case(
    setup=VERIFY,
    steps=(
        step(*SINGLE),
        Step(
            requests=tuple(replace(r, accepted=number) for number, r in enumerate(step(*PADDED).requests)),
            layout=3,
        ),
    ),
)


# Requests that come to a length at which a state is kept, beside those that do not.
LENGTHS = (4, 7, 12)
KEPT = Case(
    setup=DECODE,
    steps=(
        Step(requests=tuple(replace(r, seq_len=n) for r, n in zip(step(*PADDED).requests, LENGTHS, strict=True))),
        Step(requests=tuple(replace(r, seq_len=8) for r in step(*PAIR).requests), layout=5),
    ),
)


def test_state_slots_belong_to_requests_and_move_with_the_layout() -> None:
    layouts = [state_slots(DECODE, layout) for layout in range(20)]
    for slots in layouts:
        assert slots[0] == 0
        assert len(set(slots.tolist())) == len(slots) == DECODE.slots + 1
        assert slots.max() <= state_rows(DECODE)
    for layout, slots in enumerate(layouts):
        tracked = tracked_slots(DECODE, layout)
        assert tracked[0] == 0 and not {*tracked[1:].tolist()} & {*slots.tolist()}
    assert not all(np.array_equal(layouts[0], slots) for slots in layouts)
    assert not np.array_equal(layouts[0], np.arange(DECODE.slots + 1))


def test_bfloat16_is_refused_over_every_backend() -> None:
    for backend in ("triton", "fa3"):
        setup = replace(DECODE, backend=backend, head_dim=64, dtype="bfloat16")
        assert "no bfloat16" in engine_refuses(setup, "emulated")
        assert not engine_refuses(setup, "cuda")
    assert not engine_refuses(replace(DECODE, family="", backend="fa3", dtype="bfloat16"), "emulated")


def planted(file: str, function: str, old: str, new: str) -> dict[str, object]:
    """The change of a session in which the function's first text of this kind, in one line, is another."""
    source = (sglang_path(TARGET) / file).read_text()
    first_line = next(mutant.first_line for mutant in mutants(file, source) if mutant.function == function)
    lines = source.splitlines()
    line = next(number for number in range(first_line, len(lines)) if old in lines[number - 1])
    column = lines[line - 1].index(old)
    place = {"start": (line, column), "end": (line, column + len(old)), "text": new}
    return {"edit": {"file": file, "function": function, "first_line": first_line, **place}}


def failing(pool: Pool, case: Case) -> set[tuple[str, str]]:
    trace = pool.run(case)
    assert trace.ended.how is Termination.DONE, trace.ended
    return {(v.oracle, v.where) for v in judge_all(case, trace) if v.status is Status.FAIL}


def test_accepted_drafts_matter_to_a_verify_of_recurrent_layers_alone() -> None:
    assert accepted_max(VERIFY) == 3
    assert accepted_max(replace(VERIFY, family="")) == accepted_max(DECODE) == 0
    #      0
    #    1   2      The links of a tree: the first child of each token, and its next sibling.
    #   3 4
    links = np.array([1, 3, -1, -1, -1]), np.array([-1, 2, -1, 4, -1])
    assert descent(*links, drafts=2, data=0) == [0, 1, 3]
    assert descent(*links, drafts=1, data=1) == [0, 2]
    assert descent(*links, drafts=3, data=1) == [0, 2]  # no further draft
    assert descent(*links, drafts=0, data=5) == [0]


@pytest.mark.emulated(NEWEST)
def test_oracles_see_states_that_are_not_the_requests_own(newest: Pool) -> None:
    """A padded row whose state is written; state slots that stay those of the capture."""
    replayed = "MambaAttnBackendBase._replay_metadata"
    assert failing(newest, CASE) == set()
    newest.change(planted(BACKEND, replayed, "bs - int(num_padding),", "bs,"))
    assert ("state_writes", "graph: temporal of padding") in failing(newest, CASE)
    newest.change(planted(BACKEND, replayed, "list[bs - 1],", "list[bs - 1].clone(),"))
    assert ("state_values", "temporal states of graph") in failing(newest, CASE)


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_oracles_see_states_that_decoding_keeps_wrongly(newest: Pool) -> None:
    """A graph that keeps them in the slots of its first launch; one for every request; and none by either path."""
    hook = "MambaAttnBackendBase._track_mamba_state_decode"
    assert failing(newest, KEPT) == set()
    replayed = "MambaAttnBackendBase._replay_metadata"
    newest.change(planted(BACKEND, replayed, "track_buf.copy_(self", "torch.clone(self"))
    assert ("state_values", "tracked temporal states of graph, a copy") in failing(newest, KEPT)
    mask = "forward_batch.mamba_track_mask,"
    newest.change(planted(BACKEND, hook, mask, "torch.ones_like(forward_batch.mamba_track_mask),"))
    assert ("state_writes", "eager: temporal of no request of the batch") in failing(newest, KEPT)
    newest.change(planted(BACKEND, hook, "forward_batch.mamba_track_mask is None", "True"))
    # Graph and eager agree, so that nothing else sees it.
    assert {oracle for oracle, _ in failing(newest, KEPT)} == {"state_values"}


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize(("runner", "family"), [("verify", MAMBA2), ("decode", KDA), ("draft", GDN)])
def test_other_families_keep_states_and_drafts_leave_them_alone(runner: str, family: str, newest: Pool) -> None:
    case = replace(
        ACCEPTED if runner == "verify" else CASE, setup=fitted(setup_of(runner, capture_bs=(4,), family=family))
    )
    trace = newest.run(case)
    verdicts = {verdict.oracle: verdict for verdict in judge_all(case, trace)}
    assert not [verdict for verdict in verdicts.values() if verdict.status is Status.FAIL]
    assert verdicts["state_values"].status is verdicts["state_writes"].status is Status.PASS


@pytest.mark.emulated("0.5.12.post1")
@pytest.mark.parametrize("topk", [1, 2])
def test_chains_and_trees_are_committed_where_each_has_a_worker(topk: int) -> None:
    """A chain by EAGLEWorkerV2, a tree by EAGLEWorker, which verifies trees up to 0.5.12.post1."""
    setup = replace(VERIFY, topk=topk, num_draft_tokens=4 if topk == 1 else VERIFY.num_draft_tokens)
    case = Case(setup=setup, steps=(ACCEPTED.steps[1],))
    with Pool(Target("0.5.12.post1", "emulated"), timeout_s=120) as pool:
        trace = pool.run(case)
    verdicts = {verdict.oracle: verdict for verdict in judge_all(case, trace)}
    assert trace.ended.how is Termination.DONE, trace.ended
    assert verdicts["state_values"].status is verdicts["state_writes"].status is Status.PASS


def test_states_are_kept_at_whole_pages_and_once_a_verify_at_most() -> None:
    for page_size, tokens, interval in ((1, 4, 4), (1, 7, 7), (4, 7, 8), (64, 7, 64), (1, 2, 4)):
        setup = replace(VERIFY, page_size=page_size, num_draft_tokens=tokens, num_steps=2 if tokens < 4 else 3)
        assert track_interval(setup) == interval


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_oracles_see_what_a_commit_does_wrong(newest: Pool) -> None:
    """One token too many; and a state that is kept at any length, is another, or is not kept."""
    lengths, drafts = (3, 3, 16), (1, 2, 3)
    rows = zip(step(*PADDED).requests, lengths, drafts, strict=True)
    requests = tuple(replace(r, seq_len=length, accepted=accepted) for r, length, accepted in rows)
    case = Case(setup=VERIFY, steps=(step(*SINGLE), Step(requests=requests, layout=3)))
    of_other, kept = (("state_values", f"{each}temporal states of graph behind a commit") for each in ("", "tracked "))
    # A change that changes nothing, of a module that asks while it is imported whether it runs on a CPU.
    newest.change(planted(LINEAR, "GDNAttnBackend.forward_extend", NOTHING, NOTHING))
    assert failing(newest, case) == set()
    newest.change(planted(COMMITS, "commit_mamba_states_after_verify", ACCEPTED_LAST, MORE))
    seen = failing(newest, case)
    assert of_other in seen and {oracle for oracle, _ in seen} == {"state_values"}
    newest.change(planted(SCATTER, "_fused_commit_track_indices_kernel", "tl.where(cross, cand, -1)", "cand"))
    assert ("state_writes", "graph: temporal of no request of the batch") in failing(newest, case)
    copies = "scatter_mamba_states_after_mtp_verify"
    newest.change(planted(SCATTER, copies, "mamba_steps_to_track,", "last_correct_step_indices,"))
    assert kept in failing(newest, case)
    newest.change(planted(SCATTER, copies, "if mamba_track_indices is not None:", "if False:"))
    assert kept in failing(newest, case)
