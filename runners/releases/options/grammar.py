"""Requests with a grammar: sglang's own objects of xgrammar's backend, with a stand-in for xgrammar's compiled matcher.

The grammar of all forbids one token of four, by the token before and by its place in the text, and may end a text.
"""

from __future__ import annotations

import importlib
from concurrent.futures import Future
from typing import Any

import torch

from repro.cases.case import Setup
from runners.engines.active import engine
from runners.releases.options.recurrent import rewrite

_BITS = 32
# One token of so many is forbidden, another one behind each token and at each place.
_PERIOD, _STRIDE = 4, 3


def allowed(tokens: int, text: list[int]) -> torch.Tensor:
    """The tokens that may follow these, of a vocabulary of so many: [tokens], bool."""
    last = text[-1] if text else 0
    rest: torch.Tensor = (torch.arange(tokens) + _STRIDE * last + len(text)) % _PERIOD
    return rest != 0


def along(tokens: int, text: list[int]) -> torch.Tensor:
    """-inf for the tokens that are forbidden at each place of a text, else 0: [len(text), tokens], float64."""
    forbidden = torch.stack([~allowed(tokens, text[:place]) for place in range(len(text))])
    return torch.zeros(forbidden.shape, dtype=torch.float64).masked_fill(forbidden, -torch.inf)


class Matcher:
    """Stands in for xgrammar's GrammarMatcher, but ends without a stop token. compiled: the number of tokens that end
    the text; 0: none does."""

    def __init__(self, compiled: int, **_: object) -> None:
        self._most = compiled
        self._text: list[int] = []

    def accept_token(self, token: int) -> bool:
        """False of a token that is forbidden here."""
        accepted = not self.is_terminated() and bool(allowed(token + 1, self._text)[token])
        self._text += [token] * accepted
        return accepted

    def rollback(self, count: int) -> None:
        del self._text[len(self._text) - count :]

    def is_terminated(self) -> bool:
        return 0 < self._most <= len(self._text)

    def fill_next_token_bitmask(self, mask: torch.Tensor, row: int) -> None:
        """mask: [rows, words], int32, a bit a token, which is set where the token is allowed."""
        bits = allowed(mask.shape[1] * _BITS, self._text).view(-1, _BITS).long()
        words = (bits << torch.arange(_BITS)).sum(dim=1)
        mask[row] = torch.where(words >= 2 ** (_BITS - 1), words - 2**_BITS, words).int()


def prepare(scheduler: Any, setup: Setup) -> None:
    """Give the scheduler a backend, as it makes none without a tokenizer."""
    if setup.grammar:
        _answer_as_on_gpus()
        scheduler.grammar_manager.grammar_backend = _backend(scheduler.model_config.vocab_size)


def _answer_as_on_gpus() -> None:
    """Have a tree's copies to the host end with an event, which those of tensors on a CPU lack (since 0.5.17)."""
    tree = getattr(importlib.import_module("sglang.srt.speculative.spec_utils"), "GrammarTree", None)
    if tree is not None and engine.device == "cpu":
        rewrite(tree.from_device.__func__, r'if t\.device\.type != "cpu"', "")


def _backend(vocabulary: int) -> Any:
    """A backend whose regular expressions are numbers of tokens. It compiles at once, so that requests are ready in the
    same iteration each time."""
    # xgrammar is imported with these, which releases without cases of it need not do.
    from sglang.srt.constrained import base_grammar_backend, xgrammar_backend

    def shape(rows: int, tokens: int) -> tuple[int, int]:
        return rows, -(-tokens // _BITS)

    vars(xgrammar_backend).update(
        GrammarMatcher=Matcher,
        bitmask_dtype=torch.int32,
        get_bitmask_shape=shape,
        allocate_token_bitmask=lambda rows, tokens: torch.full(shape(rows, tokens), -1, dtype=torch.int32),
    )
    kind: Any = xgrammar_backend.XGrammarGrammar
    # As on a GPU.
    kind.apply_vocab_mask = lambda self, logits, vocab_mask: xgrammar_backend.apply_token_bitmask_inplace_triton(
        logits, vocab_mask
    )

    class Compiling(base_grammar_backend.BaseGrammarBackend):
        def __init__(self) -> None:
            super().__init__()
            self.executor = _AtOnce()

        def dispatch_regex(self, key_string: str) -> Any:
            most = int(key_string)
            return kind(Matcher(most), vocabulary, most, None, key_string)

    return Compiling()


class _AtOnce:
    """An executor without threads."""

    def submit(self, function: Any, *args: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*args))
        return done
