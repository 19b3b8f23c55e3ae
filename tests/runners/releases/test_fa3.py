"""FlashAttention 3: what its page tables mean, what oracles make of them, and sglang's backend over the stand-in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from fuzz.mutation.sites import mutants
from oracles.catalogue import judge_all
from repro.cases.case import Case, Request, Setup, Step, Target, problems
from repro.cases.layout import draft_positions, page_copies
from repro.cases.reads import drafts
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.engines.active import engine
from runners.engines.emulated import Graph
from runners.engines.standins import fa3 as standin
from runners.engines.standins import native_imports
from runners.processes.pool import Pool
from runners.recording.observer import HarnessError
from runners.releases.backends import fa3
from runners.releases.backends.paged_calls import Call, Calls
from runners.releases.backends.paged_metadata import FOREIGN, metadata
from runners.targets.environments import sglang_path

pytestmark = pytest.mark.emulated

SETUP = Setup(
    runner="draft",
    backend="fa3",
    topk=2,
    num_steps=3,
    num_draft_tokens=5,
    capture_bs=(1, 2, 4),
    slots=4,
    page_size=4,
    head_dim=64,
    dtype="float16",
)


def case(**changes: object) -> Case:
    """Three calls: a bucket that is not full, a prefix that ends with its page, and a full bucket."""
    batches = ([(1, 9), (2, 16), (3, 5)], [(2, 17)], [(1, 11), (4, 7), (2, 20), (3, 8)])
    steps = [Step(requests=tuple(Request(slot=s, seq_len=n, data=n) for s, n in batch)) for batch in batches]
    built = Case(setup=replace(SETUP, **changes), steps=tuple(steps))  # type: ignore[arg-type]  # of any field
    assert problems(built) == []
    return built


def call(table: list[list[int]], lengths: list[int], starts: list[int], **more: object) -> Call:
    arguments: dict[str, object] = {"page_size": 2, "causal": False, "window": (-1, -1), "is_part": False, **more}
    numbers = [torch.tensor(part, dtype=torch.int32) for part in (table, lengths, starts)]
    return Call(page_table=numbers[0], lengths=numbers[1], query_starts=numbers[2], **arguments)  # type: ignore[arg-type]  # of any field


def test_graphs_with_as_many_queries_are_told_apart_by_their_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers of a draft are such: each goes over one token more, and the last one is captured first."""
    heard = Calls()
    kernel = heard.listened(standin.flash_attn_with_kvcache, fa3.read)
    for sequences, each in ((2, 3), (3, 2)):
        cache = torch.zeros(4, 2, 1, 64, dtype=torch.float16)
        arguments = {
            "q": torch.zeros(6, 1, 64, dtype=torch.float16),
            "k_cache": cache,
            "v_cache": cache,
            "page_table": torch.zeros(sequences, 2, dtype=torch.int32),
            "cache_seqlens": torch.full((sequences,), 4, dtype=torch.int32),
            "cu_seqlens_q": torch.arange(0, 7, each, dtype=torch.int32),
            "max_seqlen_q": each,
        }
        for graph in (None, Graph()):
            monkeypatch.setattr(engine, "capturing", lambda graph=graph: graph)
            kernel(**arguments)
    assert [len(heard.of(6, count)[0].lengths) for count in (3, 2, 5)] == [3, 2, 2]
    with pytest.raises(IndexError, match="no graph of 7 queries"):
        heard.of(7, 1)


def test_what_an_older_library_lacks_is_left_out_where_nothing_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "capturing", lambda: None)
    kernel = Calls().listened(lambda q, *, causal=False: (q, causal), fa3.read)
    assert kernel(1, causal=True, only_qv=False, sinks=None) == (1, True)
    with pytest.raises(TypeError, match="only_qv"):
        kernel(1, only_qv=True)


def test_where_a_gpu_has_none_of_its_kernels_that_is_trouble_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "device", "cuda")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(fa3, "KERNELS", "json.kernels")  # of a package that is there
    assert not native_imports.stands_in("json.kernels") and not native_imports.stands_in("json.decoder")
    native_imports.stand_in_if_absent("json.kernels", "json.decoder")
    assert not native_imports.stands_in("json.decoder")
    with pytest.raises(HarnessError, match="not installed here"):
        fa3.listen.__wrapped__()


def test_a_table_of_pages_becomes_slots() -> None:
    arrays = metadata([call([[3, 1], [2, 5]], [3, 4], [0, 1, 2])], queries=2, each=1, used=9)
    assert arrays["kv_indptr"].tolist() == [[0, 3, 7]]
    assert arrays["kv_indices"].tolist() == [[6, 7, 2, 4, 5, 10, 11, FOREIGN, FOREIGN]]
    assert arrays["page_rows"].tolist() == [[0, 0, 3, 4], [0, 1, 4, 4]]


def test_a_row_that_is_too_long_goes_on_into_the_next_one_and_then_nowhere() -> None:
    arrays = metadata([call([[3], [2]], [3, 3], [0, 1, 2])], queries=2, each=1, used=0)
    assert arrays["kv_indices"].tolist() == [[6, 7, 4, 4, 5, FOREIGN]]
    assert arrays["page_rows"].tolist() == [[0, 0, 3, 2], [0, 1, 3, 2]]


def test_merged_calls_are_one() -> None:
    """A prefix that a sequence's queries share, and a row for each query."""
    shared = call([[3], [1]], [2, 1], [0, 2, 4], is_part=True)
    branch = call([[8, 0], [8, 9], [6, 0], [7, 0]], [1, 2, 1, 1], [0, 1, 2, 3, 4], page_size=1, is_part=True)
    arrays = metadata([shared, branch], queries=4, each=2, used=0)
    assert arrays["kv_indices"].tolist() == [[6, 7, 8, 9, 2, 6, 7]]
    assert arrays["kv_indptr"].tolist() == [[0, 4, 7]]
    assert arrays["qo_indptr"].tolist() == [[0, 2, 4]]
    assert arrays["mask_indptr"].tolist() == [0, 8, 14]
    assert arrays["custom_mask"].tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 0, 1]


def test_a_slot_that_is_read_twice_is_two_keys() -> None:
    arrays = metadata([call([[3, 3]], [4], [0, 2])], queries=2, each=2, used=0)
    assert arrays["kv_indices"].tolist() == [[6, 7, 6, 7]]


def test_what_a_query_does_not_see_is_not_read() -> None:
    causal = metadata([call([[3, 1]], [4], [0, 2], causal=True)], queries=2, each=2, used=0)
    assert causal["custom_mask"].tolist() == [1, 1, 1, 0, 1, 1, 1, 1]
    window = metadata([call([[3, 1]], [4], [0, 1], window=(1, 0))], queries=1, each=1, used=0)
    assert window["window_kv_indices"].tolist() == [[2, 3]]


def test_each_branch_reads_its_own_copy_of_the_last_page() -> None:
    request = Request(slot=1, seq_len=9, data=0)
    assert drafts(SETUP, request, 1).tolist() == [[*range(8), 8, 9, 10], [*range(8), 12, 13, 14]]
    sources, copies = page_copies(SETUP, 9)
    assert (sources.tolist(), copies.tolist()) == ([[8], [8]], [[8], [12]])
    assert page_copies(SETUP, 8)[0].size == page_copies(replace(SETUP, page_size=1), 9)[0].size == 0
    flat = replace(SETUP, backend="triton")
    assert drafts(flat, request, 0)[1].tolist() == [*range(9), int(draft_positions(flat, 9)[1, 0])]


CASES = {
    "decode": case(runner="decode", topk=1, num_steps=1, num_draft_tokens=2),
    "decode, window": case(runner="decode", topk=1, num_steps=1, num_draft_tokens=2, window=7),
    "draft, chain": case(topk=1, num_draft_tokens=4),
    "draft, tree on pages": case(),
    "draft, tree": case(page_size=1, dtype="bfloat16"),
    "verify, chain": case(runner="verify", topk=1, num_draft_tokens=4),
    "verify, tree": case(runner="verify"),
    "verify, tree in a window": case(runner="verify", page_size=1, window=3),
    "decode, a sliding and a full layer": case(
        runner="decode", topk=1, num_steps=1, num_draft_tokens=2, window=7, swa=True
    ),
    "verify, a sliding and a full layer": case(runner="verify", topk=1, num_draft_tokens=4, window=3, swa=True),
}


@pytest.fixture(scope="module")
def opened() -> Iterator[Pool]:
    with Pool(Target("0.5.13", "emulated")) as pool:
        yield pool


@pytest.mark.emulated("0.5.13")
@pytest.mark.parametrize("name", CASES)
def test_sound_calls_pass_every_oracle(name: str, opened: Pool) -> None:
    made = CASES[name]
    trace = opened.run(made)
    verdicts = {verdict.oracle: verdict for verdict in judge_all(made, trace)}
    assert {name for name, verdict in verdicts.items() if verdict.status is Status.FAIL} == set()
    compared = {"ended", "metadata_shape", "kv_indices", "row_width", "memory", "graph_equals_eager"}
    compared |= {"tree_mask"} if made.setup.runner == "verify" else set()
    assert compared <= {name for name, verdict in verdicts.items() if verdict.status is Status.PASS}


@pytest.mark.emulated("0.5.13")
def test_slots_of_a_sliding_layer_that_are_not_translated_are_seen(opened: Pool) -> None:
    """A verify's table names KV slots of the full layer, where sliding layers have slots of their own."""
    backend = "sglang/srt/layers/attention/flashattention_backend.py"
    every = mutants(backend, (sglang_path(opened.target) / backend).read_text())
    planted = next(
        m
        for m in every
        if (m.function, m.old, m.new)
        == (
            "FlashAttentionBackend.forward_extend",
            "if is_swa_layer and self.use_sliding_window_kv_pool:",
            "if False:",
        )
    )
    chosen = CASES["verify, a sliding and a full layer"]
    opened.change({"edit": planted.change()})
    failing = {(v.oracle, v.where) for v in judge_all(chosen, opened.run(chosen)) if v.status is Status.FAIL}
    opened.change({})
    assert ("kv_indices", "segment of a real row, window") in failing


@pytest.mark.emulated("0.5.13")
def test_a_tree_on_pages_in_a_window_is_refused_in_the_words_of_sglang(opened: Pool) -> None:
    ended = opened.run(case(runner="verify", window=3)).ended
    assert ended.how is Termination.UNSUPPORTED
    assert "page size > 1 sliding window" in ended.what
