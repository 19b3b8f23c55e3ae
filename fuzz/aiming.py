"""The aim of a campaign, from what a person gives: --set, --with, --without, --near; fuzz/like.py reads a server's
flags."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from fuzz.draw.aim import Aim, aim_of_values, plain, smallest, why_not, with_text
from fuzz.draw.near import based
from repro.cases.case import Setup, problems
from repro.cases.option import Option
from repro.cases.options import BATCH_MAX, OPTION
from repro.cases.runner_facts import RUNNER_FACTS, TOY
from repro.cases.server_args import MAX_BS, BadOption, option_named, value_of, whole

# The graph runners of a server that speculates.
SPECULATIVE = ("draft", "verify", "draft_extend")
_WORDS = ("--set", "--with", "--without", "--near")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """values: of fields of Setup. having: fields away from their defaults. max_bs: as of Aim. runners: those that a
    server with such flags has; empty: any. lines: what became of each flag, line by line. near: as of Aim."""

    values: Mapping[str, Any] = field(default_factory=dict)
    having: tuple[str, ...] = ()
    max_bs: int = 0
    runners: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    near: str = ""

    @property
    def aim(self) -> Aim:
        fixed = {name: value for name, value in self.values.items() if name not in ("runner", "backend")}
        return aim_of_values(fixed, self.having, self.max_bs, self.near)


@lru_cache(maxsize=64)
def aim_of(text: str) -> Aim:
    """The aim that str() of one means. BadOption."""
    words = shlex.split(text)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    sets, having, without, near = ([item for word, item in pairs if word == name] for name in _WORDS)
    return replace(asked(sets, having, without), near="".join(near)).aim


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
    on: list[str] = []
    for word, names in (("--with", having), ("--without", without)):
        for name in names:
            with _at(word):
                option = option_named(name)
            if _is_away(option, name, word):
                on.append(option.field)
            elif option.field in on or values.setdefault(option.field, _off(option.field)) != _off(option.field):
                raise BadOption(f"{word} {name}: it is asked for, too")
    for option in (OPTION[name] for name in on):
        if not [value for value in option.drawn if value != option.default]:
            raise BadOption(f"{with_text(option)}: it has no value that is drawn; use --set {option.name}=VALUE")
        if option.field in values and values[option.field] == option.default:
            raise BadOption(f"{with_text(option)}: it is set to {values[option.field]}, too")
    on = [name for name in on if name not in values]
    if like:
        # Buckets by another name are the same option.
        largest = like.max_bs if not max_bs and "capture_bs" not in values else 0
        kept = {name: value for name, value in like.values.items() if name not in on}
        runners = like.runners if "algorithm" not in values else SPECULATIVE
        return Asked(
            values={**kept, **values}, having=tuple(on), max_bs=max_bs or largest, runners=runners, lines=like.lines
        )
    return Asked(values=values, having=tuple(on), max_bs=max_bs, runners=SPECULATIVE if "algorithm" in values else ())


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Name the place in a refusal."""
    try:
        yield
    except BadOption as error:
        raise BadOption(f"{place} {error}") from error


def _is_away(option: Option, name: str, word: str) -> bool:
    """True if the option is to have another value than its default. A flag is set or is not, whatever its default:
    `--with disable_radix_cache` is sglang's flag, and `--with radix` the field of a seed."""
    on = word == "--with"
    return value_of(option, name, on) != option.default if isinstance(option.default, bool) else on


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


def pairs(request: Asked, runner: str, backend: str) -> Iterator[tuple[str, str]]:
    """The runners, each over a backend, that can have the aim. runner, backend: those that were named; empty: any.
    BadOption if there are none."""
    aim, backend = request.aim, backend or request.values.get("backend", "")
    runner = runner or request.values.get("runner", "")
    if request.near:
        return iter([_pair_of_seed(aim, runner, backend)])
    able: list[tuple[str, str]] = []
    names = (runner,) if runner else request.runners or tuple(name for name in RUNNER_FACTS if name != TOY)
    for name in names:
        over = [each for each in RUNNER_FACTS[name].backends if backend in ("", each)]
        able += [(name, each) for each in over if smallest(name, each, aim.fixed, aim.having, aim.max_bs)][:1]
    if not able:
        first = names[0]
        backends = (backend,) if backend in RUNNER_FACTS[first].backends else RUNNER_FACTS[first].backends
        if backend and backend not in RUNNER_FACTS[first].backends:
            raise BadOption(f"the {first} runner has no {backend} backend, but {' and '.join(backends)}")
        raise BadOption(f"{why_not(first, backends[0], aim)} (the {first} runner over {backends[0]})")
    return iter(able if request.runners or runner else able[:1])


def _pair_of_seed(aim: Aim, runner: str, backend: str) -> tuple[str, str]:
    """The runner and the backend of a seed. BadOption if others are named, or if it cannot have the rest of the aim."""
    case = based(aim)
    pair = (case.setup.runner, case.setup.backend)
    for name, word in ((runner, pair[0]), (backend, pair[1])):
        if name not in ("", word):
            raise BadOption(f"--near {aim.near}: it drives {' over '.join(pair)}, not {name}")
    if reasons := problems(case):
        raise BadOption(f"--near {aim.near}: {reasons[0].removeprefix('setup: ')}")
    for name in aim.having:
        if getattr(case.setup, name) == plain(name):
            raise BadOption(f"--near {aim.near}: {with_text(OPTION[name])}: no value of it fits the seed")
    return pair


def smallest_of(request: Asked, runner: str, backend: str) -> Setup:
    """The smallest setup with the aim, of a pair that can have it."""
    aim = request.aim
    if aim.near:
        return based(aim).setup
    setup = smallest(runner, backend, aim.fixed, aim.having, aim.max_bs)
    if setup is None:
        raise BadOption(f"{why_not(runner, backend, aim)} (the {runner} runner over {backend})")
    return setup
