"""This process as the first of two ranks under data-parallel attention (enable_dp_attention, dp_size 2): graphs are
captured with buffers for the tokens of both, and the busiest rank says which one is replayed. The other rank is only
told of: dense models of ranks with one device each exchange nothing, so eager computes what it would alone."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from repro.cases.buffer_facts import DP_RANKS, GATHERED

# What graph runners, and what they are made of, ask while they are constructed, and the answers.
_PACKAGES = ("sglang.srt.model_executor.", "sglang.srt.speculative.")
_ANSWERS = {
    "require_gathered_buffer": True,
    "require_mlp_tp_gather": True,
    "require_mlp_sync": True,
    "deployment_attn_dp_size": DP_RANKS,  # since 0.5.21
}
# What gives the ranks since 0.5.17, and what of them is another.
_CONTEXT, _OF_CONTEXT = "get_parallel", {"dp_size": DP_RANKS, "num_dp_ranks": DP_RANKS}
# What a batch says: that all ranks may replay (by one to three names), their tokens, and their requests.
_MAY_REPLAY = {"can_run_dp_cuda_graph", "can_run_decode_cuda_graph", "can_run_dp_draft_cuda_graph"}
_BATCHES = "sglang.srt.model_executor.forward_batch_info"
_PLACE = "dp_slot_in"
_TOKENS, _REQUESTS = "global_num_tokens_cpu", "original_global_num_tokens_cpu"


@contextmanager
def one_of_two(model_runners: Sequence[Any]) -> Iterator[None]:
    """While entered, graph runners of these model runners are constructed as one of two ranks has them."""
    with ExitStack() as stack:
        modules = [(module, vars(module)) for name, module in sys.modules.items() if name.startswith(_PACKAGES)]
        for module, names in modules:
            for name_of in _ANSWERS.keys() & names.keys():
                stack.enter_context(patch.object(module, name_of, partial(_answer, _ANSWERS[name_of])))
            if _CONTEXT in names:
                stack.enter_context(patch.object(module, _CONTEXT, partial(_with_two, names[_CONTEXT])))
        for runner in model_runners:
            if hasattr(runner, "dp_size"):
                stack.enter_context(patch.object(runner, "dp_size", DP_RANKS))
            if hasattr(runner, "ps"):
                ranks = dataclasses.replace(runner.ps, attn_dp_size=DP_RANKS, dp_size=DP_RANKS)
                stack.enter_context(patch.object(runner, "ps", ranks))
            if _is_writable(runner.server_args):
                stack.enter_context(patch.object(runner.server_args, "dp_size", DP_RANKS))
        yield


def tell(batch: Any, requests: Sequence[int], each: int) -> None:
    """Tell a batch how many requests each rank has, of so many tokens each, and that all may replay a graph."""
    fields: dict[str, Any] = dict.fromkeys(_MAY_REPLAY, True)
    fields |= {_TOKENS: [each * count for count in requests], _REQUESTS: list(requests)}
    for name in fields.keys() & type(batch).__dataclass_fields__.keys():
        setattr(batch, name, fields[name])


def tell_unreplayed(batch: Any, requests: Sequence[int], each: int) -> None:
    """The same of a batch that no graph takes, as init_new tells it: MLP synchronisation pads it for the busy rank."""
    tell(batch, requests, each)
    tokens = [each * count for count in requests]
    batch.lora_ids = [None] * requests[0]
    for name in _MAY_REPLAY & type(batch).__dataclass_fields__.keys():
        setattr(batch, name, False)
    for name in ("global_num_tokens", "global_num_tokens_for_logprob"):
        setattr(batch, f"{name}_cpu", list(tokens))
        setattr(batch, f"{name}_gpu", torch.tensor(tokens, dtype=torch.int64, device=batch.seq_lens.device))


@contextmanager
def unreplayed() -> Iterator[None]:
    """While entered, MLP synchronisation pads as on a GPU, and this rank's place in a list of both is the first; since
    0.5.21 sglang asks the group for it, whose size is one here."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(sys.modules[_BATCHES], "_is_cpu", False, create=True))
        for name, module in [*sys.modules.items()]:
            if name.startswith("sglang.srt.") and _PLACE in vars(module):
                stack.enter_context(patch.object(module, _PLACE, lambda ranks: 0))
        yield


def gathered(runner: Any) -> dict[str, torch.Tensor]:
    """The buffers of a graph runner that say how many tokens each rank has."""
    buffers = {name: getattr(runner.buffers, name, None) for name in GATHERED}
    return {name: tensor for name, tensor in buffers.items() if tensor is not None}


class _Two:
    """A source of ranks, with two of them."""

    def __init__(self, rank: Any) -> None:
        self._one = rank

    def __getattr__(self, name: str) -> Any:
        return _OF_CONTEXT[name] if name in _OF_CONTEXT else getattr(self._one, name)


def _with_two(size_of: Callable[[], Any]) -> _Two:
    return _Two(size_of())


def _is_writable(server_args: Any) -> bool:
    """Since 0.5.17 they cannot be changed, and are not asked for the ranks."""
    try:
        server_args.dp_size = server_args.dp_size
    except AttributeError:
        return False
    return True


def _answer(answer: object, *args: object, **kwargs: object) -> object:
    return answer
