"""sglang's Scheduler without a server: no sockets, requests that come by the iteration, outputs that stay in a list."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import nan
from typing import Any

import torch
from sglang.srt.managers import scheduler as scheduling
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components import ipc_channels, request_receiver

from repro.cases.rows.serving import BLOCK, SLIDING, graph_name
from repro.cases.runner_facts import FROM_TABLE, IN_BLOCKS
from runners.engines.active import engine
from runners.releases.adapters.round.blocks import DRAFTED
from runners.releases.adapters.round.family import Arriving, EndOfLoop, Wire, nothing
from runners.releases.options import dsv4
from runners.releases.options.sliding import is_hybrid
from runners.releases.workers.arguments import construct
from runners.releases.workers.posing import Posing
from runners.releases.workers.present import GENERATION
from runners.releases.workers.rendezvous import in_memory

_PREFILL, _INDEX = "prefill_cuda_graph_runner", "index_k_with_scale_buffer"
# The fields of sglang's SpecRuntimeState that hold graph runners, by the path that these are on.
_OF_STATES = {
    "draft": "cuda_graph_runner",
    "verify": "target_graph_runner",
    "draft_extend": "cuda_graph_runner_for_draft_extend",
}
# What a tree cache holds of state slots, in words and in its own names.
_HELD = {"evictable": "evictable", "locked": "protected"}
# Ends of a request.
FINISHED, ABORTED = 1, 2


def constructed(args: Any, wire: Wire, placed: Mapping[str, Any]) -> Any:
    """A scheduler of these arguments, with workers, pools and graphs of its own. placed: ranks that are not 0."""
    kind: Any = ipc_channels.SchedulerIpcChannels
    kind.create = classmethod(lambda cls, **_: _channels(cls, wire))
    receiver: Any = request_receiver.SchedulerRequestReceiver
    receiver.recv_requests = lambda self, *_, **__: list(wire.arriving())
    # By this name schedulers on the host share a file, whose size goes by their ranks.
    ports = Posing(nccl_port=in_memory(), instance_id=f"eagleeye-{args.dp_size}", metrics_ipc_name="")
    with engine.hosted():
        scheduler = construct(Scheduler, args, ports, **{**GENERATION.ranks(), **placed})
    scheduler.model_config.hf_eos_token_id = set()  # a text is as long as was asked for
    return scheduler


def _channels(kind: Any, wire: Wire) -> Any:
    names = [f.name for f in dataclasses.fields(kind)]
    return kind(**{name: wire if name.startswith("send_to") else None for name in names})


def retract(*, now: bool) -> None:
    """Have running requests give up their KV slots for as long as this is on, as sglang's own tests do."""
    vars(scheduling)["TEST_RETRACT"], vars(scheduling)["TEST_RETRACT_INTERVAL"] = now, 1


def run(scheduler: Any, wire: Wire, arriving: Arriving) -> None:
    """Its own event loop, on a stream of its own, until `arriving` raises EndOfLoop."""
    wire.arriving = arriving
    engine.synchronize()
    try:
        with engine.hosted():
            scheduler.run_event_loop()
    except EndOfLoop:
        engine.synchronize()
    finally:
        wire.arriving = nothing
        wire.others.begin()


def outputs(sent: Sequence[Any]) -> tuple[dict[str, list[int]], dict[str, int]]:
    """The tokens of each request, by its name, joined from the pieces in which they came; and how requests ended."""
    tokens: dict[str, list[int]] = {}
    ended: dict[str, int] = {}
    for message in sent:
        if type(message).__name__ == "AbortReq":  # of a request that was given up
            ended[message.rid] = ABORTED
        if type(message).__name__ != "BatchTokenIDOutput":
            continue
        for rid, ids, why in zip(message.rids, message.output_ids, message.finished_reasons, strict=True):
            tokens.setdefault(rid, []).extend(ids)
            if why is not None:
                ended[rid] = ABORTED if why["type"] == "abort" else FINISHED
    return tokens, ended


def logprobs(sent: Sequence[Any]) -> dict[str, list[float]]:
    """The log-probabilities of each request's tokens, by its name, joined as outputs are."""
    joined: dict[str, list[float]] = {}
    for message in sent:
        each = getattr(message, "output_token_logprobs_val", None) or ()
        for rid, values in zip(getattr(message, "rids", ()), each, strict=False):
            joined.setdefault(rid, []).extend(values or ())
    return joined


def prompt_logprobs(sent: Sequence[Any]) -> dict[str, list[float]]:
    """The log-probabilities of each request's prompt, by its name, from the first token that it asked for on: of that
    one NaN, as sglang gives none. They come once, with the first token of the text."""
    came: dict[str, list[float]] = {}
    for message in sent:
        each = getattr(message, "input_token_logprobs_val", None) or ()
        for rid, values in zip(getattr(message, "rids", ()), each, strict=False):
            if values:
                came[rid] = [nan if value is None else value for value in values]
    return came


def hidden_states(sent: Sequence[Any]) -> dict[str, list[list[float]]]:
    """The hidden state from which each token of a request comes, by its name. Each message has all so far; a prefill
    gives those of its prompt together, of which the last one counts, if it gives any."""
    last: dict[str, list[list[float]]] = {}
    for message in sent:
        each = getattr(message, "output_hidden_states", None) or ()
        for rid, states in zip(getattr(message, "rids", ()), each, strict=False):
            if states:
                last[rid] = [state[-1] if state and isinstance(state[0], list) else state for state in states]
    return last


def counts(sent: Sequence[Any], name: str) -> dict[str, int]:
    """The largest count of this name that messages have of each request: cached_tokens, retraction_counts."""
    most: dict[str, int] = {}
    for message in sent:
        for rid, count in zip(getattr(message, "rids", None) or (), getattr(message, name, None) or (), strict=False):
            most[rid] = max(most.get(rid, 0), count)
    return most


def drafters(scheduler: Any) -> list[Any]:
    """The model runners of the draft, if there is any: one for each of its layers where they are models of their
    own."""
    draft = scheduler.draft_worker.draft_worker
    if draft is None:
        return []
    return list(getattr(draft, "draft_runner_list", None) or [draft.draft_runner])


def is_layered(scheduler: Any) -> bool:
    """True if a layer of its own drafts each of the drafts."""
    return hasattr(scheduler.draft_worker.draft_worker, "draft_runner_list")


def reads_target(scheduler: Any) -> bool:
    """True if the draft reads the target's KV cache and has none of its own, but for an unused pool."""
    return hasattr(scheduler.draft_worker.draft_worker, "kv_context")


def models(scheduler: Any) -> list[Any]:
    """The networks of target and draft."""
    return [runner.model for runner in (scheduler.tp_worker.model_runner, *drafters(scheduler))]


def caches(scheduler: Any) -> dict[str, torch.Tensor]:
    """The tensors of both models' KV caches in their own type, which those of eight bits do not have by themselves, by
    whose they are; of layers with KV slots of their own, by SLIDING."""
    pool = scheduler.tp_worker.model_runner.token_to_kv_pool
    of_drafts = [] if reads_target(scheduler) else [runner.token_to_kv_pool for runner in drafters(scheduler)]
    pools = {"target": [pool], "draft": of_drafts}
    if dsv4.is_compressed(pool):
        return {f"{whose}_{name}": part for whose in pools for name, part in dsv4.memory(*pools[whose]).items()}
    pools = {whose: [getattr(each, "full_kv_pool", each) for each in its] for whose, its in pools.items()}
    if is_hybrid(pool):
        pools[SLIDING] = [pool.swa_kv_pool]
    named: dict[str, torch.Tensor] = {}
    for whose, its in pools.items():
        for kind in ("k", "v", "kv"):  # latent attention has one row for both
            buffers = [tensor.view(each.dtype) for each in its for tensor in getattr(each, f"{kind}_buffer", ())]
            named |= {f"{whose}_{kind}{layer}": tensor for layer, tensor in enumerate(buffers)}
    return named


def embeddings(scheduler: Any) -> torch.Tensor:
    """The target's, [vocabulary, hidden]."""
    weight: torch.Tensor = scheduler.tp_worker.model_runner.model.model.embed_tokens.weight
    return weight.data


def index_caches(scheduler: Any) -> dict[str, torch.Tensor]:
    """The keys by which sparse attention chooses, of both models: bytes [pages, size], keys and scales of a page."""
    runners = {"target": [scheduler.tp_worker.model_runner], "draft": drafters(scheduler)}
    pools = {whose: [each.token_to_kv_pool for each in its] for whose, its in runners.items()}
    return {
        f"{whose} index_{layer}": pages
        for whose, its in pools.items()
        for layer, pages in enumerate(each for pool in its for each in getattr(pool, _INDEX, None) or ())
    }


def drafts_blocks(scheduler: Any) -> bool:
    """True if the draft model's runner drafts a whole block, and no worker around it holds graphs."""
    return scheduler.server_args.speculative_algorithm in IN_BLOCKS


def drafts_from_table(scheduler: Any) -> bool:
    """True if there is no draft model, and the worker has no methods for its draft and verify."""
    return scheduler.server_args.speculative_algorithm in FROM_TABLE


def drafted_block(scheduler: Any, count: int) -> torch.Tensor:
    """The tokens of the last round's blocks, [count, num_draft_tokens], that first from which each is drafted."""
    tokens: torch.Tensor = getattr(scheduler.draft_worker, DRAFTED)[:count]
    return tokens


def _graph_places(scheduler: Any) -> dict[str, tuple[Any, str]]:
    """The attributes that hold graph runners, by the path that these are on."""
    draft, target = scheduler.draft_worker.draft_worker, scheduler.tp_worker.model_runner
    verifies = next(name for name in ("decode_cuda_graph_runner", "graph_runner") if hasattr(target, name))
    if drafts_from_table(scheduler):
        return {"verify": (target, verifies)}
    if drafts_blocks(scheduler):
        # Under data-parallel attention it drafts without a graph (dflash_worker_v2.py, 0.5.23:718).
        drafts = type(getattr(draft.draft_runner, verifies)).__name__ != "EagerRunner"
        return ({BLOCK: (draft.draft_runner, verifies)} if drafts else {}) | {"verify": (target, verifies)}
    extends = "multi_layer" if is_layered(scheduler) else "draft_extend"
    return {
        "frozen_kv_mtp" if reads_target(scheduler) else "draft": (draft, "cuda_graph_runner"),
        "verify": (target, verifies),
        extends: (draft, "cuda_graph_runner_for_draft_extend"),
    }


def prefills(scheduler: Any) -> list[Any]:
    """The graph runners of both models' prefills."""
    runners = [getattr(*place) for place in _prefill_places(scheduler)]
    return [runner for runner in runners if hasattr(runner, "capture_num_tokens")]  # sglang's eager one has none


def _prefill_places(scheduler: Any) -> list[tuple[Any, str]]:
    """The attributes that hold what runs a prefill, since 0.5.14."""
    models = (scheduler.tp_worker.model_runner, *drafters(scheduler))
    return [(model, _PREFILL) for model in models if hasattr(model, _PREFILL)]


def states(scheduler: Any) -> dict[int, Any]:
    """An adaptive worker's states by their number of draft steps, that first that it starts with; of others none."""
    controller = getattr(scheduler.draft_worker, "adaptive_controller", None)
    return controller._states if controller is not None else {}


class Adapting:
    """An adaptive worker's choice of draft steps, which goes by the rounds before; of other workers nothing."""

    def __init__(self, scheduler: Any) -> None:
        self._controller = getattr(scheduler.draft_worker, "adaptive_controller", None)
        self._at_start = copy.deepcopy(getattr(self._controller, "params", None))

    def start_over(self) -> None:
        """Have it choose as if there had been no round."""
        if self._controller is not None:
            self._controller.params = copy.deepcopy(self._at_start)
            self._controller._activate(next(iter(self._controller._states)))


def graphs(scheduler: Any) -> Iterator[tuple[str, Any]]:
    """Yield each graph runner behind its name. An adaptive worker enters the state of each in turn, and at the end that
    of before."""
    by_steps = states(scheduler)
    active = scheduler.draft_worker.speculative_num_steps if by_steps else 0
    runners = {name: getattr(*place, None) for name, place in _graph_places(scheduler).items()}
    yield from ((name, runner) for name, runner in runners.items() if runner is not None and not by_steps)
    for steps, state in by_steps.items():
        scheduler.draft_worker.adaptive_controller._activate(steps)
        runners = {graph_name(name, steps): getattr(state, attribute) for name, attribute in _OF_STATES.items()}
        yield from ((name, runner) for name, runner in runners.items() if runner is not None)
    if by_steps:
        scheduler.draft_worker.adaptive_controller._activate(active)


@contextmanager
def without_graphs(scheduler: Any) -> Iterator[None]:
    """While entered, the workers run everything as it is, as if they had captured nothing."""
    of_states = [(state, attribute) for state in states(scheduler).values() for attribute in _OF_STATES.values()]
    places = [*_graph_places(scheduler).values(), *_prefill_places(scheduler), *of_states]
    runners = [(*place, getattr(*place, None)) for place in places]
    for owner, name, _ in runners:
        setattr(owner, name, None)
    try:
        yield
    finally:
        for owner, name, runner in runners:
            setattr(owner, name, runner)


def holdings(scheduler: Any) -> dict[str, int]:
    """Counts of what belongs to no request: KV slots that can be given, pages that differ among them, slots that the
    tree cache can give up, slots that it has locked, request slots, and those that differ among them. Sliding layers
    with KV slots of their own are counted by themselves."""
    allocator, cache, requests = (
        scheduler.token_to_kv_pool_allocator,
        scheduler.tree_cache,
        scheduler.req_to_token_pool,
    )
    hybrid = hasattr(allocator, "swa_attn_allocator")
    kinds = {"full": "", "swa": " of sliding layers"} if hybrid else {"": ""}
    counts: dict[str, int] = {}
    for kind, words in kinds.items():
        each = getattr(allocator, f"{kind}_attn_allocator") if kind else allocator
        size = f"{kind}_" if kind else ""
        counts |= {
            f"free KV slots{words}": int(each.available_size()),
            f"different free pages{words}": len(torch.unique(free_pages(each))),
            f"evictable KV slots{words}": int(getattr(cache, f"{size}evictable_size")()),
            f"locked KV slots{words}": int(getattr(cache, f"{size}protected_size")()),
        }
    counts |= _state_slots(scheduler)
    return counts | {
        "free request slots": len(requests.free_slots),
        "different free request slots": len(set(requests.free_slots)),
    }


def _state_slots(scheduler: Any) -> dict[str, int]:
    """The same of the slots for states of recurrent layers; none where there are none."""
    requests, cache = scheduler.req_to_token_pool, scheduler.tree_cache
    allocator = getattr(requests, "mamba_allocator", None) or getattr(requests, "mamba_pool", None)
    if allocator is None:
        return {}
    counts = {f"{kind} state slots": getattr(cache, f"mamba_{name}_size", lambda: 0)() for kind, name in _HELD.items()}
    return {
        "free state slots": int(allocator.available_size()),
        "different free state slots": len(torch.unique(allocator.free_slots)),
        **{name: int(count) for name, count in counts.items()},
    }


def free_pages(allocator: Any) -> torch.Tensor:
    """The numbers of the pages that an allocator of one kind can give, sorted or not."""
    lists = [allocator.free_pages, allocator.release_pages, *getattr(allocator, "staged_pages", ())]
    return torch.cat([pages for pages in lists if pages is not None])
