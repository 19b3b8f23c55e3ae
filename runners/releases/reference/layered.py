"""A draft of several layers, each a model of its own with a KV cache of its own, that draw one token each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from runners.releases.live import Live
from runners.releases.reference import operations as op
from runners.releases.reference.chosen import largest
from runners.releases.reference.extending import read_behind
from runners.releases.reference.llama import Model, Tokens
from runners.releases.reference.models import read
from runners.releases.reference.question import Answer, Question, Reference
from runners.releases.reference.reading import Read, attending


def _models(live: Live) -> list[Model] | None:
    models = [read(runner.model, live.setup.vocab_size) for runner in live.draft.draft_runner_list]
    return [model for model in models if model is not None] if all(models) else None


def same_tokens(live: Live) -> Reference | None:
    """next_token_logits.<layer>: of all tokens. topk_index, topk_p: [requests, layers]. Every layer goes over as many
    tokens at the same places; they move up by one from layer to layer, and the one that was drawn takes the place of
    the last accepted one."""
    models = _models(live)
    if models is None:
        return None

    def run(question: Question) -> Answer:
        drawing, reads = _Drawing(question), read_behind(question)
        ids = question.given["input_ids"].clone()
        hidden = question.exact("hidden_states")
        last = torch.tensor([request.accepted for request in question.requests])
        for layer, model in enumerate(models):
            picked = drawing.draw(layer, model, reads, ids, hidden, last)
            ids = torch.cat((ids[:, 1:], ids[:, -1:]), dim=1)
            ids[torch.arange(len(ids)), last] = picked
        return drawing.answered()

    return run


def growing(live: Live) -> Reference | None:
    """The same, and hidden_pool: [requests, layers - 1, hidden]. Every layer goes over one token more than the one
    before it: a token further back, with the hidden state that a pool has kept of it, and the drawn one at the other
    end."""
    models = _models(live)
    if models is None:
        return None
    pool_size = len(live.draft.req_to_hidden_states_pool)

    def run(question: Question) -> Answer:
        drawing, requests = _Drawing(question), question.requests
        width, rows = question.setup.num_draft_tokens, torch.arange(len(requests))
        inside = torch.tensor([request.slot < pool_size for request in requests])
        pool = question.exact("hidden_pool") * inside[:, None, None]
        ids, hidden = question.given["input_ids"], question.exact("hidden_states")
        counts = torch.tensor([request.accepted + 1 for request in requests])
        picked = torch.zeros_like(counts)
        for layer, model in enumerate(models):
            if layer:
                ids = torch.cat((ids, torch.zeros_like(ids[:, :1])), dim=1)
                ids[rows, counts + layer - 1] = picked
                hidden = torch.cat((pool[:, :, -layer][:, :, None], hidden), dim=2)
            reads = [_behind(question, row, layer, width) for row in range(len(requests))]
            known = torch.tensor([request.seq_len >= layer for request in requests])
            picked = drawing.draw(layer, model, reads, ids, hidden, counts - 1 + layer, known)
        window = hidden[:, :, hidden.shape[2] - pool.shape[2] :]
        drawing.answer.floats["hidden_pool"] = window.flatten(2)[:, :, None]
        return drawing.answered()

    return run


def _behind(question: Question, row: int, layer: int, width: int) -> Read:
    """A request's tokens from `layer` before its new ones on; where it has too few, the first ones go to KV slot 0."""
    request = question.requests[row]
    places = np.arange(request.seq_len - layer, request.seq_len + width)
    slots = question.table[request.slot]
    return Read(
        old=slots[: max(0, request.seq_len - layer)],
        new=np.where(places >= 0, slots[np.maximum(places, 0)], 0),
        positions=torch.from_numpy(np.maximum(places, 0)),
        sees=torch.ones(len(places), len(places), dtype=torch.bool).tril(),
    )


class _Drawing:
    """The results of the layers, one after the other. known: of which requests it is known what is right, bool
    [requests]."""

    def __init__(self, question: Question) -> None:
        self.question, self.answer = question, Answer()
        self.known = torch.ones(len(question.requests), dtype=torch.bool)
        self._picked: list[torch.Tensor] = []
        self._sure: list[torch.Tensor] = []
        self._shares: list[torch.Tensor] = []

    def draw(
        self,
        layer: int,
        model: Model,
        reads: Sequence[Read],
        ids: torch.Tensor,
        hidden: torch.Tensor,
        last: torch.Tensor,
        known: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One layer over ids [requests, n] with hidden states [samples, requests, n, hidden], drawing from the token at
        `last` of each request: [requests]. known: of which requests this layer's part is."""
        question, by = self.question, self.question.by
        self.known = self.known if known is None else self.known & known
        tokens = Tokens(
            ids=ids.flatten(), positions=torch.cat([read.positions for read in reads]), hidden=hidden.flatten(1, 2)
        )
        attend = attending(question, self.answer, reads, tensors_before=2 * layer, known=self.known)
        logits, _ = model(by, tokens, attend)
        logits = logits.unflatten(1, ids.shape)
        last_logits = logits[:, torch.arange(len(ids)), last]
        claimed = question.claimed.get("topk_index")
        picked, sure = largest(last_logits, 1, None if claimed is None else claimed[:, layer : layer + 1])
        name = f"next_token_logits.{layer}"
        self.answer.floats[name], self.answer.known[name] = logits, self.known
        self._picked.append(picked)
        self._sure.append(sure & self.known[:, None])
        self._shares.append(op.shares(by, last_logits).gather(-1, picked.expand(len(last_logits), *picked.shape)))
        self.known = self.known & sure[:, 0]
        return picked[:, 0]

    def answered(self) -> Answer:
        sure = torch.cat(self._sure, dim=1)
        self.answer.integers["topk_index"] = (torch.cat(self._picked, dim=1), sure)
        self.answer.floats["topk_p"] = torch.cat(self._shares, dim=-1)[:, :, None]
        self.answer.known["topk_p"] = sure.all(dim=1)
        return self.answer
