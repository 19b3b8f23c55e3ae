"""The target's calls: one token a request, or a tree of them."""

from __future__ import annotations

import torch

from repro.cases.layout import Ints
from repro.cases.tree import ancestors
from runners.releases.live import Live
from runners.releases.reference.llama import Tokens, read
from runners.releases.reference.question import Answer, Question, Reference
from runners.releases.reference.reading import Read, attending


def decode(live: Live) -> Reference | None:
    """logits: of each request's token."""
    model = read(live.target.model_runner.model, live.setup.vocab_size)
    if model is None:
        return None

    def run(question: Question) -> Answer:
        answer = Answer()
        reads = [
            Read(
                old=question.table[request.slot, : request.seq_len - 1],
                own=question.table[request.slot, request.seq_len - 1 : request.seq_len],
                positions=torch.tensor([request.seq_len - 1]),
                sees=torch.ones(1, 1, dtype=torch.bool),
            )
            for request in question.requests
        ]
        tokens = Tokens(ids=question.given["input_ids"], positions=torch.cat([read.positions for read in reads]))
        logits, _ = model(question.by, tokens, attending(question, answer, reads))
        answer.floats["logits"] = logits[:, :, None]
        return answer

    return run


def verify(live: Live) -> Reference | None:
    """logits, hidden_states: of all tokens of the trees."""
    setup = live.setup
    model = read(live.target.model_runner.model, setup.vocab_size)
    if model is None:
        return None

    def run(question: Question) -> Answer:
        answer, given = Answer(), question.given
        reads = []
        for row, request in enumerate(question.requests):
            sees = tree(question, row)
            slots: Ints = question.table[request.slot]
            reads.append(
                Read(
                    old=slots[: request.seq_len],
                    own=slots[request.seq_len : request.seq_len + setup.num_draft_tokens],
                    positions=request.seq_len + sees.sum(dim=1) - 1,
                    sees=sees,
                )
            )
        ids = torch.cat((given["bonus_tokens"][:, None], given["tokens"]), dim=1).flatten()
        tokens = Tokens(ids=ids, positions=torch.cat([read.positions for read in reads]))
        logits, hidden = model(question.by, tokens, attending(question, answer, reads))
        shape = (len(reads), setup.num_draft_tokens)
        answer.floats |= {"logits": logits.unflatten(1, shape), "hidden_states": hidden.unflatten(1, shape)}
        return answer

    return run


def tree(question: Question, row: int) -> torch.Tensor:
    """Which tokens of a request's tree each of them attends to, bool."""
    selected, parents = (question.given[name][row].numpy() for name in ("scores_index", "parents"))
    return torch.from_numpy(ancestors(question.setup, selected, parents)).bool()
