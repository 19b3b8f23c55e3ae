"""The results of a draft's layers, one after the other."""

from __future__ import annotations

import torch

from runners.releases.live import Outputs


class Drawn:
    """Copied at once: the next layer may overwrite it. Mutable."""

    def __init__(self) -> None:
        self.logits: list[torch.Tensor] = []
        self.topk_p: list[torch.Tensor] = []
        self.topk_index: list[torch.Tensor] = []

    def add(self, logits: torch.Tensor, topk_p: torch.Tensor, topk_index: torch.Tensor) -> None:
        self.logits.append(logits.clone())
        self.topk_p.append(topk_p.clone())
        self.topk_index.append(topk_index.clone())

    def add_best(self, logits: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Draw from the logits of these tokens, one a request: [n, 1]."""
        best = torch.topk(torch.softmax(logits[last], dim=-1), 1, dim=-1)
        self.add(logits, best.values, best.indices)
        return best.indices

    def outputs(self) -> Outputs:
        """topk_index, topk_p: [n, layers]; next_token_logits.<layer>: of all tokens."""
        named = {f"next_token_logits.{layer}": logits for layer, logits in enumerate(self.logits)}
        return named | {"topk_index": torch.cat(self.topk_index, dim=1), "topk_p": torch.cat(self.topk_p, dim=1)}
