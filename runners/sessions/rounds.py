"""The rounds of a scheduler's worker, recorded as it hands them on: what was drafted, accepted and given to the next
draft, and what the KV caches hold for its requests."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import torch

from repro.cases.payload import floats
from repro.cases.rows.serving import GONE, SLIDING, STATE, request_number
from repro.traces.paths import Recorded
from repro.traces.trace import Array
from runners.engines.staging import StagingBuffer
from runners.recording.observer import Watch
from runners.releases.adapters.round import scheduler as serving
from runners.releases.options import dsa, dsv4, recurrent, sliding
from runners.releases.reference.drafts import Drafted

_DATA = 37  # any constant: one direction onto which all rows are projected
# Stages that hand on what a draft begins with: a round, a prefill, and one behind a retraction.
ROUND, PREFILL, RETRACTED = 0, 1, 2
# The inputs of the next draft, and the tree's links from a node to its first child and to the next one of its parent.
NEXT = ("topk_p", "topk_index", "hidden_states")
OF_TABLES = ("accept_tokens", "accept_lens")  # of a worker that drafts from a table, the tokens of the last round
HANDED = (*NEXT, "bonus_tokens", "dsa_topk_indices", *OF_TABLES)
# The names that the first worker of blocks has for them.
_OLDER = {"bonus_tokens": "verified_id"}
LINKS = ("retrieve_next_token", "retrieve_next_sibling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The target's logits for the tokens of a round's trees, [requests, tokens, vocabulary], and whose they are."""

    number: int
    rids: tuple[str, ...]
    logits: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """The inputs of the next draft that a stage hands on, in this row of them. stage: which one."""

    rows: Mapping[str, torch.Tensor]
    row: int
    stage: int


@dataclass(slots=True)
class Rounds:
    """Records decode rounds under a path while entered. Mutable: it counts them, and holds what they verified. tokens:
    those of the vocabulary whose logits this rank makes, the first ones. masked: grammars make some of them -inf, which
    counts as 0."""

    scheduler: Any
    path: Recorded
    watch: Watch
    tokens: int
    masked: bool = False
    count: int = 0
    verified: list[Verified] = field(default_factory=list)
    freed: set[str] = field(default_factory=set)  # requests of the last round that ended before it
    arrays: dict[tuple[int, str], Array] = field(default_factory=dict)  # by round and name, once they have come
    seen: list[StagingBuffer] = field(default_factory=list)
    _handed: dict[str, Handed] = field(default_factory=dict)  # by request

    def __enter__(self) -> Rounds:
        worker = self.scheduler.draft_worker
        generates = worker.forward_batch_generation

        def generate(batch: Any, *args: Any, **kwargs: Any) -> Any:
            if batch.forward_mode.is_idle():
                return generates(batch, *args, **kwargs)
            if batch.forward_mode.is_extend():
                requests, result = list(batch.reqs), generates(batch, *args, **kwargs)
                self._keep(requests, result, PREFILL)
                return result
            slots, requests = self._begin(batch), list(batch.reqs)
            result = generates(batch, *args, **kwargs)
            if serving.drafts_blocks(self.scheduler):
                self._see_block(_names(batch), result)
            if serving.drafts_from_table(self.scheduler):
                self._see_drafted(batch.spec_info, len(requests))
                self._see_verified(_names(batch), result)
            self._end(slots, result)
            self._keep(requests, result, ROUND)
            return result

        def verify(batch: Any, *args: Any, **kwargs: Any) -> Any:
            drafted, rids = batch.spec_info, _names(batch)
            if rids:
                self._see_drafted(drafted, len(rids))
            result = verifies(batch, *args, **kwargs)
            if rids:
                self._see_verified(rids, result)
            return result

        worker.forward_batch_generation = generate
        if hasattr(worker, "verify"):
            verifies = worker.verify
            worker.verify = verify
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self.scheduler.draft_worker.forward_batch_generation
        vars(self.scheduler.draft_worker).pop("verify", None)
        if error is None:
            for number, staging in enumerate(self.seen):
                came = staging.flush()
                self.arrays |= {(number, name): came[path, name] for path, name in came if path == self.path}

    def _begin(self, batch: Any) -> torch.Tensor:
        self.seen.append(StagingBuffer(self.watch, self.count))
        self.watch.at(self.count, self.path)
        self.count += 1
        pool = self.scheduler.tp_worker.model_runner.token_to_kv_pool
        self.freed = {each.rid for each in batch.reqs if sliding.are_freed(pool, each)}
        self._see("requests", np.array([GONE if rid in self.freed else number_of(rid) for rid in _names(batch)]))
        self._see("slots", batch.req_pool_indices)
        self._see("seq_lens", batch.seq_lens)
        if self.path is Recorded.ROUND_GRAPH:
            self._see_relay(batch)
        self.seen[-1].hold()
        slots: torch.Tensor = batch.req_pool_indices.clone()
        return slots

    def _see_relay(self, batch: Any) -> None:
        """Record the draft's inputs, and those that the last stage of each request handed on."""
        handed = [self._handed.get(rid) for rid in _names(batch)]
        if not handed or any(each is None for each in handed):
            return
        last = [each for each in handed if each is not None]
        self.seen[-1].see(Recorded.RELAY, "stages", np.array([each.stage for each in last]))
        for name in HANDED:
            value = _filled(batch.spec_info, name)
            if value is not None and all(name in each.rows for each in last):
                rows = torch.stack([each.rows[name][each.row] for each in last])
                self.seen[-1].see(Recorded.RELAY, f"given_{name}", value, rows=len(last))
                self.seen[-1].see(Recorded.RELAY, f"handed_{name}", rows, rows=len(last))

    def _keep(self, requests: Sequence[Any], result: Any, stage: int) -> None:
        """Copies of what is handed on, as graphs hand on their own memory."""
        from_table = serving.drafts_from_table(self.scheduler)
        names = OF_TABLES if from_table else tuple(name for name in HANDED if name not in OF_TABLES)
        values = {name: _filled(result.next_draft_input, name) for name in names}
        if serving.is_layered(self.scheduler):  # layers of a draft take hidden states from the verify before them
            del values["hidden_states"]
        count = len(requests)
        rows = {name: value.view(count, -1).clone() for name, value in values.items() if value is not None}
        for row, request in enumerate(requests):
            behind = RETRACTED if stage == PREFILL and request.retraction_count else stage
            self._handed[request.rid] = Handed(rows=rows, row=row, stage=behind)

    def _see(self, name: str, value: torch.Tensor | Array, rows: int = 0) -> None:
        self.seen[-1].see(self.path, name, value, rows=rows)

    def _see_drafted(self, drafted: Any, count: int) -> None:
        self._see("drafted", drafted.draft_token, rows=count)
        for name in LINKS:
            self._see(name, getattr(drafted, name), rows=count)
        self.seen[-1].hold()

    def _see_block(self, rids: tuple[str, ...], result: Any) -> None:
        """Behind the round, whose worker has no method for its verify: the block's tokens are there still."""
        self._see("drafted", serving.drafted_block(self.scheduler, len(rids)), rows=len(rids))
        self._see_verified(rids, result)

    def _see_verified(self, rids: tuple[str, ...], result: Any) -> None:
        """Here, as behind draft-extend the memory of the logits is another graph's."""
        count, logits = len(rids), result.logits_output.next_token_logits[:, : self.tokens]
        if self.masked:
            logits = logits.masked_fill(logits.isneginf(), 0.0)
        accepted = result.accept_lens
        place = torch.arange(result.next_token_ids.numel() // count, device=accepted.device)
        tokens = result.next_token_ids.view(count, -1).masked_fill(place >= accepted[:, None], -1)
        self._see("accepted", accepted)
        self._see("tokens", tokens)
        bonus = _filled(result.next_draft_input, "bonus_tokens")
        if bonus is not None:  # a table has the tokens of the round instead
            self._see("bonus", bonus)
        self._see("logits", projected(logits), rows=count)
        self.seen[-1].hold()
        logits = logits.view(count, -1, logits.shape[1]).clone()
        self.verified.append(Verified(number=self.count - 1, rids=rids, logits=logits))

    def _end(self, slots: torch.Tensor, result: Any) -> None:
        count = len(slots)
        self._see("new_seq_lens", result.new_seq_lens)
        for name in NEXT:
            value = _filled(result.next_draft_input, name)
            if value is not None:
                self._see(name, value, rows=count)
        rows = kv_rows(self.scheduler, slots, result.new_seq_lens) | state_rows(self.scheduler, slots)
        for name, values in rows.items():
            self._see(name, values)
        self.seen[-1].hold()


def _filled(handed: Any, name: str) -> torch.Tensor | None:
    """The value that is handed on under this name; None if it has no entries."""
    value: torch.Tensor | None = getattr(handed, name, getattr(handed, _OLDER.get(name, name), None))
    return value if value is not None and value.numel() else None


def kv_rows(scheduler: Any, slots: torch.Tensor, lengths: torch.Tensor) -> dict[str, torch.Tensor]:
    """One number for the KV row of each token of the requests in these slots, by cache, [n, context]; 0 from the length
    on, and of sliding layers before the window of the next token."""
    table = scheduler.req_to_token_pool.req_to_token[slots.long()].long()
    places = torch.arange(table.shape[1], device=table.device)
    without = places >= lengths[:, None]
    target = scheduler.tp_worker.model_runner
    if dsv4.is_compressed(target.token_to_kv_pool):
        return {
            f"{whose}_{name}": projected(each.flatten(0, 1)).view(table.shape).masked_fill(without, 0.0)
            for whose, runner in zip(("target", "draft"), (target, *serving.drafters(scheduler)), strict=True)
            for name, each in dsv4.rows(runner.token_to_kv_pool, table)
        }
    rows: dict[str, torch.Tensor] = {}
    for name, cache in serving.caches(scheduler).items():
        entries, unseen = table, without
        if name.startswith(SLIDING):
            entries = target.token_to_kv_pool.full_to_swa_index_mapping[table].long()
            unseen = without | (places < lengths[:, None] - target.sliding_window_size)
        rows[name] = projected(cache.flatten(1))[entries].masked_fill(unseen, 0.0)
    for name, pages in serving.index_caches(scheduler).items():
        rows[name] = projected(dsa.keys_of(pages))[table].masked_fill(without, 0.0)
    return rows


def state_rows(scheduler: Any, slots: torch.Tensor) -> dict[str, torch.Tensor]:
    """One number for the state that each recurrent layer keeps of the requests in these slots, by layer, [n]."""
    target = scheduler.tp_worker.model_runner
    kinds = recurrent.of_kinds(target)
    if not kinds:
        return {}
    places = recurrent.slots_of_requests(target)[slots.long()].long()
    return {
        f"{STATE}{kind}{number}": recurrent.projected(layer[places].float())
        for kind, layers in kinds.items()
        for number, layer in enumerate(layers)
    }


def projected(rows: torch.Tensor) -> torch.Tensor:
    """One number a row, in which a change of any entry shows. Rows of the same entries have the same number, wherever
    they lie: a product by a vector sums the last few of a matrix in another order."""
    return (rows.float() * _direction(rows.shape[1], str(rows.device))).sum(dim=1)


@functools.cache
def _direction(width: int, device: str) -> torch.Tensor:
    return torch.from_numpy(floats(_DATA, "direction", (width,))).float().to(device)


def _names(batch: Any) -> tuple[str, ...]:
    return tuple(request.rid for request in batch.reqs)


def number_of(rid: str) -> int:
    """A request's name as a number."""
    step, _, row = rid.partition(".")
    return request_number(int(step), int(row))


def apart(ones: Mapping[tuple[int, str], Array], others: Mapping[tuple[int, str], Array]) -> bool:
    """True if two ways through the same rounds differ in a whole number, or in which rounds there were."""
    if ones.keys() != others.keys():
        return True
    return any(value.dtype.kind != "f" and not np.array_equal(value, others[place]) for place, value in ones.items())


def off(rounds: Rounds, prompts: Mapping[str, int], exact: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """The largest distance of a text's token's logits from those in float64, by request and token; NaN where they were
    not seen. prompts: their lengths. exact: [tokens, vocabulary]."""
    distances = {rid: np.full(len(rows), np.nan) for rid, rows in exact.items()}
    for seen in rounds.verified:
        values = {name: rounds.arrays[seen.number, name] for name in ("drafted", "tokens", "seq_lens")}
        values |= _links(rounds, seen.number, values["drafted"])
        for row, rid in enumerate(seen.rids):
            if rid not in exact:
                continue
            first = int(values["seq_lens"][row]) - prompts[rid] + 1
            nodes = _path({name: values[name][row] for name in ("drafted", *LINKS, "tokens")})
            nodes = nodes[: max(0, len(exact[rid]) - first)]
            apart = seen.logits[row, nodes].double().cpu() - exact[rid][first : first + len(nodes)]
            unknown = exact[rid][first : first + len(nodes)].isnan().any(1).numpy()
            distances[rid][first : first + len(nodes)] = np.where(unknown, np.nan, _known(apart.abs().amax(1).numpy()))
    return distances


def not_numbers(rounds: Rounds) -> dict[str, int]:
    """The number of a target's logits for a request's trees that are not numbers."""
    counts: dict[str, int] = defaultdict(int)
    for seen in rounds.verified:
        for rid, logits in zip(seen.rids, seen.logits, strict=True):
            counts[rid] += int((~torch.isfinite(logits)).sum())
    return counts


def drafts_of(rounds: Rounds) -> dict[str, list[Drafted]]:
    """The drafts of each request, round by round."""
    drafts: dict[str, list[Drafted]] = defaultdict(list)
    for seen in rounds.verified:
        starts, drafted = (rounds.arrays[seen.number, name] for name in ("seq_lens", "drafted"))
        links = _links(rounds, seen.number, drafted)
        for row, rid in enumerate(seen.rids):
            parents = _parents(*(links[name][row].tolist() for name in LINKS))
            drafts[rid].append(Drafted(start=int(starts[row]), tokens=drafted[row].tolist(), parents=parents))
    return drafts


def _parents(children: Sequence[int], siblings: Sequence[int]) -> list[int]:
    """The parent of each node of a tree, -1 of the root and of what no link leads to."""
    parents = [-1] * len(children)
    for node, child in enumerate(children):
        while node < child < len(parents):
            parents[child], child = node, siblings[child] if siblings[child] > child else -1
    return parents


def _links(rounds: Rounds, number: int, drafted: Array) -> Mapping[str, Array]:
    """The links of a round's trees; of a block, which has none, those of a chain."""
    count = drafted.shape[1]
    chain = np.append(np.arange(1, count), -1), np.full(count, -1)
    return {
        name: rounds.arrays.get((number, name), np.broadcast_to(links, drafted.shape))
        for name, links in zip(LINKS, chain, strict=True)
    }


def _known(distances: Array) -> Array:
    """The distance of what is no number from any: NaN is of what was not seen."""
    return np.where(np.isnan(distances), np.inf, distances)


def states_off(
    rounds: Rounds, prompts: Mapping[str, int], exact: Mapping[str, Mapping[str, torch.Tensor]]
) -> dict[str, dict[str, Array]]:
    """The same of the states that rounds leave, by layer: at the token that comes next then. exact: by request and
    layer, [tokens]."""
    names = {name for each in exact.values() for name in each}
    distances = {name: {rid: np.full(len(each[name]), np.nan) for rid, each in exact.items()} for name in names}
    numbered = {number_of(rid): rid for rid in exact}
    for number in range(rounds.count):
        requests = rounds.arrays[number, "requests"].tolist()
        for row, length in enumerate(rounds.arrays.get((number, "new_seq_lens"), ())):
            if (rid := numbered.get(requests[row])) is None:
                continue
            token = int(length) - prompts[rid]
            for name, right in exact[rid].items():
                if token < len(right):
                    got = float(rounds.arrays[number, f"{STATE}{name}"][row])
                    distances[name][rid][token] = _known(np.abs(got - right[token].numpy()))
    return {f"{STATE}{name}": each for name, each in distances.items()}


def _path(tree: Mapping[str, Array]) -> list[int]:
    """The accepted tokens' places in a tree: from its root on to the child that has the next token of the text."""
    children, siblings = (tree[name].tolist() for name in LINKS)
    tokens = [token for token in tree["tokens"].tolist() if token >= 0]
    nodes = [0]
    for token in tokens[:-1]:
        child = children[nodes[-1]]
        while child >= 0 and tree["drafted"][child] != token:
            child = siblings[child]
        if child < 0:
            break
        nodes.append(child)
    return nodes
