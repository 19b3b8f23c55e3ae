"""The stand-in for FlashAttention 3: attention by its definition, memory as kernels see it, and the real kernels'
answers."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from runners.engines import launch_memory
from runners.engines.emulated import Graph, graph
from runners.engines.standins import fa3

pytestmark = pytest.mark.emulated
# A few units in the last place of a result and of the weights; logarithms are float32 on either side.
VALUES = {torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
LOGS = 2.0**-9


@dataclass(frozen=True, kw_only=True)
class Problem:
    """counts: queries of each sequence; lengths: its keys. latent: the width of latent vectors, 0 without any."""

    page_size: int = 4
    counts: tuple[int, ...] = (1, 3, 2, 1)
    lengths: tuple[int, ...] = (5, 37, 2, 64)
    causal: bool = True
    window: tuple[int, int] = (-1, -1)
    soft_cap: float = 0.0
    heads: tuple[int, int] = (4, 2)
    dtype: torch.dtype = torch.float16
    spare_columns: int = 1
    latent: int = 0

    def arguments(self) -> dict[str, Any]:
        made = np.random.default_rng(7)
        heads, groups = self.heads
        columns = -(-max(self.lengths) // self.page_size) + self.spare_columns
        pages = len(self.lengths) * columns + 1
        table = made.permutation(pages)[: len(self.lengths) * columns].reshape(len(self.lengths), columns)

        def values(*shape: int) -> torch.Tensor:
            return torch.from_numpy(made.standard_normal(shape)).to(self.dtype)

        caches = {
            "k_cache": values(pages, self.page_size, groups, 64),
            "v_cache": values(pages, self.page_size, groups, 64),
        }
        if self.latent:
            rows = values(pages, self.page_size, 1, self.latent + 64)
            caches = {"k_cache": rows[..., self.latent :], "v_cache": rows[..., : self.latent], "softmax_scale": 1 / 8}
            caches["qv"] = values(sum(self.counts), heads, self.latent) / 4
        return {
            **caches,
            "q": values(sum(self.counts), heads, 64),
            "page_table": torch.from_numpy(table).to(torch.int32),
            "cache_seqlens": torch.tensor(self.lengths, dtype=torch.int32),
            "cu_seqlens_q": torch.tensor([0, *np.cumsum(self.counts)], dtype=torch.int32),
            "max_seqlen_q": max(self.counts),
            "causal": self.causal,
            "window_size": self.window,
            "softcap": self.soft_cap,
            "return_softmax_lse": True,
        }


def by_definition(problem: Problem, arguments: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64, one query and head at a time."""
    query, table = arguments["q"].double(), arguments["page_table"].tolist()
    keys, values = (arguments[name].double().flatten(0, 1) for name in ("k_cache", "v_cache"))
    heads, groups = problem.heads
    if problem.latent:
        query, keys = torch.cat((arguments["qv"].double(), query), -1), torch.cat((values, keys), -1)
    out = query.new_zeros((len(query), heads, values.shape[-1]))
    logs = torch.full((heads, len(query)), -math.inf, dtype=torch.float64)
    row = 0
    for sequence, (count, length) in enumerate(zip(problem.counts, problem.lengths, strict=True)):
        size = problem.page_size
        slots = [table[sequence][place // size] * size + place % size for place in range(length)]
        for number in range(count):
            position = length - count + number
            left, right = problem.window
            seen = [
                slot
                for place, slot in enumerate(slots)
                if (not problem.causal or place <= position)
                and (left < 0 or place >= position - left)
                and (right < 0 or place <= position + right)
            ]
            for head in range(heads if seen else 0):
                scores = keys[seen, head * groups // heads] @ query[row, head] / 8
                if problem.soft_cap:
                    scores = problem.soft_cap * torch.tanh(scores / problem.soft_cap)
                out[row, head] = scores.softmax(0) @ values[seen, head * groups // heads]
                logs[head, row] = scores.logsumexp(0)
            row += 1
    return out, logs


PLAIN = Problem()
PROBLEMS = [
    PLAIN,
    *(replace(PLAIN, page_size=size, causal=causal) for size in (1, 4, 16) for causal in (True, False)),
    replace(PLAIN, window=(7, 0)),
    replace(PLAIN, window=(7, 0), causal=False),
    replace(PLAIN, window=(3, 2), causal=False),
    replace(PLAIN, soft_cap=2.0),
    replace(PLAIN, heads=(6, 1)),
    replace(PLAIN, dtype=torch.bfloat16),
    replace(PLAIN, lengths=(0, 37, 1, 64)),
    replace(PLAIN, counts=(1, 0, 5, 1)),
    *(
        replace(PLAIN, heads=(4, 1), latent=512, page_size=size, causal=causal)
        for size, causal in ((1, True), (4, False))
    ),
]


def compare(problem: Problem, results: tuple[torch.Tensor, torch.Tensor], device: str = "cpu") -> None:
    arguments = problem.arguments()
    out, logs = by_definition(problem, arguments)
    assert results[0].dtype == problem.dtype and results[1].dtype == torch.float32
    assert (results[0].double().cpu() - out).abs().max() < VALUES[problem.dtype]
    assert torch.equal(torch.isneginf(results[1]).cpu(), torch.isneginf(logs))
    there = ~torch.isneginf(logs)
    assert (results[1].double().cpu() - logs)[there].abs().max() < LOGS


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_stand_in_gives_what_attention_is(problem: Problem) -> None:
    compare(problem, fa3.flash_attn_with_kvcache(**problem.arguments()))


def test_the_comparison_sees_what_is_wrong() -> None:
    for change in ({"softmax_scale": 0.13}, {"causal": False}, {"window_size": (5, 0)}, {"softcap": 1.0}):
        with pytest.raises(AssertionError):
            compare(PLAIN, fa3.flash_attn_with_kvcache(**PLAIN.arguments() | change))


def test_two_calls_merge_into_one() -> None:
    """The prefix without a mask and the rest with one, as for a tree; one part of it empty."""
    arguments = replace(PLAIN, page_size=1, counts=(1, 1, 1), lengths=(1, 9, 4), causal=False).arguments()
    whole, _ = fa3.flash_attn_with_kvcache(**arguments)
    first = torch.tensor([0, 5, 4], dtype=torch.int32)
    parts = []
    for lengths, begins in ((first, [0, 0, 0]), (arguments["cache_seqlens"] - first, first.tolist())):
        rows = zip(arguments["page_table"], begins, strict=True)
        table = torch.stack([row.roll(-begin) for row, begin in rows])
        out, logs = fa3.flash_attn_with_kvcache(**arguments | {"cache_seqlens": lengths, "page_table": table})
        parts += [out, logs.T.contiguous()]
    merged, logs = fa3.merge_state_v2(*parts)
    assert (merged.float() - whole.float()).abs().max() < VALUES[torch.float16]
    assert torch.isfinite(logs).all()


def test_two_empty_calls_merge_into_nan() -> None:
    empty = torch.full((1, 2), -math.inf)
    values, logs = fa3.merge_state_v2(torch.zeros(1, 2, 64), empty, torch.zeros(1, 2, 64), empty)
    assert values.isnan().all() and logs.isnan().all()


@pytest.fixture
def seen() -> Iterator[Callable[[], set[str]]]:
    """The findings of memory since the test began."""
    launch_memory.taken()
    yield lambda: set(launch_memory.taken()) - {launch_memory.LAUNCHES}
    launch_memory.taken()


def test_a_long_row_goes_on_into_the_next(seen: Callable[[], set[str]]) -> None:
    arguments = replace(PLAIN, counts=(1, 1), lengths=(8, 8), page_size=4, spare_columns=0).arguments()
    arguments["cache_seqlens"][0] = 16
    both = arguments["page_table"].reshape(1, -1)
    wide = {"page_table": both, "q": arguments["q"][:1], "cu_seqlens_q": torch.tensor([0, 1], dtype=torch.int32)}
    expected, _ = fa3.flash_attn_with_kvcache(**arguments | wide | {"cache_seqlens": arguments["cache_seqlens"][:1]})
    assert torch.equal(fa3.flash_attn_with_kvcache(**arguments)[0][0], expected[0])
    assert seen() == set()


def test_what_is_read_outside_is_nan(seen: Callable[[], set[str]]) -> None:
    arguments = replace(PLAIN, counts=(1, 1), lengths=(8, 8), page_size=4, spare_columns=0).arguments()
    arguments["cache_seqlens"][1] = 12
    out, _ = fa3.flash_attn_with_kvcache(**arguments)
    assert out[0].isfinite().all() and out[1].isnan().all()
    assert seen() == {"load outside page_table in fa3_paged_attention"}
    arguments["cache_seqlens"][1], arguments["page_table"][1, 0] = 8, 10**6
    assert fa3.flash_attn_with_kvcache(**arguments)[0][1].isnan().all()
    assert seen() == {"load outside k_cache in fa3_paged_attention"}


def test_a_launch_for_fewer_queries_than_a_sequence_has_is_a_finding(seen: Callable[[], set[str]]) -> None:
    """A replay has the number that was there at capture."""
    assert max(PLAIN.counts) == 3
    for most, names in (
        (-1, {"max_seqlen_q below a sequence's queries in fa3_paged_attention"}),
        (2, {"max_seqlen_q below a sequence's queries in fa3_paged_attention"}),
        (3, set()),
        (4, set()),
    ):
        arguments, recording = PLAIN.arguments() | {"max_seqlen_q": most}, Graph()
        with graph(recording):
            fa3.flash_attn_with_kvcache(**arguments)
        launch_memory.taken()
        recording.replay()
        assert seen() == names


def test_queries_of_no_sequence_are_nan() -> None:
    arguments = PLAIN.arguments()
    arguments["cu_seqlens_q"][-1] -= 1
    assert fa3.flash_attn_with_kvcache(**arguments)[0][-1].isnan().all()


def test_a_schedule_of_other_lengths_is_a_finding(seen: Callable[[], set[str]]) -> None:
    arguments = replace(PLAIN, counts=(1, 1, 1, 1)).arguments()
    shape: dict[str, Any] = {
        "batch_size": 4,
        "num_heads": 4,
        "num_heads_k": 2,
        "headdim": 64,
        "page_size": 4,
        "num_splits": 0,
    }
    made = fa3.get_scheduler_metadata(cache_seqlens=arguments["cache_seqlens"], **shape)
    assert len(made) <= 1 + 4 * 4  # what sglang has room for
    with pytest.raises(RuntimeError, match="int32"):
        fa3.flash_attn_with_kvcache(**arguments, scheduler_metadata=made.long())
    for name, value in {"num_heads": 1, "num_heads_k": 1, "headdim": 8, "page_size": 1}.items():
        other = fa3.get_scheduler_metadata(cache_seqlens=arguments["cache_seqlens"], **shape | {name: value})
        fa3.flash_attn_with_kvcache(**arguments, scheduler_metadata=other)
        assert seen() == {"schedule of other heads or pages in fa3_paged_attention"}
    fa3.flash_attn_with_kvcache(**arguments | {"window_size": (7, 0)}, scheduler_metadata=made)
    assert seen() == {"schedule of another window in fa3_paged_attention"}
    fa3.flash_attn_with_kvcache(**arguments, scheduler_metadata=made)
    assert seen() == set()
    arguments["cache_seqlens"][2] += 1
    fa3.flash_attn_with_kvcache(**arguments, scheduler_metadata=made)
    assert seen() == {"schedule of other lengths in fa3_paged_attention"}


def test_a_graph_reads_tables_and_lengths_when_it_is_replayed() -> None:
    arguments = PLAIN.arguments()
    recording = Graph()
    with graph(recording):
        out, _ = fa3.flash_attn_with_kvcache(**arguments)
    arguments["cache_seqlens"] += 1
    arguments["page_table"].copy_(arguments["page_table"].flip(1))
    recording.replay()
    assert recording.calls < 5
    assert torch.equal(out, fa3.flash_attn_with_kvcache(**arguments)[0])


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("q", lambda q: q.float(), "fp16 and bf16"),
        ("q", lambda q: q.bfloat16(), "same dtype"),
        ("cache_seqlens", lambda lengths: lengths.long(), "torch.int32"),
        ("page_table", lambda table: table.long(), "torch.int32"),
        ("cu_seqlens_q", lambda starts: starts.long(), "torch.int32"),
        ("cache_seqlens", lambda lengths: lengths.repeat_interleave(2)[::2], "contiguous"),
        ("cache_seqlens", lambda lengths: lengths[:-1], "shape"),
        ("page_table", lambda table: table[:-1], "rows"),
        ("max_seqlen_q", lambda _: None, "max_seqlen_q must be provided"),
    ],
)
def test_what_the_kernels_refuse_is_refused(name: str, change: Callable[[Any], Any], words: str) -> None:
    arguments = PLAIN.arguments()
    with pytest.raises(RuntimeError, match=words):
        fa3.flash_attn_with_kvcache(**arguments | {name: change(arguments[name])})


@pytest.mark.parametrize("name", ["k", "k_descale", "cache_batch_idx"])
def test_what_is_not_modelled_is_an_error(name: str) -> None:
    with pytest.raises(NotImplementedError, match=f"with {name} has no stand-in"):
        fa3.flash_attn_with_kvcache(**PLAIN.arguments() | {name: torch.zeros(1)})


def real() -> Any:
    """sgl_kernel's own module. Skipped where there is no GPU, or a package without these kernels."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    pytest.importorskip("sgl_kernel.flash_ops", reason="this sgl_kernel has no FlashAttention 3")
    return importlib.import_module(fa3.MODULE)


def on_gpu(problem: Problem) -> dict[str, Any]:
    arguments = problem.arguments()
    return {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}


@pytest.mark.cuda
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_real_kernels_give_what_attention_is(problem: Problem) -> None:
    compare(problem, real().flash_attn_with_kvcache(**on_gpu(problem))[:2])


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["cache_seqlens", "page_table", "cu_seqlens_q"])
def test_the_real_kernels_refuse_other_integers(name: str) -> None:
    arguments = on_gpu(PLAIN)
    with pytest.raises(RuntimeError):
        real().flash_attn_with_kvcache(**arguments | {name: arguments[name].long()})


@pytest.mark.cuda
def test_the_real_schedule_fits_the_room_that_sglang_has_for_it() -> None:
    arguments = on_gpu(replace(PLAIN, counts=(1, 1, 1, 1)))
    made = real().get_scheduler_metadata(
        batch_size=4,
        max_seqlen_q=1,
        max_seqlen_k=64,
        num_heads=4,
        num_heads_k=2,
        headdim=64,
        cache_seqlens=arguments["cache_seqlens"],
        qkv_dtype=torch.float16,
        cu_seqlens_q=arguments["cu_seqlens_q"],
        page_size=4,
        causal=True,
        has_softcap=False,
        num_splits=0,
    )
    assert len(made) <= 1 + 4 * 4
