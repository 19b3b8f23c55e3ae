"""The stand-in for TensorRT-LLM's attention: attention by its definition, and numbers as its kernel reads them. Nobody
has compared it with the kernel, which needs a GPU of SM100."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from runners.engines import launch_memory
from runners.engines.standins import trtllm
from tests.runners.engines.test_fa3_standin import PLAIN, VALUES, Problem, by_definition

pytestmark = pytest.mark.emulated
ALIKE = replace(PLAIN, page_size=16, counts=(2, 2, 2, 2))
OF_CONTEXT = ("max_kv_len", "max_q_len", "batch_size", "cum_seq_lens_kv", "cum_seq_lens_q")


@pytest.fixture(autouse=True)
def seen() -> Iterator[Callable[[], set[str]]]:
    """The names of what was found since the last call."""
    launch_memory.taken()
    yield lambda: set(launch_memory.taken()) - {launch_memory.LAUNCHES}
    launch_memory.taken()


def arguments_of(problem: Problem) -> dict[str, Any]:
    """The problem as a decode with equally many queries of each sequence."""
    call = problem.arguments()
    return {
        "query": call["q"],
        "kv_cache": tuple(call[name].transpose(1, 2) for name in ("k_cache", "v_cache")),
        "workspace_buffer": torch.zeros(1),
        "block_tables": call["page_table"],
        "seq_lens": call["cache_seqlens"],
        "max_seq_len": max(problem.lengths),
        "bmm1_scale": 1 / 8,
        "window_left": problem.window[0],
        "q_len_per_req": problem.counts[0],
    }


def as_prefill(problem: Problem) -> dict[str, Any]:
    arguments = arguments_of(problem)
    del arguments["q_len_per_req"]
    starts = problem.arguments()["cu_seqlens_q"]
    others = (arguments.pop("max_seq_len"), max(problem.counts), len(problem.counts), starts, starts)
    return arguments | dict(zip(OF_CONTEXT, others, strict=True)) | {"bmm2_scale": 1.0, "causal": problem.causal}


@pytest.mark.parametrize(
    "change", [{}, {"window": (7, 0)}, {"dtype": torch.bfloat16}, {"heads": (6, 1)}, {"page_size": 64}], ids=str
)
def test_attention_is_as_defined(change: dict[str, Any]) -> None:
    problem = replace(ALIKE, **change)
    expected, _ = by_definition(problem, problem.arguments())
    result = trtllm.trtllm_batch_decode_with_kv_cache(**arguments_of(problem))
    assert result.dtype == problem.dtype and (result.double() - expected).abs().max() < VALUES[problem.dtype]
    ragged = replace(problem, counts=(1, 3, 2, 1))
    expected, _ = by_definition(ragged, ragged.arguments())
    result = trtllm.trtllm_batch_context_with_kv_cache(**as_prefill(ragged))
    assert (result.double() - expected).abs().max() < VALUES[problem.dtype]


def test_latent_attention_is_as_defined() -> None:
    problem = replace(ALIKE, heads=(4, 1), latent=512, page_size=32, spare_columns=2, dtype=torch.bfloat16)
    call = problem.arguments()
    expected, _ = by_definition(problem, call)
    result = trtllm.trtllm_batch_decode_with_kv_cache_mla(
        query=torch.cat((call["qv"], call["q"]), -1).view(4, 2, 4, 576),
        kv_cache=torch.cat((call["v_cache"], call["k_cache"]), -1).transpose(1, 2),
        workspace_buffer=torch.zeros(1),
        qk_nope_head_dim=128,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        block_tables=call["page_table"],
        seq_lens=call["cache_seqlens"],
        max_seq_len=64,
        bmm1_scale=1 / 8,
    )
    assert (result.flatten(0, 1).double() - expected).abs().max() < VALUES[torch.bfloat16]


def test_a_too_short_longest_sequence_shows(seen: Callable[[], set[str]]) -> None:
    """Keys behind it are not read."""
    arguments = arguments_of(ALIKE)
    whole = trtllm.trtllm_batch_decode_with_kv_cache(**arguments)
    assert not seen()
    cut = trtllm.trtllm_batch_decode_with_kv_cache(**arguments | {"max_seq_len": 40})
    assert seen() == {"max_seq_len below a sequence's length in trtllm_paged_attention"}
    assert torch.equal(cut[:6], whole[:6]) and not torch.equal(cut[6:], whole[6:])
    lengths = torch.tensor([*ALIKE.lengths[:3], 40], dtype=torch.int32)
    assert torch.equal(cut, trtllm.trtllm_batch_decode_with_kv_cache(**arguments | {"seq_lens": lengths}))


def test_numbers_are_read_as_the_kernel_reads_them(seen: Callable[[], set[str]]) -> None:
    """Numbers of any type are int32, and a row of any strides is as wide as the table."""
    arguments = arguments_of(ALIKE)
    whole = trtllm.trtllm_batch_decode_with_kv_cache(**arguments)
    wide = torch.cat((arguments["block_tables"], torch.zeros_like(arguments["block_tables"])), 1)
    strided = wide[:, : arguments["block_tables"].shape[1]]
    assert torch.equal(strided, arguments["block_tables"])
    result = trtllm.trtllm_batch_decode_with_kv_cache(**arguments | {"block_tables": strided})
    assert torch.equal(result[:2], whole[:2]) and not torch.equal(result, whole)
    result = trtllm.trtllm_batch_decode_with_kv_cache(**arguments | {"seq_lens": arguments["seq_lens"].long()})
    assert torch.equal(result[:2], whole[:2]) and not torch.equal(result[2:4], whole[2:4])
    assert not seen()


def test_what_is_read_outside_is_nan(seen: Callable[[], set[str]]) -> None:
    problem = replace(ALIKE, counts=(1, 1), lengths=(32, 32), spare_columns=0)
    arguments = arguments_of(problem) | {"max_seq_len": 64}
    arguments["seq_lens"][1] = 48
    out = trtllm.trtllm_batch_decode_with_kv_cache(**arguments)
    assert out[0].isfinite().all() and out[1].isnan().all()
    assert seen() == {"load outside block_tables in trtllm_paged_attention"}
    arguments["seq_lens"][1], arguments["block_tables"][1, 0] = 32, 10**6
    assert trtllm.trtllm_batch_decode_with_kv_cache(**arguments)[1].isnan().all()
    assert seen() == {"load outside kv_cache in trtllm_paged_attention"}
    arguments["seq_lens"][1] = 0
    assert not trtllm.trtllm_batch_decode_with_kv_cache(**arguments)[1].any() and not seen()


@pytest.mark.parametrize(
    ("problem", "change", "words"),
    [
        (replace(ALIKE, page_size=4), {}, "Missing TRTLLM-GEN kernel"),
        (ALIKE, {"sinks": torch.zeros(4, dtype=torch.bfloat16)}, "must be a float tensor"),
        (ALIKE, {"out_dtype": torch.float32}, "Unsupported out_dtype"),
    ],
)
def test_refusals_are_flashinfers(problem: Problem, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        trtllm.trtllm_batch_decode_with_kv_cache(**arguments_of(problem) | change)
    with pytest.raises(NotImplementedError, match="has no stand-in"):
        trtllm.trtllm_batch_decode_with_kv_cache(**arguments_of(ALIKE) | {"kv_cache_sf": ()})


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (trtllm.trtllm_batch_decode_with_kv_cache, arguments_of(ALIKE), "max_seq_len"),
        (trtllm.trtllm_batch_context_with_kv_cache, as_prefill(ALIKE), "max_q_len"),
    ],
)
def test_a_tensor_is_no_whole_number(function: Callable[..., Any], arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(TypeError, match=f"argument {name}"):
        function(**arguments | {name: torch.tensor(arguments[name])})
