"""The draft model over the tokens that a verify has judged."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runners.releases.live import Live
from runners.releases.options import algorithms
from runners.releases.reference import operations as op
from runners.releases.reference.chosen import largest
from runners.releases.reference.llama import Tokens
from runners.releases.reference.models import read
from runners.releases.reference.question import Answer, Question, Reference, given_positions
from runners.releases.reference.reading import Read, attending

Make = Callable[[Live], Reference | None]


def read_behind(question: Question) -> list[Read]:
    """The reads of each request: as many tokens as the tree was wide, each behind those before it."""
    width = question.setup.num_draft_tokens
    return [
        Read(
            old=question.table[request.slot, : request.seq_len],
            new=question.table[request.slot, request.seq_len : request.seq_len + width],
            positions=request.seq_len + torch.arange(width),
            sees=torch.ones(width, width, dtype=torch.bool).tril(),
        )
        for request in question.requests
    ]


def drawing(make: Make, *dropped: str) -> Make:
    """The same call where it gives the logits of each request's last accepted token alone, and these outputs not at
    all."""

    def made(live: Live) -> Reference | None:
        reference = make(live)
        if reference is None:
            return None

        def run(question: Question) -> Answer:
            answer = reference(question)
            rows = torch.arange(len(question.requests))
            last = torch.tensor([request.accepted for request in question.requests])
            for name in list(answer.floats):
                if name.startswith("next_token_logits"):
                    answer.floats[name] = answer.floats[name][:, rows, last][:, :, None]
            for name in dropped:
                del answer.floats[name]
            return answer

        return run

    return made


def draft_extend(live: Live) -> Reference | None:
    """next_token_logits, hidden_states: of all tokens. topk_index, topk_p, next_hidden_states: of the last accepted
    token of each request."""
    setup = live.setup
    model = read(live.draft.draft_runner.model, algorithms.draft_vocab(setup))
    if model is None:
        return None

    def run(question: Question) -> Answer:
        answer, by, reads = Answer(), question.by, read_behind(question)
        tokens = Tokens(
            ids=question.given["input_ids"].flatten(),
            positions=given_positions(question, torch.cat([read.positions for read in reads])),
            hidden=question.exact("hidden_states").flatten(1, 2),
        )
        logits, hidden = model(by, tokens, attending(question, answer, reads))
        shape = (len(reads), setup.num_draft_tokens)
        logits, hidden = logits.unflatten(1, shape), hidden.unflatten(1, shape)
        rows, last = torch.arange(len(reads)), torch.tensor([request.accepted for request in question.requests])
        picked, known = largest(logits[:, rows, last], setup.topk, question.claimed.get("topk_index"))
        shares = op.shares(by, logits[:, rows, last]).gather(-1, picked.expand(len(logits), *picked.shape))
        answer.floats |= {
            "next_token_logits": logits,
            "hidden_states": hidden,
            "topk_p": shares[:, :, None],
            "next_hidden_states": hidden[:, rows, last][:, :, None],
        }
        answer.integers["topk_index"] = (picked, known)
        return answer

    return run
