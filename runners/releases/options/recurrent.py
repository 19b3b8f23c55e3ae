"""Recurrent layers: the states that lie beside the KV cache; and without a GPU, that sglang launches the Triton kernels
that a GPU launches."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import operator
import os
import re
import sys
import textwrap
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch

from repro.cases.case import Setup
from repro.cases.families import QWEN35, changes_states
from repro.cases.layout import state_rows, track_interval
from repro.cases.payload import floats
from repro.cases.runner_facts import RUNNER_FACTS
from runners.releases.live import Live, Rows

_UTILS = ("sglang.srt.utils", "sglang.srt.utils.common")
_LINEAR = "sglang.srt.layers.attention.linear"
_FILE = "mamba_state_scatter_triton"
# Modules that ask while they are imported whether they run on a CPU, and would then import its native code; and a
# family's models that do.
_ASK = tuple(f"{_LINEAR}.{name}" for name in ("kernels.gdn_triton", "kernels.kda_triton", "gdn_backend", "kda_backend"))
_MODELS = {QWEN35: ("sglang.srt.models.qwen3_5", "sglang.srt.models.qwen3_5_mtp")}
ASKING = (_LINEAR, *(name for names in _MODELS.values() for name in names))


# A norm is cut into programs by the number of multiprocessors, of which an H100 has so many.
_NORMS = tuple(f"sglang.{place}.attention.fla.layernorm_gated" for place in ("kernels.ops", "srt.layers"))
_SMS = 132
# Functions that launch Triton's kernels for tensors on a GPU alone.
_SCATTERS = ("fused_mamba_state_scatter_with_mask", "fused_conv_window_scatter_with_mask", "fused_commit_track_indices")
_BY_DEVICE = (
    ("sglang.srt.speculative.spec_utils", "_verify_commit_step_indices"),
    *((f"sglang.srt.layers.attention.mamba.{_FILE}", name) for name in _SCATTERS),
    *((f"sglang.kernels.ops.mamba.{_FILE}", name) for name in _SCATTERS),
)
# Functions that refuse a server that keeps states while it decodes, unless it runs on a GPU; and their question.
_FOR_GPUS = (
    ("sglang.srt.arg_groups.mamba_hook", "_platform_supports_mamba_cache_extra_buffer"),
    ("sglang.srt.arg_groups.mamba_hook", "validate_mamba_extra_buffer"),
    ("sglang.srt.server_args", "ServerArgs._validate_mamba_extra_buffer"),
    ("sglang.srt.server_args", "ServerArgs._handle_mamba_radix_cache"),
)
_IS_GPU = r"(\w+(\(\))?\.)?\bis_cuda\b(\(\))?"
# Two names of the option that has a server keep them, the later first; and where they are kept, by request slot.
_STRATEGIES = "mamba_radix_cache_strategy", "mamba_scheduler_strategy"
_KEPT = "req_index_to_mamba_ping_pong_track_buffer_mapping"
KEPT_SINCE = "0.5.13"  # in decode; before, not tried
SERVED_SINCE = "0.5.16"  # in rounds; before, with the radix cache workers cannot be built
# State slots that such a server has for each request, at least; with fewer, a scheduler runs fewer requests at once.
_SLOTS_EACH = 5
_DATA = 38  # any constant: directions onto which states are projected


def prepare(setup: Setup, device: str) -> None:
    """To be called before the workers of such a setup are built."""
    # States of convolutions have the model's type: sglang says to set it for float16 (lfm2_moe.py, 0.5.23:81), as the
    # kernel for trees does not compile with states in bfloat16. Triton's interpreter knows nothing of bfloat16. A
    # prefill that keeps a state stores the model's own values (0.5.23 layers/attention/linear/gdn_backend.py:1066).
    as_model = device != "cpu" or RUNNER_FACTS[setup.runner].serves
    os.environ["SGLANG_MAMBA_CONV_DTYPE"] = setup.dtype if as_model else "float32"
    if device == "cpu" or setup.dtype == "float32":
        os.environ["SGLANG_MAMBA_SSM_DTYPE"] = "float32"
    if device != "cpu":
        return
    imported(*_ASK)
    if setup.family in _MODELS:
        _registered(_MODELS[setup.family])
    if not hasattr(torch.cpu, "device"):  # a device is entered around a kernel of Mamba2's
        vars(torch.cpu)["device"] = contextlib.nullcontext
    _mamba2_without_cuda()
    for place in _NORMS:
        with contextlib.suppress(ModuleNotFoundError):
            vars(importlib.import_module(place))["_get_sm_count"] = lambda *_: _SMS
    for module_name, function in _BY_DEVICE:
        with contextlib.suppress(ModuleNotFoundError):  # it has another place in this release
            rewrite(vars(importlib.import_module(module_name)).get(function), r"\.is_cuda\b", ".is_cpu")
    for module_name, function in _FOR_GPUS:
        with contextlib.suppress(ModuleNotFoundError, AttributeError):  # there is none in this release
            refusing = operator.attrgetter(function)(importlib.import_module(module_name))
            rewrite(refusing, _IS_GPU, "True")
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang.srt.models.") and getattr(module, "_is_cpu", False):
            vars(module)["_is_cpu"] = False


def imported(*names: str) -> None:
    """Import modules, such as those below ASKING, as a GPU imports them."""
    utils = [sys.modules[name] for name in _UTILS]
    answers: list[Any] = [vars(module)["is_cpu"] for module in utils]
    for module in utils:
        vars(module)["is_cpu"] = lambda: False
    try:
        for name in names:
            importlib.import_module(name)
    finally:
        for module, is_cpu in zip(utils, answers, strict=True):
            vars(module)["is_cpu"] = is_cpu


def _registered(names: Sequence[str]) -> None:
    """Have sglang know the models of these modules, which it could not import."""
    imported(*names)
    registry: Any = importlib.import_module("sglang.srt.models.registry").ModelRegistry
    for name in names:
        registry.models.update({kind.__name__: kind for kind in importlib.import_module(name).EntryClass})


def _mamba2_without_cuda() -> None:
    """Have Mamba2's layers use Triton's convolutions; a GPU has compiled ones, too, for the same."""
    layers: Any = importlib.import_module("sglang.srt.layers.attention.mamba.mamba")
    for place in ("sglang.kernels.ops.mamba", "sglang.srt.layers.attention.mamba"):
        with contextlib.suppress(ModuleNotFoundError):
            kernels: Any = importlib.import_module(f"{place}.causal_conv1d_triton")
            for name in ("causal_conv1d_fn", "causal_conv1d_update"):
                vars(layers).update(dict.fromkeys((name, f"{name}_triton"), getattr(kernels, name)))
            return


def rewrite(function: Any, pattern: str, text: str) -> None:
    """Change a function's source, wherever it matches. None where this release has no such function."""
    if function is None or not re.search(pattern, source := textwrap.dedent(inspect.getsource(function)), re.MULTILINE):
        return
    tree = ast.parse(re.sub(pattern, text, source, flags=re.MULTILINE))
    code = function.__code__
    ast.increment_lineno(tree, code.co_firstlineno - 1)
    scope = dict(function.__globals__)
    exec(compile(tree, code.co_filename, "exec"), scope)
    changed: Any = scope[function.__name__]
    # It may be a class method.
    function.__code__ = getattr(changed, "__func__", changed).__code__


def arguments(setup: Setup) -> dict[str, Any]:
    """The arguments of ServerArgs that say how many states there are, and at which lengths one is kept."""
    slots = _SLOTS_EACH * (setup.slots + 1) if RUNNER_FACTS[setup.runner].serves else state_rows(setup)
    return {"max_mamba_cache_size": slots, "mamba_track_interval": track_interval(setup)}


def keeping(setup: Setup, known: Container[str]) -> dict[str, Any]:
    """The arguments of a server with a radix cache, which keeps states while it decodes; none of a server that drafts,
    but for rounds, where the same is asked for that newer releases choose. known: the names of arguments that this
    release has."""
    strategy = next(name for name in _STRATEGIES if name in known)
    if RUNNER_FACTS[setup.runner].serves:
        buffered = setup.radix and (setup.overlap or setup.page_size > 1)
        return {strategy: "extra_buffer"} if buffered else {}
    if RUNNER_FACTS[setup.runner].speculative or not changes_states(setup):
        return {}
    size = _SLOTS_EACH * (setup.slots + 1)
    return {"disable_radix_cache": False, strategy: "extra_buffer", "max_mamba_cache_size": size}


def kept_in(model_runner: Any) -> torch.Tensor | None:
    """The slots in which states are kept while decoding, in turn, [request slots, n]; None where none is kept."""
    slots: torch.Tensor | None = getattr(model_runner.req_to_token_pool, _KEPT, None)
    return slots


def kept(setup: Setup, model_runner: Any, rows: Rows) -> dict[str, torch.Tensor]:
    """The fields of a decode batch that say whose states are kept, and where: as ScheduleBatch.prepare_for_decode makes
    them."""
    slots = kept_in(model_runner)
    if slots is None:
        return {}
    mask = rows["seq_lens"] % track_interval(setup) == 0
    return {"mamba_track_indices": slots[rows["req_pool_indices"], 0], "mamba_track_mask": mask}


def ready(live: Live, model_runner: Any) -> None:
    """Complete what is built, before its graphs are captured: what a scheduler sets up for Mamba2, and without a GPU,
    that the backend launches the kernel that finds state slots there."""
    scheduler: Any = importlib.import_module("sglang.srt.managers.scheduler")
    scheduler.initialize_mamba_selective_state_update_backend(live.args)
    # A state is kept at multiples of a prefill's chunk, too: of a page, as no batch here is so long. sglang's own tests
    # set this, which ServerArgs works out once.
    live.args._mamba_cache_chunk_size = live.setup.page_size
    if live.device != "cpu":
        return
    backend: Any = getattr(model_runner.attn_backend, "linear_attn_backend", None)
    if hasattr(backend, "_fused_state_indices_ok"):
        pool = model_runner.req_to_token_pool
        backend._fused_state_indices_ok = getattr(pool, "mamba_translate_is_fusable", True)


def of_kinds(model_runner: Any) -> Mapping[str, list[torch.Tensor]]:
    """The states by kind, conv and temporal: a tensor a layer, [state slots, ...]. Empty where no layer has any."""
    pool = getattr(model_runner.req_to_token_pool, "mamba_pool", None)
    if pool is None:
        return {}
    cache = pool.mamba_cache
    return {"conv": [layer for part in cache.conv for layer in part], "temporal": list(cache.temporal)}


def of_drafts(model_runner: Any) -> Mapping[str, torch.Tensor]:
    """The room in which a verify leaves the states behind each draft, by row of the batch."""
    pool = getattr(model_runner.req_to_token_pool, "mamba_pool", None)
    parts = vars(pool.mamba_cache) if pool is not None else {}
    rooms = {name: part for name, part in parts.items() if name.startswith("intermediate_")}
    return {
        f"{name}.{number}": tensor
        for name, part in rooms.items()
        for number, tensor in enumerate(part if isinstance(part, list) else [part])
    }


def slots_of_requests(model_runner: Any) -> torch.Tensor:
    """The state slot of each request slot."""
    slots: torch.Tensor = model_runner.req_to_token_pool.req_index_to_mamba_index_mapping
    return slots


def projected(states: torch.Tensor) -> torch.Tensor:
    """One number for each of [n, ...], in which a change of any entry shows. Releases differ in which of a matrix's two
    equal dimensions comes first: either gives the same."""
    for _ in range(states.dim() - 1):
        states = states @ _direction(states.shape[-1]).to(states)
    return states


@functools.cache
def _direction(width: int) -> torch.Tensor:
    return torch.from_numpy(floats(_DATA, "direction", (width,)))
