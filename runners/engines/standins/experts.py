"""The results of sglang's fused Triton kernel for a mixture of experts, in the precision that it has on a GPU."""

from __future__ import annotations

import torch


def experts(
    tokens: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
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

    gate_up = as_stored(torch.einsum("ti,taoi->tao", tokens.float(), w13[chosen].float()))
    gate, up = gate_up.float().chunk(2, dim=-1)
    active = (torch.nn.functional.silu(gate) * up).to(tokens.dtype)
    down = torch.einsum("tao,taio->tai", active.float(), w2[chosen].float())
    return as_stored(down * weights.float()[..., None]).sum(1)
