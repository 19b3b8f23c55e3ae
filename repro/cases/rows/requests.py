"""The options of requests and of what they ask of a text: rows of OPTIONS (repro/cases/options.py)."""

from __future__ import annotations

from collections.abc import Sequence

from repro.cases.families import family_facts
from repro.cases.option import HARNESS, Need, Option
from repro.cases.runner_facts import WITHOUT_STEPS
from repro.cases.setup import Setup

SERVES = Need(lambda s, r, b: r.serves, "the {s.runner} runner has no scheduler")
SANITIZE = "SGLANG_SANITIZE_NAN_LOGITS"
# The logits that are not numbers: of both models, or of the draft model alone.
OF_TARGET, OF_DRAFT = "target", "draft"
# One token of so many has a bias, or ends a text.
_BIASED, _STOPPING = 4, 8
# The bias: more than most logits differ by, and small enough to cost float32 no digits that count.
BIAS = -4.0


def lacks_numbers(setup: Setup, step: int, row: int) -> bool:
    """True of a request, by its place in the case, whose logits are not numbers: every other one."""
    return bool(setup.nan_logits) and (step + row) % 2 == 1


def has_grammar(setup: Setup, step: int, row: int) -> bool:
    """True of a request, by its place in the case, with a grammar: every other one."""
    return setup.grammar and (step + row) % 2 == 0


def text_tokens(setup: Setup, step: int, row: int, further: int) -> int:
    """Tokens of a request's text: as many as it asks for, or half where its grammar ends it, as every other one
    does."""
    ends = has_grammar(setup, step, row) and (step + row) % 4 == 0
    return 1 + further // 2 if ends else 1 + further


def biases(setup: Setup, step: int, row: int) -> dict[int, float]:
    """The bias of tokens' logits that a request brings, by its place in the case: every third one brings some."""
    place = step + row
    if not setup.logit_bias or place % 3:
        return {}
    return {token: BIAS for token in range(setup.vocab_size) if (token + place) % _BIASED == 0}


def stop_tokens(setup: Setup, step: int, row: int) -> frozenset[int]:
    """The tokens that end a request's text, by its place in the case: every third one has some."""
    place = step + row
    if not setup.stop_token_ids or place % 3 != 1:
        return frozenset()
    return frozenset(token for token in range(setup.vocab_size) if (token + place) % _STOPPING == 0)


def text_end(setup: Setup, step: int, row: int, further: int, text: Sequence[int]) -> int:
    """Tokens of a request's whole text, if it begins with these: it ends with its first stop token, or by its
    length."""
    stops = stop_tokens(setup, step, row)
    first = next((place for place, token in enumerate(text) if token in stops), further)
    return min(1 + first, text_tokens(setup, step, row, further))


ROWS: tuple[Option, ...] = (
    Option(
        field="nan_logits",
        name="nan_logits",
        part=HARNESS,
        meaning="every other request, from the second of the first step on, has a token in its prompt whose embedding "
        "is NaN: in both models (target), or in the draft model alone (draft)",
        choices=("", OF_TARGET, OF_DRAFT),
        if_set=(
            SERVES,
            Need(lambda s, r, b: not s.images, "an image may lie where the token would"),
            Need(lambda s, r, b: not s.dp_attention, "logits that are not numbers have no model beside another rank"),
            Need(lambda s, r, b: not family_facts(s).frozen, "{s.family} models have one matrix for tokens and logits"),
            Need(
                lambda s, r, b: s.nan_logits != OF_DRAFT or s.algorithm not in WITHOUT_STEPS,
                "the {s.algorithm} algorithm's drafts have no embeddings of their own",
            ),
            Need(
                lambda s, r, b: s.nan_logits != OF_TARGET or s.sanitizes or not (s.sampled or s.rejection),
                f"PyTorch samples from no probabilities that are not numbers: that needs {SANITIZE}",
            ),
            Need(
                lambda s, r, b: s.nan_logits != OF_TARGET or not s.rejection,
                "random drafts draw other numbers in a graph, which decide where all tokens are as likely",
            ),
        ),
        drawn=(OF_TARGET, OF_DRAFT),
        later=True,
        words="logits that are not numbers, of the {0}",
    ),
    Option(
        field="sanitizes",
        name=SANITIZE,
        part=HARNESS,
        meaning="sglang replaces logits that are not numbers before it samples",
        if_set=(SERVES,),
        drawn=(True,),
        later=True,
        words="logits that are sanitized",
    ),
    Option(
        field="grammar",
        name="grammar",
        part=HARNESS,
        meaning="every other request, from the first on, has a grammar that forbids one token of four, by the token "
        "before; every other grammar ends its text half way",
        if_set=(
            SERVES,
            Need(lambda s, r, b: not s.nan_logits, "a mask over logits that are not numbers leaves no right token"),
        ),
        drawn=(True,),
        later=True,
        words="requests with a grammar",
    ),
    Option(
        field="logit_bias",
        name="logit_bias",
        part=HARNESS,
        meaning="every third request, from the first on, lowers the logits of one token of four",
        if_set=(
            SERVES,
            Need(lambda s, r, b: not s.nan_logits, "a bias on logits that are not numbers changes nothing"),
        ),
        drawn=(True,),
        later=True,
        words="requests with a bias",
    ),
    Option(
        field="stop_token_ids",
        name="stop_token_ids",
        part=HARNESS,
        meaning="every third request, from the second on, ends with the first token of its text that is one of an "
        "eighth of the vocabulary",
        if_set=(
            SERVES,
            Need(lambda s, r, b: not s.nan_logits, "any token may be sampled from logits that are not numbers"),
        ),
        drawn=(True,),
        later=True,
        words="requests with stop tokens",
    ),
)
