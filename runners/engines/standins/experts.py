"""The results of sglang's fused Triton kernel for a mixture of experts, in the precision that it has on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Biased:
    """The rest of gpt-oss's experts. up, down: biases, [experts, 2 * width] and [experts, hidden]. alpha: of the gate's
    sigmoid. limit: where gate and what it is for level off. Both take turns in the first product."""

    up: torch.Tensor
    down: torch.Tensor
    alpha: float
    limit: float

    def active(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up[..., ::2].clamp(max=self.limit), gate_up[..., 1::2].clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(gate * self.alpha) * (up + 1)


def experts(
    tokens: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    biased: Biased | None = None,
) -> torch.Tensor:
    """The sum of each token's experts.

    tokens: [n, hidden]. w13: gate and up projections, [experts, 2 * width, hidden]. w2: down projections, [experts,
    hidden, width]. weights, chosen: [n, k]. Both matrix products are summed in float32 and stored in half precision,
    also where the model is float32: in bfloat16 if that is the model's, else in float16 (sglang's fused_moe.py,
    `compute_type`; in every release that is driven).
    """
    stored = torch.bfloat16 if tokens.dtype == torch.bfloat16 else torch.float16

    def as_stored(product: torch.Tensor) -> torch.Tensor:
        return product.to(stored).to(tokens.dtype)

    product = torch.einsum("ti,taoi->tao", tokens.float(), w13[chosen].float())
    if biased:
        gate_up = as_stored(product + biased.up[chosen].float())
        active = biased.active(gate_up.float())
    else:
        gate, up = as_stored(product).float().chunk(2, dim=-1)
        active = torch.nn.functional.silu(gate) * up
    down = torch.einsum("tao,taio->tai", active.to(tokens.dtype).float(), w2[chosen].float())
    down = down + biased.down[chosen].float() if biased else down
    return as_stored(down * weights.float()[..., None]).sum(1)
