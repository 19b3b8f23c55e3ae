"""The bounds of the reference hold for real arithmetic in halves and float32, however a kernel goes about it, and are
narrow enough to show small mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from repro.cases.case import Setup
from runners.engines.standins.experts import experts
from runners.recording.observer import Unsupported
from runners.releases.reference import bounds, rounding, served
from runners.releases.reference import operations as op
from runners.releases.reference.chosen import largest, largest_set
from runners.releases.reference.deepseek import Experts
from runners.releases.reference.gdn import Shared
from runners.releases.reference.llama import Gated, Tokens
from runners.releases.reference.question import Answer, Question
from runners.releases.reference.rounding import SAMPLES, Rounding, half_steps
from runners.releases.reference.served import Judged, Teacher
from runners.sessions.third_opinion import recorded

pytestmark = pytest.mark.emulated
TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
TOKENS, OLD, HEADS, SIZE, HIDDEN = 6, 20, 2, 64, 32
TRIALS = 8

each_type = pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
Change = Callable[[torch.Tensor], torch.Tensor]


class Layer:
    """An attention and a feed-forward layer, behind each other: as the reference has them, and as torch has them in a
    type. What is given is exact in that type."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self.dtype, self.seed = dtype, seed
        draw = torch.Generator().manual_seed(seed)

        def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return ((torch.rand(shape, generator=draw, dtype=torch.float64) * 2 - 1) * scale).to(dtype).double()

        self.x = drawn(TOKENS, HIDDEN)
        self.qkv = drawn(3 * HEADS * SIZE, HIDDEN, scale=2.6 / HIDDEN**0.5)
        self.out = drawn(HIDDEN, HEADS * SIZE, scale=2.6 / (HEADS * SIZE) ** 0.5)
        self.up, self.down = (drawn(n * HIDDEN, HIDDEN, scale=2.6 / HIDDEN**0.5) for n in (2, 1))
        self.norm = (1 + drawn(HIDDEN, scale=0.25)).to(dtype).double()
        self.keys, self.values = drawn(OLD, HEADS, SIZE), drawn(OLD, HEADS, SIZE)
        self.mask = torch.cat((torch.ones(TOKENS, OLD), torch.ones(TOKENS, TOKENS).tril()), dim=1).bool()

    def reference(self) -> torch.Tensor:
        by = Rounding(self.dtype, on_gpu=False, seed=1)
        x = by.exact(self.x)
        queries, keys, values = op.linear(by, x, self.qkv).unflatten(-1, (-1, SIZE)).split(HEADS, dim=2)
        seen = op.Attended(keys=self.keys, values=self.values, new_keys=keys, new_values=values, mask=self.mask)
        x = op.added(by, op.linear(by, op.attention(by, queries, seen, SIZE**-0.5), self.out), x)
        gate, up = op.linear(by, op.rms_norm(by, x, self.norm, 1e-5), self.up).chunk(2, dim=-1)
        return op.added(by, op.linear(by, by.rounded(op.silu(by, gate) * up), self.down), x)

    def computed(
        self, *, parts: int = 1, heads: Change = lambda x: x, shares: Change = lambda x: x, flip: bool = False
    ) -> torch.Tensor:
        """In the type. parts: attention over so many stretches of keys, merged from results in the type. heads: what
        becomes of attention's result [heads, tokens, size]. shares: of its weights. flip: sums in another order."""
        dtype, x = self.dtype, self.x.to(self.dtype)
        order = torch.arange(HIDDEN).flip(0) if flip else torch.arange(HIDDEN)

        def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            along = order if x.shape[-1] == HIDDEN else torch.arange(x.shape[-1])
            return (x.float()[..., along] @ weight.float().T[along]).to(dtype)

        queries, keys, values = linear(x, self.qkv).unflatten(-1, (-1, SIZE)).split(HEADS, dim=1)
        keys, values = (
            torch.cat((old.to(dtype), new)).transpose(0, 1).float()
            for old, new in ((self.keys, keys), (self.values, values))
        )
        scores = (queries.transpose(0, 1).float() @ keys.transpose(1, 2)) * SIZE**-0.5
        scores = scores.masked_fill(~self.mask, -math.inf)
        merged, total = torch.zeros(HEADS, TOKENS, SIZE), torch.full((HEADS, TOKENS, 1), -math.inf)
        for part in torch.arange(OLD + TOKENS).chunk(parts):
            slice_scores = scores[..., part]
            top = slice_scores.amax(-1, keepdim=True)
            weights = shares((slice_scores - top.clamp(min=-1e30)).exp())
            share = weights.sum(-1, keepdim=True).clamp(min=1e-30)
            result = ((weights.to(dtype).float() @ values[:, part]) / share).to(dtype)
            size = share.log() + top
            sum_of_both = torch.logaddexp(total, size)
            merged = merged * (total - sum_of_both).exp() + result.float() * (size - sum_of_both).exp().nan_to_num(0.0)
            total = sum_of_both
        x = (linear(heads(merged.to(dtype)).transpose(0, 1).flatten(1), self.out).float() + x.float()).to(dtype)
        scale = (x.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        gate, up = linear((x.float() * scale).to(dtype) * self.norm.to(dtype), self.up).chunk(2, dim=-1)
        gated = torch.nn.functional.silu(gate.float()).to(dtype) * up
        return (linear(gated, self.down).float() + x.float()).to(dtype)


def off(values: torch.Tensor, computed: torch.Tensor) -> tuple[float, float, float]:
    """The largest error of a result, over each of the three bounds."""
    errors = computed.double() - values[0]
    spreads = bounds.spread(values)
    everything = (errors / spreads[..., None]).square().sum().sqrt() / bounds.everything(values, spreads)
    together = errors.square().sum(-1).sqrt() / bounds.together(values)
    return float((errors.abs() / bounds.each(values)).max()), float(together.max()), float(everything)


@each_type
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_no_way_of_computing_leaves_the_bounds(dtype: torch.dtype, parts: int) -> None:
    most = [0.0, 0.0, 0.0]
    for seed in range(TRIALS):
        layer = Layer(dtype, seed)
        distance = off(layer.reference(), layer.computed(parts=parts, flip=seed % 2 == 1))
        most = [max(pair) for pair in zip(most, distance, strict=True)]
    assert max(most) < 1.0, most
    # Nor do they lie so far out that nothing could: what rounding really does is a good part of them.
    assert dtype == torch.float32 or min(most) > 0.1, most


@each_type
def test_small_mistakes_lie_outside(dtype: torch.dtype) -> None:
    def one_head(by: float) -> Change:
        factors = torch.tensor([1 + by, 1.0], dtype=dtype)[:, None, None]
        return lambda result: result * factors

    def no_third_key(weights: torch.Tensor) -> torch.Tensor:
        return torch.cat((weights[..., :2], torch.zeros_like(weights[..., :1]), weights[..., 3:]), dim=-1)

    # What rounding does to a half is some of these; in bfloat16 it is eight times as much.
    small = {torch.float32: 2.0**-16, torch.float16: 2.0**-6, torch.bfloat16: 2.0**-3}[dtype]
    seen = {"head": 0, "key": 0}
    for seed in range(TRIALS):
        layer = Layer(dtype, seed)
        values = layer.reference()
        seen["head"] += max(off(values, layer.computed(heads=one_head(small)))) > 1
        seen["key"] += max(off(values, layer.computed(shares=no_third_key))) > 1
    assert seen["head"] >= TRIALS - 1, seen
    assert seen["key"] == TRIALS, seen


def test_rounding_reaches_half_way_to_the_next_value() -> None:
    values = torch.tensor([1.0, 1.5, 2.0, -3.0, 0.0], dtype=torch.float64)
    assert half_steps(values, 2.0**-11).tolist() == [2.0**-11, 2.0**-11, 2.0**-10, 2.0**-10, 0.0]
    by = Rounding(torch.float16, on_gpu=False, seed=1)
    exact = by.exact(values)
    moved = by.rounded(exact)
    assert moved.shape == (1 + SAMPLES, 5)
    torch.testing.assert_close(moved[0], values, rtol=0, atol=0)
    reach = (moved[1:] - values).abs().amax(0)
    assert ((0.9 * by.reach(values) < reach) & (reach <= by.reach(values))).all()
    # What is given as it is has no errors at all.
    assert bounds.each(exact).eq(0).all()
    assert bounds.together(exact).eq(0).all()


def test_what_goes_beyond_the_types_values_is_not_known() -> None:
    by = Rounding(torch.float16, on_gpu=False, seed=1)
    tokens = torch.tensor([[[3.0, 65504.0], [7e4, 1.0], [3.0, 1.0]]], dtype=torch.float64)
    values = by.rounded(by.exact(tokens))
    assert values.isnan().all(0).tolist() == [[[False, True], [True, False], [False, False]]]
    assert not Rounding(torch.bfloat16, on_gpu=False, seed=1).rounded(by.exact(tokens)).isnan().any()
    setup = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1,), slots=1)
    question = Question(setup=setup, requests=(), given={}, table=np.empty((0, 0), np.int64), kv=[], claimed={}, by=by)
    bounded = recorded(question, Answer(floats={"logits": values}))
    # A token is known as a whole or not at all.
    assert np.isfinite(bounded["logits.bound"]).tolist() == [[False] * 4 + [True] * 2]
    assert np.isfinite(bounded["logits.norm"]).tolist() == [[False, False, True]]
    # A path that chose what is not known is followed.
    products = torch.cat((values[:, 0, 1], values[:, 0, 2]), dim=-1)[:, None]
    claimed = torch.tensor([[2, 3]])
    assert largest(products, 2, claimed)[0].tolist() == largest_set(products, 2, claimed)[0].tolist() == [[2, 3]]
    assert not largest(products, 2)[1].any()
    numbers = products.nan_to_num(9.0)
    assert largest(numbers, 2, claimed)[0].tolist() == largest_set(numbers, 2, claimed)[0].tolist() == [[0, 2]]


def test_experts_are_known_where_rounding_cannot_choose_others() -> None:
    draw = torch.Generator().manual_seed(5)
    count, hidden, width = 4, 16, 8

    def drawn(*shape: int) -> torch.Tensor:
        return (torch.rand(shape, generator=draw, dtype=torch.float64) * 2 - 1).float().double()

    shared = Gated(up=drawn(2 * width, hidden), down=drawn(hidden, width))
    up, down, router = drawn(count, 2 * width, hidden), drawn(count, hidden, width), drawn(count, hidden)
    router[3] = router[2]
    mixture = Experts(router=router, bias=torch.zeros(count).double(), up=up, down=down, shared=shared, count=2)
    x = drawn(40, hidden)
    by = Rounding(torch.float32, on_gpu=False, seed=1)
    values = mixture.run(by, by.exact(x))
    scores = (x @ router.T).sigmoid()
    ordered = scores.sort(dim=-1, descending=True).values
    tied = ordered[:, 1] == ordered[:, 2]
    assert 0 < tied.sum() < len(x)
    assert values.isnan().all(0).all(-1).tolist() == tied.tolist()
    chosen = scores.topk(2)
    shares = chosen.values / chosen.values.sum(-1, keepdim=True)
    routed = experts(x.float(), up.float(), down.float(), shares.float(), chosen.indices)
    gate, beside = (x @ shared.up.T).chunk(2, dim=-1)
    right = routed + ((torch.nn.functional.silu(gate) * beside) @ shared.down.T).float()
    assert max(off(values[:, ~tied], right[~tied])) < 1.0
    wrong = routed * 1.01 + right - routed
    assert max(off(values[:, ~tied], wrong[~tied])) > 1.0


def samples(exact: list[float], noise: float) -> torch.Tensor:
    """Values of one row, each with errors of its own of this size."""
    draw = torch.Generator().manual_seed(3)
    values = torch.tensor([exact], dtype=torch.float64)
    return torch.cat((values[None], values + noise * torch.randn(SAMPLES, 1, len(exact), generator=draw)))


def test_a_shared_expert_is_the_same_beside_the_others_and_behind_them() -> None:
    """sglang puts it there on a GPU."""
    draw = torch.Generator().manual_seed(3)
    up, down, gate, x = (torch.randn(shape, generator=draw) for shape in ((16, 6), (6, 8), (1, 6), (5, 6)))
    routed = SimpleNamespace(w13_weight=torch.ones(4, 16, 6), w2_weight=torch.zeros(4, 6, 8))
    weighing = SimpleNamespace(weight=gate)
    network = SimpleNamespace(gate_up_proj=SimpleNamespace(weight=up), down_proj=SimpleNamespace(weight=down))
    beside = SimpleNamespace(experts=routed, shared_expert=network, shared_expert_gate=weighing)
    joined = SimpleNamespace(
        w13_weight=torch.cat((routed.w13_weight, up[None])), w2_weight=torch.cat((routed.w2_weight, down[None]))
    )
    behind = SimpleNamespace(
        experts=joined, shared_expert=None, shared_expert_gate=weighing, num_fused_shared_experts=1
    )
    ways = [Rounding(torch.float32, on_gpu=False, seed=1) for _ in range(2)]
    results = [Shared.of(layer).run(by, by.exact(x)) for layer, by in zip((beside, behind), ways, strict=True)]
    assert results[0].abs().max() > 0.1
    assert torch.equal(*results)
    joined.w2_weight[0] = 1
    with pytest.raises(Unsupported, match="no text is known of experts that are chosen"):
        Shared.of(behind)


def test_a_choice_is_the_paths_own_as_far_as_rounding_explains_it() -> None:
    values = samples([4.0, 3.0, 2.999, 1.0], 0.001)
    chosen, known = largest(values, 2)
    assert (chosen.tolist(), known.tolist()) == ([[0, 1]], [[True, False]])
    for claim, want in (
        ([0, 2], [0, 2]),  # a tie, as the path turned it over
        ([0, 3], [0, 1]),  # wrong
        ([2, 0], [0, 1]),  # in the wrong order
        ([0, 0], [0, 1]),  # the same twice
        ([0, 9], [0, 1]),  # no value at all
    ):
        chosen, known = largest(values, 2, torch.tensor([claim]))
        assert (chosen.tolist(), known.tolist()) == ([want], [[True, True]]), claim
    chosen, known = largest(values, 2, torch.tensor([[0, -1]]))
    assert (chosen.tolist(), known.tolist()) == ([[0, 1]], [[True, False]])


def test_a_set_is_the_paths_own_as_far_as_rounding_explains_it() -> None:
    values = samples([1.0, 3.0, 2.999, 4.0], 0.001)
    assert largest_set(values, 2)[1].tolist() == [[False, False]]
    assert largest_set(values, 3)[1].tolist() == [[True, True, True]]
    for claim, want in (([2, 3], [2, 3]), ([1, 3], [1, 3]), ([0, 3], [1, 3]), ([3, 2], [1, 3]), ([1, 7], [1, 3])):
        assert largest_set(values, 2, torch.tensor([claim]))[0].tolist() == [want], claim


def test_products_of_linear_layers_are_cut_where_inference_is_deterministic() -> None:
    """On a GPU sglang makes them by `tl.dot` then, which takes ten bits behind the point of a float32."""
    draw = torch.Generator().manual_seed(3)
    x, weight = ((torch.rand(64, 48, generator=draw) * 2 - 1) for _ in range(2))
    cut = [(part.view(torch.int32) & ~0x1FFF).view(torch.float32).double() for part in (x, weight)]
    error = (cut[0] @ cut[1].T - x.double() @ weight.double().T).abs()

    def exceeded(*, deterministic: bool) -> int:
        by = Rounding(torch.float32, on_gpu=True, seed=1, deterministic=deterministic)
        bound = bounds.each(op.linear(by, by.exact(x.double()), weight.double()))
        return int((error > bound).sum())

    assert exceeded(deterministic=True) == 0
    assert exceeded(deterministic=False) > error.numel() // 2


def test_what_was_drawn_before_does_not_change_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "_drawn", [torch.empty(0, dtype=torch.float64)])
    few, many = torch.zeros(1 + SAMPLES, 100), torch.zeros(1 + SAMPLES, 1 << 17)
    draws = []
    for before in ((), (many,)):
        for values in before:
            Rounding(torch.float32, on_gpu=False, seed=2).moved(values, 1.0)
        draws.append(Rounding(torch.float32, on_gpu=False, seed=1).moved(few, 1.0))
    assert torch.equal(*draws) and len(draws[0].unique()) > 1


def test_hidden_states_of_another_width_or_place_are_off() -> None:
    nothing = np.zeros(2)
    judged = Judged(
        logits=torch.zeros(2, 4),
        states=torch.zeros((2, 3), dtype=torch.float64),
        best=nothing.astype(np.int64),
        behind=nothing,
        likely=nothing,
        prompt=nothing,
        whole=nothing.astype(np.int64),
        noise=0.0,
        prompt_noise=0.0,
        states_noise=0.0,
        every=torch.zeros(1, 2, 3),
    )
    assert judged.states_off([[0.0, 0.5, 0.0], [0.0], [0.0] * 3]) == [0.5, math.inf, math.inf]


def test_a_token_that_the_vocabulary_lacks_is_infinitely_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def repeats(by: Rounding, tokens: Tokens, attend: object) -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.eye(4, dtype=torch.float64)[tokens.ids].expand(1 + SAMPLES, -1, -1)
        return logits, logits

    monkeypatch.setattr(served, "read_whole", lambda model, vocab: repeats)
    teacher = Teacher(None, 4, torch.float32, torch.float32, on_gpu=False)
    judged = teacher.judge(np.array([1, 2]), [2, 1 << 60, -7, 0], torch.zeros(4, 4, dtype=torch.float64))
    assert judged.best.tolist() == [2, 2, 3, 0]
    assert judged.behind.tolist() == [0.0, math.inf, math.inf, 0.0]
    assert judged.likely[1:3].tolist() == [-math.inf] * 2


def test_a_teachers_linear_layers_round_as_in_deterministic_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def notes(by: Rounding, tokens: Tokens, attend: object) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(by.linear_on_cores)
        logits = torch.eye(4, dtype=torch.float64)[tokens.ids].expand(1 + SAMPLES, -1, -1)
        return logits, logits

    monkeypatch.setattr(served, "read_whole", lambda model, vocab: notes)
    for deterministic in (False, True):
        teacher = Teacher(None, 4, torch.float32, torch.float32, on_gpu=True, deterministic=deterministic)
        teacher.judge(np.array([1, 2]), [2], torch.zeros(1, 4, dtype=torch.float64))
    assert seen == [False, True]
