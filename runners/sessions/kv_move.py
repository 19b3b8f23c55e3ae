"""KV moves: every function that moves rows of a verified or branching batch, over poisoned memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from repro.cases.case import Case, Request, Setup, Target
from repro.cases.kv_move_model import accept_index, correct_drafts, finishes, verified
from repro.cases.layout import Ints, req_to_token
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.paths import Recorded
from runners.engines.active import engine
from runners.engines.poison import Poisoned
from runners.engines.staging import StagingBuffer
from runners.recording.observer import RunCase, Watch
from runners.releases import catalogue
from runners.releases.adapters.kv_move.family import Batch, Move, Pools
from runners.releases.adapters.stood_in import stood_in
from runners.sessions import memory
from runners.sessions.errors import attributed, sglang_errors
from runners.sessions.observe.memory import see_memory


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """Make the pools; there is no model and nothing to capture."""
    release = catalogue.present_release()
    part = catalogue.parts(release, setup.runner)
    watch.fact("adapter", catalogue.adapter_name(release, setup.runner))
    watch.fact("objects", stood_in(setup.runner))
    pools: Pools = part("pools")(setup, engine.device)
    moves: Mapping[Recorded, Move] = part("moves")(setup)
    table = req_to_token(setup)
    kv: list[torch.Tensor] = [*pools.cache.k_buffer, *pools.cache.v_buffer]
    memory.fill_cache(kv, table)
    engine.pad_into([*(tensor[: setup.page_size] for tensor in kv), pools.requests.req_to_token[0]])
    before = memory.copied(kv)

    def run(case: Case, watch: Watch) -> None:
        watch.see(-1, Recorded.INPUT, "req_to_token", table)
        for number, step in enumerate(case.steps):
            moved = Moves(pools, table, number, step.requests, watch)
            engine.memory_seen()
            try:
                moved.run(moves, before)
            finally:
                see_memory(moved.staging)

    return attributed(run)


class Moves:
    """One batch, of which every move starts from the same memory."""

    def __init__(self, pools: Pools, table: Ints, number: int, requests: Sequence[Request], watch: Watch) -> None:
        self.pools, self.table, self.number, self.requests, self.watch = pools, table, number, requests, watch
        self.setup = pools.setup
        self.kv: list[torch.Tensor] = [*pools.cache.k_buffer, *pools.cache.v_buffer]
        self.staging = StagingBuffer(watch, number)
        self.path = Recorded.INPUT

    def run(self, moves: Mapping[Recorded, Move], before: list[torch.Tensor]) -> None:
        memory.restore(self.kv, before)
        slots = torch.from_numpy(self._watched()).to(engine.device)
        self._see(Recorded.BEFORE, "kv_slots", slots)
        self._see(Recorded.BEFORE, "kv_rows", memory.contents(self.kv, slots))
        self.staging.flush()
        # Of all slots that a lost target could name, one whose loss is a request's: the first token of its prefix.
        poison = Poisoned(int(self.table[self.requests[0].slot, 0]))
        for path, move in moves.items():
            self.path = path
            memory.fill_table(self.pools.requests.req_to_token, self.table)
            memory.restore(self.kv, before)
            batch = self._batch()
            self.watch.at(self.number, path)
            with sglang_errors(), poison:
                inputs = self._moved(move, batch)
            for name, tensor in inputs.items():
                self._see(path, name, tensor)
            self._see_changes(before)

    def _moved(self, move: Move, batch: Batch) -> Mapping[str, torch.Tensor]:
        """Make the move; what it hands to move_kv_cache is recorded before any row is touched."""
        real = type(self.pools.cache).move_kv_cache

        def observed(tgt_loc: torch.Tensor, src_loc: torch.Tensor) -> None:
            self._see(self.path, "targets", tgt_loc)
            self._see(self.path, "sources", src_loc)
            came = self.staging.flush()
            size = len(self.kv[0])
            if all(0 <= slot < size for place in came for slot in came[place].tolist()):
                real(self.pools.cache, tgt_loc, src_loc)
            else:  # a move out of the cache would end the process, and nothing more would be recorded
                self._see(self.path, "outside", 1)
                self.staging.hold()

        self.pools.cache.move_kv_cache = observed
        return move(self.pools, batch)

    def _watched(self) -> Ints:
        """The slots whose contents a move may read: each request's, from the page on in which its prefix ends."""
        room = RUNNER_FACTS[self.setup.runner].room
        spans = [
            self.table[r.slot, r.seq_len - r.seq_len % self.setup.page_size : room(self.setup, r.seq_len)]
            for r in self.requests
        ]
        return np.unique(np.concatenate(spans))

    def _batch(self) -> Batch:
        requests = self.requests
        inputs = {
            "req_pool_indices": np.array([r.slot for r in requests], dtype=np.int64),
            "seq_lens": np.array([r.seq_len for r in requests], dtype=np.int64),
            "out_cache_loc": np.concatenate([verified(self.setup, self.table, r) for r in requests]),
            "accept_index": accept_index(self.setup, requests).astype(np.int32),
            "num_correct_drafts": np.array([correct_drafts(self.setup, r) for r in requests], dtype=np.int32),
            "unfinished": np.array([n for n, r in enumerate(requests) if not finishes(r)], dtype=np.int64),
        }
        return Batch(**{name: torch.from_numpy(array).to(engine.device) for name, array in inputs.items()})

    def _see(self, path: Recorded, name: str, value: object) -> None:
        self.staging.see(path, name, value)

    def _see_changes(self, before: list[torch.Tensor]) -> None:
        changed = memory.changed_slots(self.kv, before).nonzero().flatten()
        self._see(self.path, "kv_slots", changed)
        self._see(self.path, "kv_rows", memory.contents(self.kv, changed))
        self.staging.flush()
