"""gpt-oss: layers like Llama's, with sinks, and a network of experts with biases in each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from runners.releases.reference import llama
from runners.releases.reference import operations as op
from runners.releases.reference.chosen import largest_set
from runners.releases.reference.llama import bias, exact, weight
from runners.releases.reference.rounding import Rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts: of each token's best ones, a sum weighted by a softmax over their scores. up, down: [experts, 2 *
    width, hidden] and [experts, hidden, width]; of up's rows, gates and what they are for take turns. limit: where both
    level off. alpha: of the gate's sigmoid."""

    router: torch.Tensor
    router_bias: torch.Tensor | None
    up: torch.Tensor
    up_bias: torch.Tensor
    down: torch.Tensor
    down_bias: torch.Tensor
    count: int
    alpha: float
    limit: float

    @classmethod
    def of(cls, layer: Any) -> Experts:
        """layer: sglang's GptOssSparseMoeBlock."""
        parts = layer.experts
        return cls(
            router=weight(layer.router),
            router_bias=bias(layer.router),
            up=exact(parts.w13_weight),
            up_bias=exact(parts.w13_weight_bias),
            down=exact(parts.w2_weight),
            down_bias=exact(parts.w2_weight_bias),
            count=layer.topk.topk_config.top_k,
            alpha=parts.moe_runner_config.gemm1_alpha,
            limit=parts.moe_runner_config.gemm1_clamp_limit,
        )

    def run(self, by: Rounding, x: torch.Tensor) -> torch.Tensor:
        """x: [samples, tokens, hidden]. Not a number for tokens whose experts rounding may have chosen otherwise."""
        routed = op.linear(by, x, self.router, self.router_bias)
        chosen, sure = largest_set(routed, self.count)
        shares = op.shares(by, routed.gather(-1, chosen.expand(len(x), *chosen.shape)))
        each = self._each(by, x).gather(2, chosen[None, :, :, None].expand(len(x), *chosen.shape, x.shape[-1]))
        output = by.rounded(by.halved().rounded(each * shares[..., None]).sum(dim=2))
        return output.masked_fill(~sure[:, :1], torch.nan)

    def _each(self, by: Rounding, x: torch.Tensor) -> torch.Tensor:
        """The result of every expert for every token, [samples, tokens, experts, hidden]. Products are kept in halves
        (runners/engines/standins/experts.py)."""
        x = x[:, :, None].expand(-1, -1, len(self.up), -1)
        gate_up = self._linear(by, x, self.up, self.up_bias)
        gate, up = gate_up[..., ::2].clamp(max=self.limit), gate_up[..., 1::2].clamp(-self.limit, self.limit)
        active = by.rounded(gate * op.sigmoid(by, gate * self.alpha) * (up + 1))
        return self._linear(by, active, self.down, self.down_bias)

    def _linear(self, by: Rounding, x: torch.Tensor, weights: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
        halved = by.halved()
        sums = op.linear_by_head(halved, x, weights)
        sums = op.on_tensor_cores(by, sums, op.products_norm(x, weights)) if by.tensor_cores else sums
        return halved.rounded(sums + biases)


target = partial(llama.target, feed=Experts.of)
