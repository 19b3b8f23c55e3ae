"""The aim of a campaign like a server: its flags are carried over, scaled down or not driven."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fuzz.aiming import SPECULATIVE, Asked, pairs, smallest_of
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Setup
from repro.cases.close_names import close_to
from repro.cases.families import FAMILY_FACTS, families, family_of_path
from repro.cases.launch import opened
from repro.cases.options import OPTION
from repro.cases.runner_facts import FROM_TABLE, RUNNER_FACTS, WITHOUT_STEPS
from repro.cases.server_args import (
    MAX_BS,
    NAMED,
    SPARSE,
    SPARSE_BACKENDS,
    Argument,
    BadOption,
    full_name,
    text_of,
    value_of,
)
from repro.cases.sharing import like_server

# Options that are sizes: a server's are scaled down to what is drawn, as a case is to take a second.
_SIZES = frozenset({"context_len", "slots", "capture_bs", "vocab_size", "hidden_size", "num_heads", "num_kv_heads"})
# Options without which a campaign is not like the server.
_CORE = frozenset({"algorithm", "topk", "num_steps", "num_draft_tokens", "page_size"})
# Arguments that say which runner is driven.
_MULTI_LAYER, _EAGER, _RANKS, _REPLICAS = "enable_multi_layer_eagle", "disable_cuda_graph", "attn_dp_size", "dp_size"
_ALL_RANKS = "tp_size"
_ADAPTERS = "lora_paths"
_PATH = "model_path"  # names the server's model
# Arguments that every setup has, or that another option covers.
_MODEL = "a tiny Llama of made weights runs in its place"
_IMPLIED = {
    _PATH: _MODEL,
    "speculative_draft_model_path": _MODEL,
    "dsa_prefill_backend": "prefills have the backend of decode passes",
}
# Values that are the model's own; sparse models name the backend of their decode passes.
_MODELS_OWN = {
    *(("backend", name) for name in SPARSE_BACKENDS),
    ("dtype", "auto"),
    ("kv_dtype", "auto"),
    ("kv_dtype", "bfloat16"),
    ("kv_dtype", "bf16"),
}


def like(
    arguments: Sequence[Argument], known: Collection[str], refuses: Callable[[Setup], str] = lambda setup: ""
) -> Asked:
    """The aim that a server's arguments mean. known: the names of all that the release has, and of its flags. refuses:
    why no target of the campaign runs such a setup; empty: one does. BadOption if an argument is unknown, or if one
    that the campaign cannot do without is not driven."""
    values: dict[str, Any] = {}
    lines: list[str] = []
    named = {full_name(argument.name, [*known, *_IMPLIED, _REPLICAS]): argument for argument in opened(arguments)}
    others = 0
    for name, argument in named.items():
        option = NAMED.get(name)
        if name == _ALL_RANKS:
            continue  # behind the others, by which it is read
        if option and name in (option.name, *option.older):
            lines.append(_carried(values, option.field, argument))
        elif name in SPARSE:
            lines.append(_carried(values, "backend", argument))
        elif name in MAX_BS:
            lines.append(_scaled(argument))
        elif name in _IMPLIED:
            lines.append(f"{argument}: {_IMPLIED[name]}" if name != _PATH or not family_of_path(argument.value) else "")
        elif name == _ADAPTERS:
            values["enable_lora"] = True
            lines.append(f"{argument}: made adapters run in their place")
        elif name == _REPLICAS:
            lines.append(_ranks(argument, named))
        elif name == _RANKS:
            values["dp_attention"] = str(argument.value) not in ("1", "None")
        elif name.removeprefix("no_") not in known and argument.is_flag:
            raise BadOption(f"{argument.place}: no such argument of sglang{close_to(argument.name, [*known, *NAMED])}")
        elif name not in (_MULTI_LAYER, _EAGER):
            others += not argument.is_flag
            lines.append(f"{argument}: not driven" if argument.is_flag else "")
    if _REPLICAS in named and str(named[_REPLICAS].value) == "1":
        values.pop("dp_attention", None)  # which sglang turns off
    lines += [_adjusted(values), _paged(values), _with_family(values, named)]
    having = ("window",) if values.pop("window", 0) else ()
    runners = _runners(values, named)
    lines.append(_shared(values, runners, named))
    request = Asked(values=values, having=having, runners=runners)
    if request.runners[0].startswith("verify_eager"):
        values.pop("dp_attention", None)  # they are always in a group of ranks
    request, refused = _drivable(request, refuses)
    lines += [*refused, *([f"{others} other arguments: not driven"] if others else [])]
    return replace(request, lines=tuple(filter(None, lines)))


def _ranks(argument: Argument, named: Mapping[str, Argument]) -> str:
    """The meaning of dp_size: the ranks of data-parallel attention if that is on, else servers beside each other."""
    attention = named.get("enable_dp_attention")
    shared = attention is not None and str(attention.value).lower() == "true"
    if str(argument.value) == "1":
        return f"{argument}: one rank, without data-parallel attention" if shared else ""
    return f"{argument}: " + ("the ranks of data-parallel attention are two" if shared else "one replica is driven")


def _shared(values: dict[str, Any], runners: tuple[str, ...], named: Mapping[str, Argument]) -> str:
    """Have as many ranks in a group as there are where heads are shared; the line that says so."""
    if (argument := named.get(_ALL_RANKS)) is None or not str(argument.value).isdigit() or int(argument.value) == 1:
        return ""
    groups = named.get(_RANKS) or named.get(_REPLICAS) if values.get("dp_attention") else None
    ranks = like_server(int(argument.value), int(groups.value) if groups else 1)
    if runners != ("round",) or ranks == 1:
        return f"{argument}: a rank is driven alone" + ("; rounds drive two in a group, too" if ranks > 1 else "")
    values[_ALL_RANKS] = ranks
    return f"{argument}: a group has two ranks"


def _adjusted(values: dict[str, Any]) -> str:
    """Have as many draft tokens as a chain of these steps has, as sglang does; the line that says so."""
    tokens = values.get("num_draft_tokens")
    if values.get("algorithm") in WITHOUT_STEPS:  # it has no steps, whatever is asked for
        values |= {"num_steps": 1} | ({} if values["algorithm"] in FROM_TABLE else {"topk": 1})
        return ""
    if values.get("topk") != 1 or "num_steps" not in values or tokens in (None, values["num_steps"] + 1):
        return ""
    values["num_draft_tokens"] = values["num_steps"] + 1
    return f"num_draft_tokens {tokens}: {values['num_draft_tokens']} with topk 1, as sglang adjusts it"


def _paged(values: dict[str, Any]) -> str:
    """Have the page size that sglang takes with a backend that has no other; the line that says so."""
    facts = BACKEND_FACTS.get(values.get("backend", ""))
    if facts is None or not facts.page_sizes or values.get("page_size", 1) in facts.page_sizes:
        return ""
    values["page_size"] = facts.page_sizes[-1]
    return f"page_size {values['page_size']}, as sglang has it with {values['backend']}"


def _with_family(values: dict[str, Any], named: Mapping[str, Argument]) -> str:
    """Have the family that the model's path names, with sglang's name of its algorithm; the line that says so."""
    family = family_of_path(str(named[_PATH].value)) if _PATH in named else ""
    if not family or "family" in values:
        return ""
    values["family"] = family
    if values.get("algorithm") == "EAGLE" and "EAGLE" not in FAMILY_FACTS[family].algorithms:
        values["algorithm"] = "NEXTN"  # sglang's other name of it
    return f"{named[_PATH]}: by its name, a tiny {family} of made weights runs in its place"


def _runners(values: Mapping[str, Any], named: Mapping[str, Argument]) -> tuple[str, ...]:
    """The graph runners, or the eager passes, of such a server."""

    def has(name: str) -> bool:
        return name in named and str(named[name].value).lower() == "true"

    if has(_EAGER) and "algorithm" not in values:
        raise BadOption(f"{named[_EAGER].place}: without graphs and speculation nothing is driven")
    if has(_MULTI_LAYER):
        return ("verify_eager_multi_layer",) if has(_EAGER) else ("multi_layer",)
    if has(_EAGER):
        return ("verify_eager_tree",) if values.get("topk", 1) > 1 else ("verify_eager",)
    if "algorithm" not in values:
        return ("decode",)
    return SPECULATIVE if any(_knows(name, values) for name in SPECULATIVE) else ("round",)


def _knows(runner: str, values: Mapping[str, Any]) -> bool:
    """True if this runner is driven with such a server's algorithm and models."""
    facts, family = RUNNER_FACTS[runner], values.get("family", "")
    driven = family not in FAMILY_FACTS or any(family in families(runner, backend) for backend in facts.backends)
    return driven and values["algorithm"] in facts.algorithms


def _carried(values: dict[str, Any], field: str, argument: Argument) -> str:
    """Put the option's value to the others; what is lines of one that is not carried over as it is."""
    if field in _SIZES:
        return _scaled(argument)
    if isinstance(argument.value, str) and (field, argument.value) in _MODELS_OWN:
        return ""
    try:
        values[field] = value_of(OPTION[field], argument.name, argument.value)
    except BadOption as error:
        if field in _CORE:
            raise
        return f"{error}"
    return _scaled(argument) if field == "window" and values[field] else ""


def _scaled(argument: Argument) -> str:
    return f"{argument}: scaled down to what is drawn; --set {argument.name}=VALUE keeps it"


def _drivable(request: Asked, refuses: Callable[[Setup], str]) -> tuple[Asked, list[str]]:
    """The part of the aim that can be driven, with a line for each option that is left out. BadOption if that is one of
    the core."""
    values: dict[str, Any] = {}
    lines = []
    family = FAMILY_FACTS.get(request.values.get("family", ""))
    backend = request.values.get("backend", "")
    # What both can be had with goes by the family; else the backend stays.
    both = family and any(backend in family.backends.get(runner, ()) for runner in request.runners)
    first = ("family", "backend") if both else ("backend",)
    for field in sorted(
        request.values, key=lambda field: (field not in _CORE, field not in first[:1], field not in first)
    ):
        more = replace(request, values={**values, field: request.values[field]}, having=())
        try:
            reasons = [refuses(smallest_of(more, *pair)) for pair in pairs(more, "", "")]
            if all(reasons):
                raise BadOption(reasons[0])
            values[field] = request.values[field]
        except BadOption as error:
            if field in _CORE:
                raise
            text = str(error).removeprefix(f"{text_of(OPTION[field], request.values[field])}: ")
            lines.append(f"{text_of(OPTION[field], request.values[field])}: not driven ({text})")
    having = tuple(field for field in request.having if _can(replace(request, values=values, having=(field,))))
    return replace(request, values=values, having=having), lines


def _can(request: Asked) -> bool:
    try:
        return bool(list(pairs(request, "", "")))
    except BadOption:
        return False
