"""The messages that a scheduler without a server takes: requests, and what ends them."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sglang.srt.managers import io_struct
from sglang.srt.sampling.sampling_params import SamplingParams

from runners.releases.options import lora
from runners.releases.options.images import Image

# The lowest temperature that sglang does not take for greedy, at which the second best token's probability is 0 but
# where two are as likely, within rounding.
COLD = 1.1e-6
_NONE: Mapping[int, float] = MappingProxyType({})


def request(
    rid: str,
    prompt: Sequence[int],
    count: int,
    *,
    alone: bool = False,
    logprobs: bool = False,
    logprob_start_len: int = -1,
    states: bool = False,
    sampled: bool = False,
    heeds_eos: bool = False,
    stops: Collection[int] = (),
    biases: Mapping[int, float] = _NONE,
    image: Image | None = None,
    adapter: int = 0,
    grammar: int | None = None,
) -> Any:
    """A request for so many tokens, whatever they are. alone: it shares no prefix with another one. logprobs, states:
    it asks for their log-probabilities, or for hidden states. logprob_start_len: and for those of its prompt from this
    token on; -1: for none. sampled: it is not greedy, but as cold. heeds_eos: a token might end it. stops: these do.
    biases: of logits, by their tokens. image: in its
    prompt. adapter: the one that serves it, counted from 1; 0: none. grammar: the number of tokens by which its grammar
    ends the text (0: it does not); None: it has none."""
    kind: Any = io_struct.TokenizedGenerateReqInput
    temperature = COLD if sampled else 0.0
    sampling = SamplingParams(
        max_new_tokens=count,
        temperature=temperature,
        ignore_eos=not (heeds_eos or stops),
        stop_token_ids=sorted(stops) or None,
        logit_bias={str(token): bias for token, bias in biases.items()} or None,
    )
    sampling.regex = None if grammar is None else str(grammar)
    sampling.normalize(None)
    fields: dict[str, Any] = {
        "rid": rid,
        "input_text": "",
        "input_ids": array("q", prompt),
        "sampling_params": sampling,
        "return_logprob": logprobs,
        "return_hidden_states": states,
        "logprob_start_len": logprob_start_len,
        "top_logprobs_num": 0,
        "token_ids_logprob": None,
        "stream": True,
        "mm_inputs": image.brought(list(prompt)) if image else None,
        "lora_id": lora.name_of(adapter),
    }
    if alone:
        fields["extra_key"] = rid
    parameters = inspect.signature(kind).parameters
    required = {name: None for name, each in parameters.items() if each.default is inspect.Parameter.empty}
    return kind(**(required | fields))


def aborting(rid: str = "") -> Any:
    """Ends a request, or all."""
    return io_struct.AbortReq(rid=rid, abort_all=not rid)
