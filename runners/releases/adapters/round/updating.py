"""The messages by which a server's weights are updated while it serves, with parameters under a checkpoint's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sglang.srt.managers import io_struct
from sglang.srt.utils import MultiprocessingSerializer

from repro.cases.runner_facts import FROM_TABLE, IN_BLOCKS

Named = Mapping[str, torch.Tensor]
# Opens an update of several messages, which names the models that each is for, since 0.5.21.
_BEGINS, _ENDS = "BeginWeightUpdateReqInput", "EndWeightUpdateReqInput"
_ANSWERS = "WeightsFromTensorReqOutput", "WeightUpdateReqOutput"
# Parameters that sglang joins to one, in the order of its rows.
_JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
# Parameters that a draft model shares with its target, and how many of these where not all.
_OF_TARGET, _OWN = ("embed_tokens", "lm_head"), {"EAGLE3": 1, "STANDALONE": 0}
# A draft whose checkpoint leaves this out.
_WITHOUT_PREFIX, _PREFIX = "LlamaForCausalLMEagle", "model."


def reaches_draft() -> bool:
    """True if a draft model can be sent weights of its own. Before 0.5.21 it is given the target's, or none."""
    return hasattr(io_struct, _BEGINS)


def messages(target: Named, draft: Named, algorithm: str) -> list[Any]:
    """The messages of one update, the last of which flushes the cache. draft: empty if there is nothing for it."""
    # Weights travel between processes by handles; here there is one process, and the message holds them.
    handles: Any = MultiprocessingSerializer
    handles.deserialize = staticmethod(_as_it_is)
    kind: Any = io_struct.UpdateWeightsFromTensorReqInput
    if not reaches_draft():
        # A worker without a model that would take them for its own passes them on to its target.
        passed_on = algorithm in FROM_TABLE | IN_BLOCKS
        return [kind(serialized_named_tensors=[list(target.items())], disable_draft_model=not passed_on)]
    parts = [(whose, named) for whose, named in (("target", target), ("draft", draft)) if named]
    sent = [
        kind(serialized_named_tensors=[list(named.items())], selector=whose, flush_cache=number == len(parts))
        for number, (whose, named) in enumerate(parts, start=1)
    ]
    return [getattr(io_struct, _BEGINS)(), *sent, getattr(io_struct, _ENDS)()]


def _as_it_is(data: Any) -> Any:
    return data


def refusals(sent: Sequence[Any]) -> list[str]:
    """The words in which sglang refused an update, of all messages that it sent."""
    answers = (message for message in sent if type(message).__name__.endswith(_ANSWERS))
    return [str(answer.message) for answer in answers if not answer.success]


def of_target(network: Any) -> dict[str, torch.Tensor]:
    """Copies of a network's parameters, under the names that a checkpoint has for them."""
    return {
        name: values
        for whole, parameter in network.named_parameters()
        for name, values in _split(network, whole, parameter.detach().clone()).items()
    }


def of_draft(network: Any, algorithm: str) -> dict[str, torch.Tensor]:
    """The same of a draft model, whose checkpoint lacks what it has of its target."""
    lacks = _OF_TARGET[: _OWN.get(algorithm, len(_OF_TARGET))]
    named = {name: values for name, values in of_target(network).items() if not any(each in name for each in lacks)}
    if type(network).__name__ == _WITHOUT_PREFIX:
        return {name.removeprefix(_PREFIX): values for name, values in named.items()}
    return named


def _split(network: Any, name: str, values: torch.Tensor) -> dict[str, torch.Tensor]:
    """A parameter as a checkpoint has it: in parts where sglang joins some, without rows that fill up a vocabulary."""
    owner, _, kind = name.rpartition(".")
    place, _, module = owner.rpartition(".")
    if rows := getattr(network.get_submodule(owner), "org_vocab_size", 0):
        return {name: values[:rows]}
    if module not in _JOINED:
        return {name: values}
    parts, layer = _JOINED[module], network.get_submodule(place)
    sizes = [layer.q_size, layer.kv_size, layer.kv_size] if module == "qkv_proj" else [len(values) // len(parts)] * 2
    return {f"{place}.{part}.{kind}": rows for part, rows in zip(parts, values.split(sizes), strict=True)}
