"""The text that a request should get: the target in float64 over prompt and text, each token from those before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from repro.cases.layout import Ints
from runners.recording.observer import Unsupported
from runners.releases.options.images import Image
from runners.releases.reference import operations as op
from runners.releases.reference.drafts import Drafted, Drafter
from runners.releases.reference.llama import Attend, Model, Scores, Tokens, exact
from runners.releases.reference.models import read_whole
from runners.releases.reference.rounding import Rounding

# How many times a pass is made with other roundings. A spread over many is not asked for, only how large noise is.
SAMPLES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """NaN is of tokens of which nothing is known, as rounding may turn their choice of keys. logits, states: of the
    target, float64, [n, vocabulary] and [n, hidden]. best: the token with the largest logit
    at each place of a text, [n]. behind: how far that of the text's own token lies below it, [n]. likely: its
    log-probability, [n]. prompt: the log-probability of each token of the prompt behind its first, [m]. noise,
    prompt_noise, states_noise: how far rounding to the model's type moves a logit of this text or of its prompt, or an
    entry of a hidden state of the text. whole: prompt and text, [tokens + 1]; every: the hidden states of all but the
    last token with their samples, [samples, tokens, hidden]. kept, kept_noise: states of recurrent layers, by layer,
    [n], in one number, as the text's token finds them, and how far rounding moves one."""

    logits: torch.Tensor
    states: torch.Tensor
    best: Ints
    behind: npt.NDArray[np.float64]
    likely: npt.NDArray[np.float64]
    prompt: npt.NDArray[np.float64]
    noise: float
    prompt_noise: float
    states_noise: float
    whole: Ints
    every: torch.Tensor
    kept: Mapping[str, torch.Tensor] = field(default_factory=dict)
    kept_noise: Mapping[str, float] = field(default_factory=dict)

    def states_off(self, states: Sequence[Sequence[float]]) -> list[float]:
        """The largest distance of each of these hidden states from that of its place; infinite from one that there is
        not, or of another width."""
        count, width = self.states.shape
        unknown = self.states.isnan().any(dim=1)
        return [
            float(
                (torch.tensor(state, dtype=torch.float64) - self.states[place]).abs().amax().where(~unknown[place], 0.0)
            )
            if place < count and len(state) == width
            else float("inf")
            for place, state in enumerate(states)
        ]


class Teacher:
    """A target whose weights are read when this is made. model: sglang's. dtype: of its values. kv_dtype: of keys and
    values, which count as rounded to it whether a kernel takes them from the cache or not. deterministic: linear layers
    round as in deterministic inference. drafter: its draft model, if one is known. adapted: while one of these is
    entered, the model is read with an adapter. Unsupported."""

    def __init__(
        self,
        model: Any,
        vocab: int,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        *,
        on_gpu: bool,
        deterministic: bool = False,
        drafter: Drafter | None = None,
        adapted: Iterable[AbstractContextManager[None]] = (),
    ) -> None:
        self._runs, self._vocab = [_whole(model, vocab)], vocab
        for merged in adapted:
            with merged:
                self._runs.append(_whole(model, vocab))
        self._dtype, self._kv_dtype, self._on_gpu, self._drafter = dtype, kv_dtype, on_gpu, drafter
        self._deterministic = deterministic

    def _rounding(self, seed: int) -> Rounding:
        return Rounding(
            self._dtype,
            self._kv_dtype,
            on_gpu=self._on_gpu,
            seed=seed,
            deterministic=self._deterministic,
            samples=SAMPLES,
        )

    def behind(self, judged: Judged, drafted: Sequence[Drafted]) -> tuple[list[float], float]:
        """The distances of drafts, in the words of Drafter; none where none is known."""
        by = self._rounding(len(judged.whole))
        return self._drafter.behind(by, judged.whole, _anyhow(judged.every), drafted) if self._drafter else ([], 0.0)

    def judge(
        self,
        prompt: Ints,
        text: Sequence[int],
        added: torch.Tensor,
        image: Image | None = None,
        adapter: int = 0,
    ) -> Judged:
        """text: one token or more. One that the vocabulary lacks is infinitely far behind the best, and goes on as the
        last one that it has. added: to the text's logits, [text, vocabulary]; where it is -inf, they count as 0.
        image: in the prompt. adapter: of the request, counted from 1; 0: none."""
        known = torch.tensor([0 <= token < self._vocab for token in text])
        chosen = torch.tensor(list(text)).clamp(0, self._vocab - 1)
        ids = torch.cat([torch.from_numpy(np.asarray(prompt, dtype=np.int64)), chosen[:-1]])
        by = self._rounding(len(ids))
        tokens = Tokens(
            ids=ids,
            positions=image.positions(len(ids)) if image else torch.arange(len(ids)),
            shown=(image.first, exact(image.embeddings)) if image else None,
        )
        logits, every = self._runs[adapter](by, tokens, causal(by))
        first = len(prompt) - 1
        of_prompt = logits[:, :first]
        logits, states = (each[:, first:] for each in (logits, every))
        kept = {name: each[:, first:] for name, each in tokens.kept.items()}
        right = logits[0] + added
        unknown = right.isnan().any(dim=-1)
        behind = right.amax(dim=-1) - right.gather(-1, chosen[:, None])[:, 0]
        likely = right.log_softmax(dim=-1).gather(-1, chosen[:, None])[:, 0]
        return Judged(
            logits=right.masked_fill(added == -torch.inf, 0.0),
            states=states[0],
            best=right.argmax(dim=-1).where(~unknown, chosen).numpy(),
            behind=behind.masked_fill(~known, torch.inf).masked_fill(unknown, torch.nan).numpy(),
            likely=likely.masked_fill(~known, -torch.inf).numpy(),
            prompt=of_prompt[0].log_softmax(dim=-1).gather(-1, ids[1 : len(prompt), None])[:, 0].numpy(),
            noise=_reach(logits),
            prompt_noise=_reach(of_prompt) if first else 0.0,
            states_noise=_reach(states),
            whole=torch.cat((ids, chosen[-1:])).numpy(),
            every=every,
            kept={name: each[0] for name, each in kept.items()},
            kept_noise={name: float((each[1:] - each[0]).abs().amax()) for name, each in kept.items()},
        )


def _whole(model: Any, vocab: int) -> Model:
    run = read_whole(model, vocab)
    if run is None:
        raise Unsupported(f"no text is known of a {type(model).__name__}")
    return run


def _reach(values: torch.Tensor) -> float:
    """The most that rounding moves one of these that is known. values: [samples, tokens, n]."""
    return float((values[1:] - values[0]).abs().nan_to_num(0.0).amax())


def _anyhow(states: torch.Tensor) -> torch.Tensor:
    """Hidden states of which those that are not known may be anything of their size. states: [samples, tokens, n]."""
    signs = torch.tensor([0.0, *(1.0 - 2.0 * (sample % 2) for sample in range(len(states) - 1))], dtype=states.dtype)
    return torch.where(states.isnan(), signs.view(-1, 1, 1), states)


def causal(by: Rounding) -> Attend:
    """Attention of each token over those before it and itself, none of which lie in a cache."""

    def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scores: Scores) -> torch.Tensor:
        place = torch.arange(queries.shape[1])
        before = place[:, None] - place
        seen = op.Attended(
            keys=keys[0, :0],
            values=values[0, :0],
            new_keys=keys,
            new_values=values,
            mask=(before >= 0) & ((before <= scores.window) | (scores.window < 0)),
        )
        if scores.choice is None:
            return op.attention(by, queries, seen, scores.scaling, scores.logit_cap, scores.sinks)
        seen, unknown = scores.choice.restricted(seen)
        return op.attention(by, queries, seen, scores.scaling).masked_fill(unknown[:, None], torch.nan)

    return attend
