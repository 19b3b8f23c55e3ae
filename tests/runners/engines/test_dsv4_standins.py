"""The stand-ins for DeepSeek-V4's compiled kernels: keys are compressed alike token by token, at once and by
definition; streams of a residual keep their weight."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from runners.engines import launch_memory
from runners.engines.standins import dsv4_compiled, dsv4_compress, dsv4_mhc, dsv4_norms
from runners.engines.standins.dsv4_rows import ROTARY

SIZE, WINDOW_PAGE, CONTEXT = 8, 256, 512
RINGS = {4: 16, 128: 256}  # of a server that drafts
# Requests at places of their own, whose tokens lie on pages in another order.
REQUESTS = torch.tensor([2, 1])
TABLE = torch.stack([torch.arange(CONTEXT), torch.arange(CONTEXT).roll(256) + 512, torch.arange(CONTEXT) + 1024])
MAPPING = torch.arange(1536).roll(512)


def width(ratio: int) -> int:
    return SIZE * (4 if ratio == 4 else 2)


def definition(tokens: Tensor, ape: Tensor, ratio: int) -> Tensor:
    """The rows of one request's tokens, [rows, size]."""
    rows = []
    for end in range(ratio, len(tokens) + 1, ratio):
        part = tokens[end - ratio : end]
        if ratio == 128:
            keys, scores = part.split(SIZE, -1)
        else:
            before = tokens[end - 8 : end - 4] if end > 4 else torch.zeros(4, width(4))
            keys = torch.cat((before[:, :SIZE], part[:, SIZE : 2 * SIZE]))
            early = before[:, 2 * SIZE : 3 * SIZE] if end > 4 else torch.full((4, SIZE), -math.inf)
            scores = torch.cat((early, part[:, 3 * SIZE :]))
        rows.append(((scores + ape).softmax(0) * keys).sum(0))
    return torch.stack(rows) if rows else torch.zeros(0, SIZE)


class Served:
    """A ring and what went through it. Mutable."""

    def __init__(self, ratio: int) -> None:
        torch.manual_seed(1)
        self.ratio, self.ring = ratio, RINGS[ratio]
        pages = max(1536 // WINDOW_PAGE, 3) * self.ring // ratio
        self.state = torch.full((pages, ratio, width(ratio)), math.nan)
        self.ape = torch.randn(8 if ratio == 4 else 128, SIZE)
        self.tokens = [torch.randn(CONTEXT, width(ratio)) for _ in REQUESTS]
        self.planner = dsv4_compiled.loaded("dpsk_v4_compress_plan")
        self.kernel = dsv4_compiled.loaded(f"dpsk_v4_compress_{ratio}_v2")
        self.where = (REQUESTS, TABLE.int(), MAPPING)
        self.sizes = (ratio, WINDOW_PAGE, self.ring, False)

    def expected(self, row: int, end: int) -> Tensor:
        return definition(self.tokens[row][:end], self.ape, self.ratio)[-1]

    def prefill(self, lengths: list[int], extends: list[int], room: int = 0) -> None:
        """Judge each row that is complete. room: queries of the plan besides those that there are."""
        count = sum(extends) + room
        pinned = torch.empty(0, dtype=torch.uint8)
        sizes = (*self.sizes, False)
        plans = self.planner.plan_prefill(
            *self.where, torch.tensor(lengths), torch.tensor(extends), pinned, count, *sizes
        )
        parts = zip(self.tokens, lengths, extends, strict=True)
        tokens = torch.cat([each[length - extend : length] for each, length, extend in parts])
        out = torch.full((count, SIZE), math.nan)
        self.kernel.prefill(self.state, tokens, out, self.ape, *plans)
        numbers = plans[0].view(torch.int32).tolist()
        complete = [numbers[n] for n in range(count) if numbers[n][0] != dsv4_compress.NOTHING]
        owners = [row for row, extend in enumerate(extends) for _ in range(extend)]
        ends = [n + 1 for length, extend in zip(lengths, extends, strict=True) for n in range(length - extend, length)]
        assert [plan[0] for plan in complete] == [end for end in ends if end % self.ratio == 0]
        for row, (end, number, *_) in enumerate(complete):
            assert torch.allclose(out[row], self.expected(owners[number & 0xFFFF], end), atol=1e-5)

    def decode(self, lengths: list[int]) -> None:
        plan = self.planner.plan_decode(*self.where, torch.tensor(lengths), *self.sizes)
        out = torch.full((len(lengths), SIZE), math.nan)
        tokens = torch.stack([each[length - 1] for each, length in zip(self.tokens, lengths, strict=True)])
        self.kernel.decode(self.state, tokens, out, self.ape, plan)
        for row, length in enumerate(lengths):
            if length % self.ratio == 0:
                assert torch.allclose(out[row], self.expected(row, length), atol=1e-5)


@pytest.mark.parametrize("ratio", [4, 128])
def test_rows_are_the_same_however_their_tokens_come(ratio: int) -> None:
    """Prefilled in chunks, decoded over the end of a page, and verified with tokens that are taken back."""
    served = Served(ratio)
    served.prefill([130, 250], [130, 250])
    served.prefill([133, 254], [3, 4], room=5)
    for step in range(1, 9):
        served.decode([133 + step, 254 + step])
    for accepted in range(5):  # a verify of four tokens, of which some stay
        length = 141 + accepted
        served.prefill([length + 4, length + 4 + 121], [4, 4])


def test_a_place_outside_of_the_table_is_reported() -> None:
    launch_memory.taken()
    served = Served(4)
    served.planner.plan_decode(*served.where, torch.tensor([CONTEXT + 1, 5]), *served.sizes)
    assert "load outside req_to_token in compress_plan" in launch_memory.taken()


def test_more_tokens_than_a_plan_has_room_for_are_reported() -> None:
    launch_memory.taken()
    served = Served(4)
    extends = torch.tensor([4, 4])
    pinned = torch.empty(0, dtype=torch.uint8)
    served.planner.plan_prefill(*served.where, torch.tensor([8, 8]), extends, pinned, 4, *served.sizes, True)
    assert "store outside the plan in compress_plan" in launch_memory.taken()


def test_a_length_that_no_request_has_is_reported() -> None:
    launch_memory.taken()
    served = Served(128)
    plan = served.planner.plan_decode(*served.where, torch.tensor([0, 0]), *served.sizes)
    out = torch.zeros(2, SIZE)
    served.kernel.decode(served.state, torch.zeros(2, width(128)), out, served.ape, plan)
    assert "load outside the state in compress" not in launch_memory.taken()  # of request 2 the one before has it
    plan = dsv4_compress.plan_decode(torch.tensor([0]), *served.where[1:], torch.tensor([0]), *served.sizes)
    served.kernel.decode(served.state, torch.zeros(1, width(128)), out[:1], served.ape, plan)
    assert "store outside the state in compress" in launch_memory.taken()


def test_a_rotation_is_undone_by_its_inverse() -> None:
    rows, angles = torch.randn(3, 2, ROTARY + 4), torch.randn(3, ROTARY // 2)
    freqs = torch.stack((angles.cos(), angles.sin()), -1).flatten(1)
    turned = dsv4_norms.rotated(rows, freqs)
    assert not torch.allclose(turned, rows, atol=1e-3)
    assert torch.equal(turned[..., :4], rows[..., :4])
    assert torch.allclose(dsv4_norms.rotated(turned, freqs, inverse=True), rows, atol=1e-5)


def test_the_weights_of_streams_add_up_to_one() -> None:
    streams, count = 4, 3
    mixes, base = torch.randn(count, (2 + streams) * streams), torch.randn((2 + streams) * streams)
    pre, post = torch.empty(count, streams), torch.empty(count, streams)
    comb = torch.empty(count, streams, streams)
    dsv4_mhc.hc_split_sinkhorn_kernel(streams, 20, 1e-6)(mixes, torch.ones(3), base, pre, post, comb)
    assert torch.allclose(comb.sum(-1), torch.ones(count, streams), atol=1e-2)
    assert torch.allclose(comb.sum(-2), torch.ones(count, streams), atol=1e-4)
    assert torch.allclose(post, 2 * torch.sigmoid(mixes[:, streams : 2 * streams] + base[streams : 2 * streams]))


def test_other_compiled_kernels_are_refused_by_name() -> None:
    module = dsv4_compiled.loaded("dpsk_v4_silu_and_mul_clamp", cuda_wrappers=[("run", "Kernel::run")])
    with pytest.raises(NotImplementedError, match=r"silu_and_mul_clamp\.run is compiled CUDA"):
        module.run()
