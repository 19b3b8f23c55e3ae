"""Prompt and text of each request once more, as one prefill without chunks that shares no prefix: the KV rows that it
leaves are those that rounds should have left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from repro.cases.rows.serving import NOISE
from repro.traces.paths import Recorded
from runners.recording.observer import HarnessError, Watch
from runners.releases.adapters.round import messages
from runners.releases.adapters.round import scheduler as serving
from runners.releases.adapters.round.family import EndOfLoop, Wire
from runners.releases.options.images import Image
from runners.releases.options.sliding import is_hybrid
from runners.sessions.arrivals import IDLE
from runners.sessions.iterations import prefills_max
from runners.sessions.rounds import kv_rows
from runners.sessions.versions import Versions

Texts = Mapping[int, Sequence[int]]


@dataclass(slots=True)
class _AllAtOnce:
    """The clock of these requests. Mutable: it counts iterations, up to limit. texts: by a request's number."""

    texts: Texts
    images: Mapping[int, Image]
    adapters: Mapping[int, int]
    wire: Wire
    limit: int
    iteration: int = 0
    idle: int = 0

    def __call__(self) -> list[Any]:
        _, ended = serving.outputs(self.wire.sent)
        self.idle += len(ended) == len(self.texts)
        self.iteration += 1
        if self.idle > IDLE or self.iteration > self.limit:
            raise EndOfLoop
        if self.iteration > 1:
            return []
        return [
            messages.request(
                str(number), text, 1, alone=True, image=self.images.get(number), adapter=self.adapters.get(number, 0)
            )
            for number, text in self.texts.items()
        ]


@dataclass(slots=True)
class Afresh:
    """Mutable: it gathers the rows of each request by its number. version_of: the weights that each was served with,
    the same. images, adapters: those that requests bring or have, the same."""

    scheduler: Any
    wire: Wire
    versions: Versions
    version_of: Mapping[int, int]
    images: Mapping[int, Image] = field(default_factory=dict)
    adapters: Mapping[int, int] = field(default_factory=dict)
    rows: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)

    def see(self, texts: Texts, cached: Mapping[int, int], lacking: Collection[int], watch: Watch) -> None:
        """Serve these on an idle scheduler with an empty tree cache, and record their KV rows. lacking: requests whose
        draft rows are not numbers."""
        self._serve(texts)
        numbers = sorted(texts)
        watch.see(-1, Recorded.AFRESH, "requests", np.array(numbers))
        watch.see(-1, Recorded.AFRESH, "lengths", np.array([len(texts[number]) for number in numbers]))
        watch.see(-1, Recorded.AFRESH, "cached", np.array([cached.get(number, 0) for number in numbers]))
        if lacking:
            watch.see(-1, Recorded.AFRESH, "lacking", np.array([number in lacking for number in numbers]))
        for name, table in self._tables().items():
            watch.see(-1, Recorded.AFRESH, name, table.numpy())

    def see_noise(self, texts: Texts, ways: Iterable[AbstractContextManager[None]], watch: Watch) -> None:
        """Serve them once more while each of these is entered, and record how far that moves their KV rows at most."""
        unmoved = self._tables()
        moved = []
        for way in ways:
            with way:
                self._serve(texts)
            self.scheduler.flush_cache()
            moved.append(self._tables())
        for name, table in unmoved.items():
            noise = torch.stack([(each[name] - table).abs().amax(dim=1) for each in moved]).amax(dim=0)
            watch.see(-1, Recorded.AFRESH, f"{NOISE}{name}", noise.numpy())

    def _tables(self) -> dict[str, torch.Tensor]:
        """The rows of all requests, in the order of their numbers, [n, context]."""
        numbers = sorted(self.rows)
        return {name: torch.stack([self.rows[n][name] for n in numbers]).cpu() for name in self.rows[numbers[0]]}

    def _serve(self, texts: Texts) -> None:
        self.rows = {}
        for version in sorted(set(self.version_of.values())):
            its = {number: text for number, text in texts.items() if self.version_of[number] == version}
            if its:
                self.versions.put(version)
                self._prefill(its)
        if self.rows.keys() != texts.keys():
            raise HarnessError(f"of requests {sorted(texts)} only {sorted(self.rows)} were prefilled afresh")

    def _prefill(self, texts: Texts) -> None:
        self.scheduler.flush_cache()
        self.wire.sent.clear()
        # Sliding layers may have no KV slots for all of a prompt at once.
        hybrid = is_hybrid(self.scheduler.tp_worker.model_runner.token_to_kv_pool)
        chunk = self.scheduler.chunked_prefill_size or 0 if hybrid else 0
        clock = _AllAtOnce(texts, self.images, self.adapters, self.wire, prefills_max(map(len, texts.values()), chunk))
        with self._prefills_seen(), nullcontext() if hybrid else _unchunked(self.scheduler):
            serving.run(self.scheduler, self.wire, clock)

    @contextmanager
    def _prefills_seen(self) -> Iterator[None]:
        worker = self.scheduler.draft_worker
        generates = worker.forward_batch_generation

        def generate(batch: Any, *args: Any, **kwargs: Any) -> Any:
            prefills = batch.forward_mode.is_extend()
            rids, slots, lengths = [req.rid for req in batch.reqs], batch.req_pool_indices, batch.seq_lens
            result = generates(batch, *args, **kwargs)
            if prefills:
                rows = kv_rows(self.scheduler, slots, lengths)
                for row, rid in enumerate(rids):
                    self.rows[int(rid)] = {name: values[row] for name, values in rows.items()}
            return result

        worker.forward_batch_generation = generate
        try:
            yield
        finally:
            del worker.forward_batch_generation


@contextmanager
def _unchunked(scheduler: Any) -> Iterator[None]:
    """While entered, prompts are prefilled whole."""
    chunk, scheduler.chunked_prefill_size = scheduler.chunked_prefill_size, None
    try:
        yield
    finally:
        scheduler.chunked_prefill_size = chunk
