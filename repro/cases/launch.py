"""A setup as the command that launches such a server, by the names of sglang's newest release, and the reverse."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any

from repro.cases import server_args
from repro.cases.buffer_facts import DP_RANKS
from repro.cases.case import Setup
from repro.cases.families import DSA, family_facts
from repro.cases.option import SERVER, TARGET, Option
from repro.cases.options import OPTION, OPTIONS
from repro.cases.runner_facts import FROM_TABLE, RUNNER_FACTS
from repro.cases.server_args import ADAPTS, NAMED, SPARSE, SPARSE_BACKENDS, Argument, BadOption, value_of
from repro.cases.sharing import like_server, ranks_of

# Flags with which a server has a runner that others lack.
OF_RUNNERS = {
    "multi_layer": "--enable-multi-layer-eagle",
    "cpu_decode": "--device cpu --enable-torch-compile",
    "verify_eager": "--disable-cuda-graph",
    "verify_eager_tree": "--disable-cuda-graph",
    "verify_eager_multi_layer": "--disable-cuda-graph --enable-multi-layer-eagle",
}
_START = "python -m sglang.launch_server --model-path MODEL"
_ADAPTERS = "--lora-paths first=ADAPTER second=ADAPTER"
_DRAFT = "--speculative-draft-model-path DRAFT_MODEL"
_SPARSE = "--dsa-prefill-backend {0} --dsa-decode-backend {0}"  # else sglang chooses them by the machine
_HEADS = "--enable-dp-lm-head"  # each rank of rounds has the whole vocabulary
# The model's configuration, as a server can be told to change it.
OVERRIDES = "json_model_override_args"
# The breadth of trees from a table, of which sglang makes the number of branches.
BREADTH = "speculative_ngram_max_bfs_breadth"
# The length of DSPARK's blocks without their first token.
BLOCK_SIZE = "speculative_dspark_block_size"
# How many ranks there are, and in how many groups where there is data-parallel attention.
_OF_RANKS = ("tp_size", "dp_size")
# Options that are printed at their default, too.
_ALWAYS = frozenset({"backend", "dtype", "page_size", "context_len"})


def command(setup: Setup) -> str:
    """The command, a few flags a line."""
    return " \\\n  ".join([_START, *flags(setup)])


def flags(setup: Setup) -> list[str]:
    """Its flags. Model and weights are the reader's; what is neither a server's argument nor in the configuration of
    its model is left out."""
    facts = RUNNER_FACTS[setup.runner]
    drafted = facts.speculative or facts.light
    printed = [
        _flag(_name(option, setup), _printed(option.field, setup), option.reversed)
        for option in OPTIONS
        if option.part == SERVER and _is_printed(option.field, setup, drafted)
    ]
    model = {
        option.name: option.form(getattr(setup, option.field))
        for option in OPTIONS
        if option.part_of(setup.runner) == TARGET and (not option.later or option.is_set(setup))
    }
    printed.append(f"--json-model-override-args {shlex.quote(json.dumps(model))}")
    ranked = setup.dp_attention or not (facts.graph or facts.light or facts.serves)
    ranks = DP_RANKS if ranked and not setup.dp_attention else ranks_of(setup)
    return [
        *printed,
        *([_SPARSE.format(setup.backend)] if setup.family == DSA else []),
        *([_DRAFT] if drafted and setup.algorithm not in FROM_TABLE else []),
        *([_ADAPTERS] if setup.enable_lora else []),
        *([f"--tp-size {ranks}"] if ranks > 1 else []),
        *([f"--dp-size {DP_RANKS}"] if ranked else []),
        *([_HEADS] if setup.dp_attention and facts.serves else []),
        *(["--enable-dp-attention"] if ranked and not setup.dp_attention else []),
        *([OF_RUNNERS[setup.runner]] if setup.runner in OF_RUNNERS else []),
        *([OF_RUNNERS["multi_layer"]] if family_facts(setup).layered else []),
    ]


def setup_of(runner: str, text: str) -> Setup:
    """A setup of this runner with what a launch command says, and the defaults of all else. The number of steps that an
    adaptive worker starts with is no flag: one more than num_steps is taken. BadOption, OSError as of arguments()."""
    values: dict[str, Any] = {"topk": 1, "num_steps": 1, "num_draft_tokens": 2, "capture_bs": (1,), "slots": 1}
    every, ranks = opened(server_args.arguments(text)), dict.fromkeys(_OF_RANKS, 1)
    for argument in every:
        option = OPTION["backend"] if argument.name in SPARSE else NAMED.get(argument.name)
        if argument.name in _OF_RANKS:
            ranks[argument.name] = int(argument.value)
        elif (
            option and argument.name in (option.name, *option.older, *SPARSE) and argument.value not in SPARSE_BACKENDS
        ):
            values[option.field] = value_of(option, argument.name, argument.value)
    if values.get("algorithm") in FROM_TABLE:
        breadths = [argument.value for argument in every if argument.name == BREADTH]
        values["topk"] = int(breadths[-1]) if breadths else values["topk"]
    if values.get("adaptive") == ADAPTS:
        values["adaptive"] = values["num_steps"] + 1
    if RUNNER_FACTS[runner].serves:
        values = {"overlap": True, "radix": True} | values
    if not (RUNNER_FACTS[runner].graph or RUNNER_FACTS[runner].serves):
        values.pop("dp_attention", None)  # such a runner is always in a group of ranks
    elif RUNNER_FACTS[runner].serves:
        values["tp_size"] = like_server(*ranks.values() if values.get("dp_attention") else (ranks["tp_size"], 1))
    return Setup(runner=runner, **values)


def opened(arguments: Iterable[Argument]) -> list[Argument]:
    """The arguments, with each key of the model's configuration that one overrides as an argument of its own."""
    every: list[Argument] = []
    for argument in arguments:
        if argument.name != OVERRIDES:
            every.append(_with_first(argument))
            continue
        try:
            model = json.loads(argument.value) if isinstance(argument.value, str) else argument.value
            every += [Argument(name, value, argument.place) for name, value in model.items()]
        except (ValueError, AttributeError, RecursionError) as error:
            raise BadOption(f"{argument.place}: no JSON object") from error
    return every


def _with_first(argument: Argument) -> Argument:
    """The tokens of a verify where the argument is a block's length without its first token."""
    if argument.name != BLOCK_SIZE or not str(argument.value).isdigit():
        return argument
    return Argument(OPTION["num_draft_tokens"].name, type(argument.value)(int(argument.value) + 1), argument.place)


def _name(option: Option, setup: Setup) -> str:
    """The option's own name; that of the breadth of trees from a table is another one."""
    return BREADTH if option.field == "topk" and setup.algorithm in FROM_TABLE else option.name


def _is_printed(field: str, setup: Setup, drafted: bool) -> bool:
    if field == "num_steps" and setup.algorithm in FROM_TABLE:
        return False
    if field in ("topk", "num_steps", "num_draft_tokens", "algorithm"):
        return drafted
    if field == "kv_splits":
        return setup.backend == "triton"
    if field in _OF_RANKS:
        return False
    if field in ("overlap", "radix"):
        return RUNNER_FACTS[setup.runner].serves and not getattr(setup, field)
    if field == "capture_bs":
        return RUNNER_FACTS[setup.runner].graph or RUNNER_FACTS[setup.runner].serves
    return field in _ALWAYS or OPTION[field].is_set(setup)


def _printed(field: str, setup: Setup) -> Any:
    """The value of the option's flag. Sparse attention is a backend by itself, and names that of its passes apart."""
    return SPARSE_BACKENDS[0] if field == "backend" and setup.family == DSA else getattr(setup, field)


def _flag(name: str, value: Any, reverse: bool) -> str:
    flag = f"--{name.replace('_', '-')}"
    if reverse or isinstance(value, bool) or name == OPTION["adaptive"].name:
        return flag
    return f"{flag} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
