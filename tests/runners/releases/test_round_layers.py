"""Rounds in which a layer of its own drafts each draft, on the newest release, clean and with planted bugs; and which
of these layers' KV rows the target has said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles import kv_indices, kv_rows, rounds, slot0_padding, staged
from oracles.catalogue import judge_all, overall
from repro.cases.case import Case, Request, Setup, Step, Target
from repro.cases.families import MIMO
from repro.cases.release_list import NEWEST
from repro.cases.rows.serving import launched, layer_name, runner_of
from repro.cases.setup_problems import setup_problems
from repro.traces.finding import Status
from runners.processes.pool import Pool
from tests.runners.releases.test_round import CHAIN, HAPPENING, SMALL, STEPS, recorded
from tests.runners.releases.test_round_plants import Plant, assert_seen

# A bucket for each number of requests: padded rows keep what they had (docs/findings/multi-layer-stale-padding.md).
LAYERS = replace(CHAIN, family=MIMO, disagreement=30, capture_bs=(1, 2, 3, 4))
OVER_FA3 = replace(LAYERS, backend="fa3", dtype="float16", head_dim=64)
SETUPS = {
    "triton, the overlap schedule": replace(LAYERS, overlap=True),
    "triton, pages and a tree cache": replace(LAYERS, radix=True, page_size=4, disagreement=0),
    "fa3, all layers in one graph": replace(OVER_FA3, one_graph=True, overlap=True),
    "fa3, a graph for each layer": OVER_FA3,
}
OLDEST = Target("0.5.15.post1", "emulated")
RUNNER = "sglang/srt/speculative/multi_layer_eagle_draft_extend_cuda_graph_runner.py"
WORKER = "sglang/srt/speculative/multi_layer_eagle_worker_v2.py"
PLANTS = {
    "a layer's metadata is planned by the layer before it": Plant(
        file=RUNNER,
        function="MultiLayerEagleDraftExtendCudaGraphRunner.replay",
        old="                self.step\n            ].init_forward_metadata_out_graph(fb_view)",
        new="                max(0, self.step - 1)\n            ].init_forward_metadata_out_graph(fb_view)",
        setup=LAYERS,
        seen_by=((kv_indices.ORACLE, kv_indices.REAL),),
    ),
    "hidden states are kept where the bucket is the one before": Plant(
        file=RUNNER,
        function="MultiLayerEagleMultiStepDraftExtendCudaGraphRunner.prepare",
        old="== buffers.hidden_states.shape[1]\n",
        new="== buffers.hidden_states.shape[1]\n                and bs != getattr(self, 'bs', 0)\n",
        setup=LAYERS,
        seen_by=((staged.ORACLE, "real rows of hidden_states"), (rounds.ORACLE, "draft_extend topk_index")),
    ),
    "a later layer prefills into the first one's KV cache": Plant(
        file=WORKER,
        function="MultiLayerEagleDraftWorker._draft_extend_for_prefill",
        old="output: ModelRunnerOutput = self.draft_runner_list[step].forward(",
        new="output: ModelRunnerOutput = self.draft_runner_list[step * (step < 2)].forward(",
        setup=LAYERS,
        seen_by=((kv_rows.ORACLE, "rows of the draft"),),
    ),
    "a layer's draw stands behind the last token, accepted or not": Plant(
        file=WORKER,
        function="MultiLayerEagleDraftWorker._draft_extend_for_decode",
        old="ret_topk_index,\n                            cgr.buffers.select_index[: cgr.raw_bs],\n",
        new="ret_topk_index,\n",
        setup=LAYERS,
        seen_by=((staged.ORACLE, "real rows of input_ids"), (rounds.ORACLE, "draft_extend topk_index")),
    ),
}


def test_each_layer_has_launches_of_its_own() -> None:
    assert setup_problems(LAYERS) == []
    assert runner_of(layer_name("multi_layer", 2)) == "multi_layer"
    setup = launched(replace(LAYERS, backend="fa3", one_graph=True), "multi_layer")
    assert (setup.runner, setup.one_graph, launched(setup, "verify").one_graph) == ("multi_layer", True, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topk": 2}, "mimo_v2_flash models over triton have topk 1 only"),
        ({"adaptive": 1}, "a family other than Llama does not change its number of draft steps"),
        ({"backend": "flashinfer"}, "the round runner over flashinfer has no mimo_v2_flash models"),
        ({"one_graph": True}, "triton builds metadata outside of one graph of all layers"),
        ({"family": "", "backend": "fa3", "one_graph": True}, "the round runner's draft model has one layer"),
    ],
)
def test_a_server_that_is_not_driven_is_refused(changes: dict[str, object], words: str) -> None:
    setup: Setup = replace(LAYERS, **changes)  # type: ignore[arg-type]  # any field
    assert f"setup: {words}" in setup_problems(setup)


@pytest.mark.parametrize(
    ("layer", "row", "fails"),
    [
        (0, 2, True),  # the first layer's tokens are the target's
        (1, 2, False),  # made of a draw that the round behind it refused
        (1, 1, True),
        (2, 1, False),
        (2, 0, True),
        (1, 4, False),  # made of a draw that no round has judged
    ],
)
def test_rows_of_later_layers_are_judged_where_the_target_has_said_their_tokens(
    layer: int, row: int, fails: bool
) -> None:
    rows = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    got = [value + 9.0 * (place == row) for place, value in enumerate(rows)]
    afresh = {"requests": [0], "lengths": [6], "cached": [0], f"draft_k{layer}": [rows]}
    graph = {"requests": [0], "seq_lens": [3], "accepted": [1], "new_seq_lens": [5], f"draft_k{layer}": [got]}
    places = {"afresh": afresh, "round_graph": graph}
    trace = recorded(**{f"{path}.{name}": value for path, each in places.items() for name, value in each.items()})
    verdicts = kv_rows.judge(replace(SMALL, setup=LAYERS), replace(trace, facts={"sglang": NEWEST}))
    assert {verdict.status for verdict in verdicts} == {Status.FAIL if fails else Status.PASS}


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_a_sampled_token_is_moved_up_where_another_is_as_likely(newest: Pool) -> None:
    """sglang samples behind a layer's own graph."""
    setup = replace(
        OVER_FA3,
        num_steps=2,
        num_draft_tokens=3,
        capture_bs=(1, 2, 3),
        slots=3,
        page_size=32,
        rejection=True,
        returns_hidden=True,
        vocab_size=256,
        num_heads=1,
        num_kv_heads=1,
        overlap=True,
        disagreement=0,
        radix=True,
        prefill_max_bs=16,
    )
    requests = tuple(Request(slot=slot, seq_len=32, data=slot, further=25) for slot in (1, 2, 3))
    case = Case(setup=setup, steps=(Step(requests=requests),))
    verdicts = [verdict for verdict in judge_all(case, newest.run(case)) if verdict.oracle == staged.ORACLE]
    assert {verdict.status for verdict in verdicts} == {Status.PASS}, verdicts


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", SETUPS)
def test_texts_are_the_targets_and_each_layers_graph_is_judged(name: str, newest: Pool) -> None:
    setup = SETUPS[name]
    case = Case(setup=setup, steps=HAPPENING if setup.radix else STEPS)
    trace = newest.run(case)
    assert overall(judge_all(case, trace)) is Status.PASS, judge_all(case, trace)
    launches = {seen.name.partition("/")[0] for seen in trace.seen if seen.path == "round_launch"}
    later = set() if setup.one_graph else {layer_name("multi_layer", layer) for layer in (1, 2)}
    assert launches == {"verify", "multi_layer"} | later
    accepted = [seen.array for seen in trace.seen if (seen.path, seen.name) == ("round_graph", "accepted")]
    assert np.concatenate(accepted).max() == setup.num_draft_tokens, "no draft of the last layer was accepted"


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_a_padded_row_that_keeps_a_request_is_seen_once_for_all_layers(newest: Pool) -> None:
    case = Case(setup=replace(LAYERS, capture_bs=(4,)), steps=STEPS)
    failures = [verdict for verdict in judge_all(case, newest.run(case)) if verdict.status is Status.FAIL]
    assert [(each.oracle, each.where, each.runner) for each in failures] == [
        (slot0_padding.ORACLE, "padded rows of req_pool_indices", "multi_layer")
    ]


@pytest.mark.exhaustive
@pytest.mark.emulated(OLDEST.sglang)
def test_the_oldest_release_verifies_without_a_graph_by_no_plan() -> None:
    """See docs/findings/multi-layer-verify-without-metadata.md."""
    case = Case(setup=LAYERS, steps=STEPS)
    with Pool(OLDEST) as pool:
        failures = {(each.oracle, each.where) for each in judge_all(case, pool.run(case)) if each.status is Status.FAIL}
    assert failures == {(rounds.ORACLE, "verify logits")}


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_of_layers_is_seen(name: str, newest: Pool) -> None:
    assert_seen(PLANTS[name], newest)
