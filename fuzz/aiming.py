"""The aim of a campaign, from what a person gives: --set, --with, --without, and the flags of a server (--like)."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from fuzz.draw.aim import Aim, aim_of_values, smallest, why_not
from repro.cases.launch import opened
from repro.cases.options import BATCH_MAX, OPTION
from repro.cases.runner_facts import RUNNER_FACTS, TOY
from repro.cases.server_args import MAX_BS, NAMED, Argument, BadOption, close_to, option_named, value_of, whole

# Options that are sizes: a server's are scaled down to what is drawn, as a case is to take a second.
_SIZES = frozenset({"context_len", "slots", "capture_bs", "vocab_size", "hidden_size", "num_heads", "num_kv_heads"})
# Arguments that say which runner is driven, and the runners of a server with and without speculation.
_MULTI_LAYER, _EAGER = "enable_multi_layer_eagle", "disable_cuda_graph"
_SPECULATIVE, _PLAIN = ("draft", "verify", "draft_extend"), ("decode",)
# What a setup says by another option, or what every setup has.
_IMPLIED = {"dp_size": "the ranks of enable_dp_attention are two", "tp_size": "a rank is driven alone"}
_WORDS = ("--set", "--with", "--without")
_SHORT = {"tp": "tp_size", "dp": "dp_size", "tensor_parallel_size": "tp_size", "data_parallel_size": "dp_size"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """values: of fields of Setup. having: fields away from their defaults. max_bs: as of Aim. runners: those that a
    server with such flags has; empty: any. said: what became of each flag, line by line."""

    values: Mapping[str, Any] = field(default_factory=dict)
    having: tuple[str, ...] = ()
    max_bs: int = 0
    runners: tuple[str, ...] = ()
    said: tuple[str, ...] = ()

    @property
    def aim(self) -> Aim:
        fixed = {name: value for name, value in self.values.items() if name not in ("runner", "backend")}
        return aim_of_values(fixed, self.having, self.max_bs)


@lru_cache(maxsize=64)
def aim_of(text: str) -> Aim:
    """The aim that str() of one means. BadOption."""
    words = shlex.split(text)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    sets, having, without = ([item for word, item in pairs if word == name] for name in _WORDS)
    return asked(sets, having, without).aim


def asked(sets: Iterable[str], having: Iterable[str], without: Iterable[str], like: Asked | None = None) -> Asked:
    """The aim of these options. like: a server's flags, which the others outweigh. BadOption."""
    values: dict[str, Any] = {}
    max_bs = 0
    for text in sets:
        name, equals, value = text.partition("=")
        if _plain(name) in MAX_BS:
            max_bs = _bucket(value, f"--set {text}")
            continue
        with _at("--set"):
            option = option_named(name, MAX_BS)
            new = value_of(option, name, value if equals else "true")
        if values.setdefault(option.field, new) != new:
            raise BadOption(f"--set {text}: it is set to {values[option.field]}, too")
    with _at("--with"):
        on = [option_named(name).field for name in having]
    for name in without:
        with _at("--without"):
            option = option_named(name)
        if option.field in on or values.setdefault(option.field, _off(option.field)) != _off(option.field):
            raise BadOption(f"--without {name}: it is asked for, too")
    for option in (OPTION[name] for name in on):
        if not [value for value in option.drawn if value != option.default]:
            raise BadOption(f"--with {option.name}: it has no value that is drawn; use --set {option.name}=VALUE")
        if option.field in values and values[option.field] == option.default:
            raise BadOption(f"--with {option.name}: it is set to {values[option.field]}, too")
    on = [name for name in on if name not in values]
    if like:
        # Buckets by another name are the same option.
        largest = like.max_bs if not max_bs and "capture_bs" not in values else 0
        kept = {name: value for name, value in like.values.items() if name not in on}
        runners = like.runners if "algorithm" not in values else _SPECULATIVE
        return Asked(
            values={**kept, **values}, having=tuple(on), max_bs=max_bs or largest, runners=runners, said=like.said
        )
    return Asked(values=values, having=tuple(on), max_bs=max_bs, runners=_SPECULATIVE if "algorithm" in values else ())


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Name the place in a refusal."""
    try:
        yield
    except BadOption as error:
        raise BadOption(f"{place} {error}") from error


def _off(name: str) -> Any:
    return 1 if name == "topk" else OPTION[name].default


def _plain(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _bucket(value: str, place: str) -> int:
    try:
        number = whole(value)
    except ValueError as error:
        raise BadOption(f"{place}: {error}") from error
    if not 1 <= number <= BATCH_MAX:
        raise BadOption(f"{place}: outside 1..{BATCH_MAX}")
    return number


def like(arguments: Sequence[Argument], known: Collection[str]) -> Asked:
    """The aims of a server's arguments. known: the names of all that the release has, and of its flags. BadOption if
    one is no argument, or if the server speculates by an algorithm that is not driven."""
    values: dict[str, Any] = {}
    said: list[str] = []
    plain = {_SHORT.get(argument.name, argument.name): argument for argument in opened(arguments)}
    others = 0
    for name, argument in plain.items():
        option = NAMED.get(name)
        if option and (option.name == name or name in option.older):
            line = _take(values, option.field, argument)
        elif name in (_MULTI_LAYER, _EAGER) or name in MAX_BS:
            line = "" if name not in MAX_BS else _scaled(argument)
        elif name in _IMPLIED:
            line = f"{_shown(argument)}: {_IMPLIED[name]}"
        elif name in known or argument.name in known:
            others += not argument.place.startswith("--") or argument.place == "--like"
            line = (
                ""
                if argument.place == "--like" or not argument.place.startswith("--")
                else f"{_shown(argument)}: not driven"
            )
        else:
            raise BadOption(f"{argument.place}: no such argument of sglang{close_to(argument.name, [*known, *NAMED])}")
        said += [line] * bool(line)
    if others:
        said.append(f"{others} other arguments: not driven")
    speculates = "algorithm" in values
    if _truth(plain, _MULTI_LAYER):
        runners: tuple[str, ...] = ("verify_eager_multi_layer" if _truth(plain, _EAGER) else "multi_layer",)
    elif _truth(plain, _EAGER):
        runners = ("verify_eager_tree" if values.get("topk", 1) > 1 else "verify_eager",) if speculates else ()
        if not speculates:
            raise BadOption(f"{plain[_EAGER].place}: without graphs and speculation nothing is driven")
    else:
        runners = _SPECULATIVE if speculates else _PLAIN
    if runners[0].startswith("verify_eager"):
        values.pop("dp_attention", None)  # they are always in a group of ranks
    return Asked(values=values, runners=runners, said=tuple(said))


def _truth(arguments: Mapping[str, Argument], name: str) -> bool:
    return name in arguments and str(arguments[name].value).lower() == "true"


def _shown(argument: Argument) -> str:
    value = "" if argument.value is True else f" {argument.value}"
    return (
        f"{argument.place if argument.place.startswith('--') and argument.place != '--like' else argument.name}{value}"
    )


def _scaled(argument: Argument) -> str:
    return f"{_shown(argument)}: scaled down to what is drawn; --set {argument.name}=VALUE keeps it"


def _take(values: dict[str, Any], name: str, argument: Argument) -> str:
    """Put the option's value to the others; what is said of one that is not carried over."""
    if name in _SIZES:
        return _scaled(argument)
    if (name, argument.value) in (("dtype", "auto"), ("kv_dtype", "bfloat16"), ("kv_dtype", "bf16")):
        return "" if argument.value == "auto" else f"{_shown(argument)}: as the model's"
    option = OPTION[name]
    try:
        values[name] = value_of(option, argument.name, argument.value)
    except BadOption as error:
        if name in ("algorithm", "topk", "num_steps", "num_draft_tokens", "page_size"):
            raise
        return f"{_shown(argument)}: not driven ({error})"
    return ""


def pairs(asked: Asked, runner: str, backend: str) -> Iterator[tuple[str, str]]:
    """The runners, each over a backend, that can have the aim. runner, backend: those that were named; empty: any.
    BadOption if there are none."""
    aim, backend = asked.aim, backend or asked.values.get("backend", "")
    runner = runner or asked.values.get("runner", "")
    able: list[tuple[str, str]] = []
    names = (runner,) if runner else asked.runners or tuple(name for name in RUNNER_FACTS if name != TOY)
    for name in names:
        over = [each for each in RUNNER_FACTS[name].backends if backend in ("", each)]
        able += [(name, each) for each in over if smallest(name, each, aim.fixed, aim.having, aim.max_bs)][:1]
    if not able:
        first = names[0]
        backends = (backend,) if backend in RUNNER_FACTS[first].backends else RUNNER_FACTS[first].backends
        if backend and backend not in RUNNER_FACTS[first].backends:
            raise BadOption(f"the {first} runner has no {backend} backend, but {' and '.join(backends)}")
        raise BadOption(f"{why_not(first, backends[0], aim)} (the {first} runner over {backends[0]})")
    return iter(able if asked.runners or runner else able[:1])
