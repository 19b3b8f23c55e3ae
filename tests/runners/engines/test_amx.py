"""The stand-in for sgl_kernel's attention on CPUs: what it computes, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from runners.engines.standins import amx

pytestmark = pytest.mark.emulated
SLOTS, ROWS, HEADS, KV_HEADS, DIM, SCALE = 32, 3, 4, 2, 16, 0.25
LENGTHS = (1, 7, 4)


def given(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=made).to(dtype)

    table = torch.zeros(ROWS + 1, 8, dtype=torch.int32)
    table[1:] = (torch.randperm(SLOTS - 1, generator=made)[: ROWS * 8] + 1).view(ROWS, 8)
    requests, lengths = torch.tensor([2, 1, 3]), torch.tensor(LENGTHS)
    return {
        "query": drawn(ROWS, HEADS, DIM),
        "k_cache": drawn(SLOTS, KV_HEADS, DIM),
        "v_cache": drawn(SLOTS, KV_HEADS, DIM),
        "output": torch.full((ROWS, HEADS, DIM), float("nan"), dtype=dtype),
        "key": drawn(ROWS, KV_HEADS * DIM),
        "value": drawn(ROWS, KV_HEADS * DIM),
        "loc": table[requests, lengths - 1].long(),
        "attn_logits": torch.zeros(ROWS, HEADS, 8, DIM + 1),
        "req_to_token": table,
        "req_pool_indices": requests,
        "seq_lens": lengths,
    }


def attended(arguments: dict[str, torch.Tensor], *more: object) -> torch.Tensor:
    amx.define()
    torch.ops.sgl_kernel.decode_attention_cpu(*arguments.values(), SCALE, *(more or (0.0,)))
    return arguments["output"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_each_row_attends_to_the_tokens_of_its_request(dtype: torch.dtype) -> None:
    arguments = given(dtype)
    before = {name: arguments[name].clone() for name in ("k_cache", "v_cache")}
    output = attended(arguments)
    for cache, new in (("k_cache", "key"), ("v_cache", "value")):
        assert torch.equal(arguments[cache][arguments["loc"]].flatten(1), arguments[new])
        kept = torch.ones(SLOTS, dtype=torch.bool).index_fill(0, arguments["loc"], False)
        assert torch.equal(arguments[cache][kept], before[cache][kept])
    for row, length in enumerate(LENGTHS):
        slots = arguments["req_to_token"][arguments["req_pool_indices"][row], :length].long()
        keys, values = (
            arguments[cache][slots].float().permute(1, 0, 2).repeat_interleave(HEADS // KV_HEADS, 0)
            for cache in ("k_cache", "v_cache")
        )
        query = arguments["query"][row].float()[:, None]
        want = torch.nn.functional.scaled_dot_product_attention(query, keys, values, scale=SCALE)[:, 0]
        torch.testing.assert_close(
            output[row], want.to(dtype), rtol=1e-5, atol=1e-5 if dtype is torch.float32 else 8e-3
        )


def test_a_padded_row_reads_and_writes_slot_0() -> None:
    arguments = given()
    for name, value in (("req_pool_indices", 0), ("seq_lens", 1), ("loc", 0)):
        arguments[name][1] = value
    output = attended(arguments)
    assert torch.equal(output[1], arguments["value"][1].view(KV_HEADS, DIM).repeat_interleave(HEADS // KV_HEADS, 0))
    assert not output.isnan().any()


def test_scores_are_capped() -> None:
    assert not torch.allclose(attended(given(), 0.1), attended(given()))


def test_what_has_no_stand_in_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="sliding windows"):
        attended(given(), 0.0, False, 4)


def test_only_operators_that_are_given_a_fake_are_declared() -> None:
    amx.define()
    assert not hasattr(torch.ops.sgl_kernel, "never_heard_of_cpu")
    with amx.declaring():
        torch.library.register_fake("sgl_kernel::never_heard_of_cpu")(lambda: None)
    assert hasattr(torch.ops.sgl_kernel, "never_heard_of_cpu")
    with pytest.raises(RuntimeError, match="nor_of_this_cpu"):
        torch.library.register_fake("sgl_kernel::nor_of_this_cpu")(lambda: None)
