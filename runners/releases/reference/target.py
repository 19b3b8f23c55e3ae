"""The target's calls: one token a request, a tree of them, or a chain."""

from __future__ import annotations

from collections.abc import Callable

import torch

from repro.cases.layout import Ints
from repro.cases.tree import ancestors, parents_of
from runners.releases.live import RETURNED, Live
from runners.releases.reference.llama import Tokens
from runners.releases.reference.models import read
from runners.releases.reference.question import Answer, Question, Reference
from runners.releases.reference.reading import Read, attending


def decode(live: Live) -> Reference | None:
    """logits: of each request's token; and its hidden state, which some batches ask for."""
    model = read(live.target.model_runner.model, live.setup.vocab_size)
    if model is None:
        return None

    def run(question: Question) -> Answer:
        answer = Answer()
        reads = [
            Read(
                old=question.table[request.slot, : request.seq_len - 1],
                new=question.table[request.slot, request.seq_len - 1 : request.seq_len],
                positions=torch.tensor([request.seq_len - 1]),
                sees=torch.ones(1, 1, dtype=torch.bool),
            )
            for request in question.requests
        ]
        tokens = Tokens(ids=question.given["input_ids"], positions=torch.cat([read.positions for read in reads]))
        logits, hidden = model(question.by, tokens, attending(question, answer, reads))
        answer.floats |= {"logits": logits[:, :, None], RETURNED: hidden[:, :, None]}
        return answer

    return run


def verify(live: Live) -> Reference | None:
    """logits, hidden_states: of all tokens of the trees, their roots first."""

    def ids(question: Question) -> torch.Tensor:
        batch = question.given
        return torch.cat((batch["bonus_tokens"][:, None], batch["tokens"]), dim=1).flatten()

    return _verified(live, ids, tree)


def verify_chain(live: Live) -> Reference | None:
    """The same of trees that are chains, whose tokens, [n, num_draft_tokens], are given as such."""
    size = live.setup.num_draft_tokens

    def chain(question: Question, row: int) -> torch.Tensor:
        return torch.ones(size, size).tril().bool()

    return _verified(live, lambda question: question.given["tokens"].flatten(), chain)


def _verified(
    live: Live, ids: Callable[[Question], torch.Tensor], sees_of: Callable[[Question, int], torch.Tensor]
) -> Reference | None:
    """ids: of all tokens. sees_of: which tokens of a row's tree each of them attends to."""
    setup = live.setup
    model = read(live.target.model_runner.model, setup.vocab_size)
    if model is None:
        return None

    def run(question: Question) -> Answer:
        answer, reads = Answer(), []
        for row, request in enumerate(question.requests):
            sees = sees_of(question, row)
            slots: Ints = question.table[request.slot]
            reads.append(
                Read(
                    old=slots[: request.seq_len],
                    new=slots[request.seq_len : request.seq_len + setup.num_draft_tokens],
                    positions=request.seq_len + sees.sum(dim=1) - 1,
                    sees=sees,
                )
            )
        tokens = Tokens(ids=ids(question), positions=torch.cat([read.positions for read in reads]))
        logits, hidden = model(question.by, tokens, attending(question, answer, reads))
        shape = (len(reads), setup.num_draft_tokens)
        answer.floats |= {"logits": logits.unflatten(1, shape), "hidden_states": hidden.unflatten(1, shape)}
        return answer

    return run


def tree(question: Question, row: int) -> torch.Tensor:
    """The tokens of a request's tree that each of them attends to, bool."""
    selected, parents = (question.given[name][row].numpy() for name in ("scores_index", "parents"))
    return torch.from_numpy(ancestors(parents_of(question.setup, selected, parents))).bool()
