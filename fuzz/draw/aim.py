"""Setups that a person asks for: some options are fixed, some have a drawn value that is not the default, the others
are drawn as in any campaign.

A drawn setup is made to fit: from the smallest setup that has what is fixed it takes over as much of the drawn one as
is valid beside it. Nothing is filtered, and an aim that no setup can have is refused before anything is drawn.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from fuzz.draw.states import OF_SETUPS, STATES, is_drawn, plainest, with_states
from fuzz.draw.states import smallest as smallest_setups
from fuzz.draw.strategies import CONTEXT_MIN, DRAFT_TOKENS_MAX, ROOM, setups
from fuzz.draw.swarm import Swarm
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Setup, setup_problems
from repro.cases.families import facts_of, families, fitted
from repro.cases.option import Option
from repro.cases.options import CONTEXT_MAX, KV_DTYPE_ABOVE, OPTION, SLOTS_MAX
from repro.cases.rows.adapters import CHUNKED, TRITON
from repro.cases.runner_facts import RUNNER_FACTS, WITHOUT_STEPS
from repro.cases.server_args import ADAPTS, MAX_BS, name_of, text_of
from repro.cases.setup import DRAFT_SIZES
from repro.cases.sharing import SHARERS

Fixed = tuple[tuple[str, Any], ...]
# Fields that are taken over from a drawn setup together, the most first; then each by itself.
_TOGETHER = (
    ("topk", "num_steps", "num_draft_tokens", "page_size", "context_len"),
    ("topk", "num_steps", "num_draft_tokens"),
    ("num_steps", "num_draft_tokens"),
    ("capture_bs", "slots"),
    ("algorithm", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "dtype"),
    ("hidden_size", "num_heads", "num_kv_heads"),
    tuple(DRAFT_SIZES),
    ("window", "swa"),
)
# The least value of options that have no default.
_LEAST: dict[str, Any] = {"topk": 1, "num_steps": 1, "num_draft_tokens": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """fixed: fields of Setup with their values. having: fields that are not at their defaults. max_bs: the largest
    bucket; 0: any. near: the file of a seed around which cases are drawn (fuzz/draw/near.py); empty: anywhere."""

    fixed: Fixed = ()
    having: tuple[str, ...] = ()
    max_bs: int = 0
    near: str = ""

    def __str__(self) -> str:
        """The options of a command line that mean this aim; empty for none."""
        words = [f"--near {shlex.quote(self.near)}"] * bool(self.near)
        words += [f"--set {shlex.quote(text_of(OPTION[field], value))}" for field, value in self.fixed]
        words += [f"--set {MAX_BS[-1]}={self.max_bs}"] * bool(self.max_bs)
        return " ".join([*words, *(with_text(OPTION[field]) for field in self.having)])

    def fits(self, setup: Setup) -> bool:
        """True if the setup has what is asked for."""
        fixed = all(getattr(setup, field) == value for field, value in self.fixed)
        having = all(getattr(setup, field) != plain(field) for field in self.having)
        return fixed and having and self.max_bs in (0, setup.max_bs)

    def swarm(self, swarm: Swarm) -> Swarm:
        """The swarm whose setups are nearest to what is asked for."""
        values = dict(self.fixed)
        later = {field for field in (*values, *self.having) if OPTION[field].later}
        off = {field for field in later & values.keys() if values[field] == OPTION[field].default}
        swarm = replace(swarm, options=(swarm.options | later) - off)
        swarm = replace(swarm, algorithm=values.get("algorithm", swarm.algorithm), family=values.get("family", ""))
        if "topk" in values or "topk" in self.having:
            swarm = replace(swarm, branching=values.get("topk") != 1)
        if "page_size" in values or "page_size" in self.having:
            swarm = replace(swarm, paged=values.get("page_size") != 1)
        return swarm


ANY = Aim()


def with_text(option: Option) -> str:
    """The words that ask for another value than the default. The flag of an option that is on by default and is named
    by its opposite is away from it; of one that is off by default the field is."""
    return f"--with {option.field if option.reversed and not option.default else name_of(option)}"


def plain(field: str) -> Any:
    """The value of a field that is not set."""
    return _LEAST.get(field, OPTION[field].default)


@st.composite
def aimed_setups(draw: st.DrawFn, runner: str, backend: str, swarm: Swarm, aim: Aim) -> Setup:
    """Setups of this runner and backend, within the swarm's size where the aim says nothing else."""
    drawn = draw(setups(runner, backend, aim.swarm(swarm)))
    fixed, having = aim.fixed, aim.having
    while having:
        field, *rest = having
        having = tuple(rest)
        values = [
            value for value in _values(field) if smallest(runner, backend, (*fixed, (field, value)), having, aim.max_bs)
        ]
        fixed = (*fixed, (field, draw(st.sampled_from(values))))
    start = smallest(runner, backend, fixed, (), aim.max_bs)
    if start is None:
        raise ValueError(f"{runner} over {backend} cannot have {aim}")
    return _fitted(start, drawn, {field for field, _ in fixed}, aim.max_bs)


def _values(field: str) -> Iterator[Any]:
    return (value for value in OPTION[field].drawn if value != plain(field))


def _fitted(setup: Setup, drawn: Setup, fixed: set[str], max_bs: int) -> Setup:
    """The setup with as much of the drawn one as is valid."""
    if max_bs:
        drawn = _with_largest(drawn, max_bs)
    for fields in (*_TOGETHER, *((field,) for field in OPTION if field not in ("runner", "backend"))):
        changes = {field: getattr(drawn, field) for field in fields if field not in fixed}
        wider = replace(setup, **changes)
        if wider.topk == 1 and wider.algorithm not in WITHOUT_STEPS and "num_draft_tokens" not in fixed:
            wider = replace(wider, num_draft_tokens=wider.num_steps + 1)
        if "context_len" not in fixed:
            wider = replace(wider, context_len=max(drawn.context_len, context_of(wider)))
        if wider == setup:
            continue
        in_draws = is_drawn(wider) or not is_drawn(setup)
        if wider.max_bs == (max_bs or wider.max_bs) and in_draws and not setup_problems(wider):
            setup = wider
    fit = fitted(setup)  # sizes were drawn for whatever family
    return replace(setup, **{field: getattr(fit, field) for field in ("hidden_size", "dtype") if field not in fixed})


def _with_largest(setup: Setup, max_bs: int) -> Setup:
    """The setup with buckets in proportion, of which the largest is this one."""
    scaled = sorted({max(1, bs * max_bs // setup.max_bs) for bs in setup.capture_bs})
    return replace(setup, capture_bs=tuple(scaled), slots=min(SLOTS_MAX, setup.slots - setup.max_bs + max_bs))


def context_of(setup: Setup) -> int:
    """A context in which short prefixes and their drafts fit, also one that ends late in its page."""
    room, page = RUNNER_FACTS[setup.runner].room, setup.page_size
    most = max(room(setup, length) for length in (1 + ROOM, max(1, page - 1), page))
    return min(CONTEXT_MAX, max(CONTEXT_MIN, most))


@lru_cache(maxsize=4096)
def smallest(runner: str, backend: str, fixed: Fixed, having: tuple[str, ...] = (), max_bs: int = 0) -> Setup | None:
    """The smallest setup that has this, of models of a family where no others can have it; or None."""
    if having:
        field, *rest = having
        each = (smallest(runner, backend, (*fixed, (field, value)), tuple(rest), max_bs) for value in _values(field))
        return next(filter(None, each), None)
    every = (_completed(runner, backend, dict(fixed), max_bs, *shape) for shape in _shapes(runner, dict(fixed)))
    simplest = next(
        (setup for setup in every if setup.max_bs == (max_bs or setup.max_bs) and not setup_problems(setup)), None
    )
    if simplest or "family" in dict(fixed):
        return simplest
    named = (smallest(runner, backend, (*fixed, ("family", name)), (), max_bs) for name in families(runner, backend))
    return next(filter(None, named), None)


@lru_cache(maxsize=256)
def of_families(runner: str, backend: str, aim: Aim) -> tuple[Aim, ...]:
    """The aim with each family that can have it, at sizes that are drawn for it; none if the aim says of which family
    models are."""
    if "family" in (*dict(aim.fixed), *aim.having):
        return ()
    aims = [replace(aim, fixed=(*aim.fixed, ("family", name))) for name in families(runner, backend)]
    starts = [smallest(runner, backend, named.fixed, named.having, named.max_bs) for named in aims]
    return tuple(
        named for named, start in zip(aims, starts, strict=True) if start and fitted(start) == start and is_drawn(start)
    )


def _shapes(runner: str, fixed: dict[str, Any]) -> Iterator[tuple[str, int, int, int]]:
    """Algorithm, topk, draft steps and draft tokens, the simplest first."""
    facts = RUNNER_FACTS[runner]

    def those(field: str, values: Sequence[Any]) -> Sequence[Any]:
        return (fixed[field],) if field in fixed else values

    steps = range(facts.num_steps_min, facts.num_steps_max + 1) if facts.speculative else (1,)
    shapes = itertools.product(
        those("algorithm", facts.algorithms), those("topk", range(1, 11)), those("num_steps", steps)
    )
    for algorithm, topk, num_steps in shapes:
        largest = min(DRAFT_TOKENS_MAX, topk + (num_steps - 1) * topk**2 + 1)
        for tokens in those(
            "num_draft_tokens", (num_steps + 1,) if topk == 1 else (min(num_steps + 1, largest), largest)
        ):
            yield algorithm, topk, num_steps, tokens


def _completed(
    runner: str,
    backend: str,
    fixed: dict[str, Any],
    max_bs: int,
    algorithm: str,
    topk: int,
    num_steps: int,
    tokens: int,
) -> Setup:
    """A setup of this shape, valid if one with what is fixed is."""
    kernels = BACKEND_FACTS[backend]
    least = SHARERS if fixed.get("tp_size", 1) > 1 else 1
    heads = fixed.get("num_heads", fixed.get("num_kv_heads", fixed.get("draft_num_kv_heads") or least))
    divisor = math.lcm(*(each or 1 for each in (heads, fixed.get("draft_num_heads"), fixed.get("draft_num_kv_heads"))))
    above = KV_DTYPE_ABOVE if fixed.get("kv_dtype") else 0
    family = facts_of(fixed.get("family", ""), algorithm)
    widths = family.hidden_sizes or OPTION["hidden_size"].drawn
    buckets = fixed.get("capture_bs") or ((max_bs,) if max_bs else (min(2, fixed.get("slots", 2)),))
    values = {
        "runner": runner,
        "backend": backend,
        "algorithm": algorithm,
        "topk": topk,
        "num_steps": num_steps,
        "num_draft_tokens": tokens,
        "capture_bs": buckets,
        "slots": min(SLOTS_MAX, max(buckets, default=1) + 1),
        "num_heads": heads,
        "num_kv_heads": 1,
        "hidden_size": next((width for width in widths if width % divisor == 0), divisor * 8),
        "dtype": (family.dtypes or kernels.drawn_dtypes)[0],
        "head_dim": min(dim for dim in kernels.drawn_head_dims if dim > above),
        "window": OPTION["window"].smallest["window"] if fixed.get("swa") or family.sliding else 0,
        "swa": family.sliding,
        # Beside other ranks there are no other kernels of adapters.
        "lora_backend": TRITON if fixed.get("enable_lora") and fixed.get("dp_attention") else CHUNKED,
        "page_size": family.page_size or min(kernels.page_sizes, default=1),
        "dp_attention": fixed.get("tp_size", 1) > SHARERS,
        "logprobs": fixed.get("logprob_start_len", plain("logprob_start_len")) != plain("logprob_start_len"),
    }
    setup = Setup(**(values | fixed))
    if "context_len" in fixed or setup.page_size < 1:
        return setup
    return replace(setup, context_len=max(context_of(setup), 2 * family.page_size))


def possible_states(runner: str, backend: str, aim: Aim, states: frozenset[str]) -> frozenset[str]:
    """The states of replays, among these, that setups with the aim can be in."""
    setups = [
        _fitted(start, with_states(plain, (name,)), {*dict(aim.fixed), *aim.having}, aim.max_bs)
        for start in filter(None, [smallest(runner, backend, aim.fixed, aim.having, aim.max_bs)])
        for plain in smallest_setups(runner, backend)
        for name in states
    ]
    having = [setup for setup in setups if aim.fits(setup)]
    return frozenset(
        name
        for name in states
        if any(
            STATES[name].holds(setup, None, plainest(setup)) if name in OF_SETUPS else _has(setup, STATES[name].fields)
            for setup in having
        )
    )


def _has(setup: Setup, fields: Mapping[str, Any]) -> bool:
    return all(bool(getattr(setup, field)) == bool(value) for field, value in fields.items())


def why_not(runner: str, backend: str, aim: Aim) -> str:
    """The part of the aim that this runner over this backend cannot have beside the parts before it, and why, as one
    line; empty if it can have all."""
    for count in range(1, len(aim.fixed) + 1):
        fixed = aim.fixed[:count]
        if smallest(runner, backend, fixed, (), aim.max_bs) is None:
            field, value = fixed[-1]
            return f"{text_of(OPTION[field], value)}: {_reason(runner, backend, dict(fixed), aim.max_bs)}"
    for count in range(1, len(aim.having) + 1):
        having = aim.having[:count]
        if smallest(runner, backend, aim.fixed, having, aim.max_bs) is None:
            field = having[-1]
            values = {**dict(aim.fixed), field: next(_values(field))}
            return f"{with_text(OPTION[field])}: {_reason(runner, backend, values, aim.max_bs)}"
    return ""


def _reason(runner: str, backend: str, fixed: dict[str, Any], max_bs: int) -> str:
    """The first refusal of the setup that is refused for the fewest reasons."""
    every = (setup_problems(_completed(runner, backend, fixed, max_bs, *shape)) for shape in _shapes(runner, fixed))
    problems = min((texts for texts in every if texts), key=len, default=["setup: no shape of a tree has it"])
    return problems[0].removeprefix("setup: ")


def aim_of_values(values: dict[str, Any], having: Sequence[str] = (), max_bs: int = 0, near: str = "") -> Aim:
    """The aim with these values of fields; an adaptive worker's first number of steps is drawn if none is named."""
    drawn = [field for field, value in values.items() if field == "adaptive" and value == ADAPTS]
    fixed = tuple((field, value) for field, value in values.items() if field not in drawn)
    return Aim(fixed=fixed, having=tuple(dict.fromkeys((*having, *drawn))), max_bs=max_bs, near=near)
