"""Finds if a call depends on what ran before it: the same batch by graph once more, in what another history left
behind; what then differs at the launches and is read by their kernels, in the outputs and in the KV cache. And which
KV slots kernels read. Only where the engine sees what kernels touch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from repro.cases.buffer_facts import TOKENS_SECOND
from repro.traces.paths import Recorded
from runners.engines.active import engine
from runners.engines.staging import StagingBuffer
from runners.releases.live import Outputs
from runners.sessions import memory
from runners.sessions.standing import standing
from runners.sessions.state import Moment, State

_TOLD_MAX = 8  # how many elements of a tensor are recorded
_KV = "kv_cache."
_BUFFERS = "buffers."  # where graph runners keep what they are given
Contents = list[torch.Tensor]
Launched = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Twin:
    """The call in the other history: what stood at each launch, what it returned, and the KV cache it left."""

    launches: list[Contents]
    outputs: Mapping[str, torch.Tensor]
    kv: Contents


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """The places where a tensor stood otherwise at a launch, and how."""

    where: torch.Tensor
    now: torch.Tensor
    then: torch.Tensor


@dataclass(slots=True)
class _Seen:
    """The record of the call under way. Mutable: gathers launch by launch."""

    launches: int = 0
    differences: dict[str, _Difference] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    stale: set[str] = field(default_factory=set)


class History:
    """The state of a captured runner that outlives a call. Mutable: `other` is there once another batch has run.

    owners: where to look for tensors. state: what they and the workers hold. named: input buffers, under the names that
    they are known by. kv: the KV cache. rows: how many requests the input buffers have room for.
    """

    def __init__(
        self, owners: Mapping[str, Any], state: State, named: Mapping[str, torch.Tensor], kv: Contents, rows: int
    ) -> None:
        names = {tensor.data_ptr(): name for name, tensor in named.items()}
        caches = {tensor.untyped_storage().data_ptr() for tensor in kv}
        tensors = standing(dict(owners)).items()
        self.tensors = {
            names.get(tensor.data_ptr(), name): tensor
            for name, tensor in tensors
            if tensor.untyped_storage().data_ptr() not in caches
        }
        self.other: Moment | None = None
        self._state = state
        self._named, self._kv, self._rows = frozenset(named), kv, rows
        self._twin: _Twin | None = None
        self._seen = _Seen()
        self._touched = engine.Touched({**self.tensors, **{f"{_KV}{n}": tensor for n, tensor in enumerate(kv)}})

    def input_buffers(self) -> dict[str, torch.Tensor]:
        """The input buffers of a graph runner that no family names, under the names that sglang gives them; of several
        layers with buffers of their own, the first one's."""
        buffers: dict[str, torch.Tensor] = {}
        for path, tensor in self.tensors.items():
            name = path.rpartition(_BUFFERS)[2]
            if _BUFFERS in path and name not in self._named:
                buffers.setdefault(name, tensor)
        return buffers

    def learn(self) -> None:
        """Take what stands now for the other history."""
        self.other = self._state.take()

    def run_twin(self, run: Callable[[Launched], Outputs]) -> None:
        """Run the call in the other history, before it is run in its own. run: runs it, and calls its argument at each
        launch. What stands is put back; the KV cache is as the call leaves it."""
        assert self.other is not None, "no other history is known"
        tensors = list(self.tensors.values())
        now, launches = self._state.take(), []
        self.other.put_back()
        try:
            outputs = run(lambda: launches.append(memory.copied(tensors)))
            self._twin = _Twin(
                launches=launches,
                outputs={name: tensor.clone() for name, tensor in outputs.items()},
                kv=memory.copied(self._kv),
            )
        finally:
            now.put_back()

    def watching(self, *, at_once: bool) -> Any:
        """While entered, what kernels touch is noted: by each launch of a graph, or as of one launch."""
        self._seen = _Seen()
        self._touched.forget()
        return engine.noted_at_once(self._touched) if at_once else engine.noted(self._touched)

    def launched(self, staging: StagingBuffer) -> None:
        """A graph of the call is launched: compare what stands."""
        self._end_launch(staging)
        number, self._seen.launches = self._seen.launches, self._seen.launches + 1
        if self._twin is None or number >= len(self._twin.launches):
            return
        for (name, now), then in zip(self.tensors.items(), self._twin.launches[number], strict=True):
            where = _differs(now, then)
            if where.any():
                self._seen.differences[name] = _Difference(where=where, now=now.clone(), then=then)

    def end(self, staging: StagingBuffer, outputs: Outputs, real: int, reserved: int) -> str:
        """The call has ended: record what differs and what was read; the names of what differs and was not read, but
        for input buffers, whose rows of padding slot0_padding judges, and of which those of other buckets are nobody's.
        real: its requests. reserved: the first KV slots, into which padded rows write as they like."""
        self._end_launch(staging)
        self.see_reads(staging, reserved)
        twin, self._twin = self._twin, None
        if twin is None:
            return ""
        staging.see(Recorded.HISTORY, "compared", len(self.tensors) * self._seen.launches + len(outputs) + 1)
        staging.see(Recorded.HISTORY, "launches", len(twin.launches) - self._seen.launches)
        for name, tensor in outputs.items():
            rows = tensor.shape[0] // real * real if real else 0  # a pass over a padded batch may give more
            now, then = tensor[:rows], twin.outputs[name][:rows]
            if (where := _differs(now, then)).any():
                _see(staging, f"output {name}", _Difference(where=where, now=now, then=then), now.shape[0] // real)
        changed = memory.changed_slots(self._kv, twin.kv)
        changed[:reserved] = False
        if changed.any():
            staging.see(Recorded.HISTORY, "kv", changed, as_slots=True)
        return ", ".join(sorted(self._seen.stale - self._named))

    def _end_launch(self, staging: StagingBuffer) -> None:
        for name, difference in self._seen.differences.items():
            read = difference.where & self._touched.stale(name)
            if read.any():
                if name in self._seen.reported:
                    continue
                self._seen.reported.add(name)
                _see(
                    staging,
                    name,
                    _Difference(where=read, now=difference.now, then=difference.then),
                    self._each(name, difference.now),
                )
            else:
                self._seen.stale.add(name)
        self._seen.differences = {}
        self._touched.begin()

    def _each(self, name: str, tensor: torch.Tensor) -> int:
        """The number of a tensor's rows that belong to a request."""
        by_request = name in self._named - TOKENS_SECOND and tensor.shape[0] % self._rows == 0
        return tensor.shape[0] // self._rows if by_request else 1

    def see_reads(self, staging: StagingBuffer, reserved: int) -> None:
        """Record for each tensor of the KV cache the slots that kernels read whole, those that they read in part, and
        those of the reserved ones that they read at all."""
        for number in range(len(self._kv)):
            read = self._touched.read(f"{_KV}{number}").flatten(1)
            whole, any_of = read.all(1), read.any(1)
            staging.see(Recorded.READS, f"{number}.reserved", any_of[:reserved], as_slots=True)
            whole[:reserved] = any_of[:reserved] = False
            staging.see(Recorded.READS, str(number), whole, as_slots=True)
            staging.see(Recorded.READS, f"{number}.partly", any_of & ~whole, as_slots=True)


def _see(staging: StagingBuffer, name: str, difference: _Difference, each: int) -> None:
    """The first elements, by row of the request and column, and what stood there in this history and the other."""
    parts = (difference.where, difference.now, difference.then)
    where, now, then = (part.reshape(part.shape[0] if part.dim() else 1, -1) for part in parts)
    places = where.nonzero()[:_TOLD_MAX]
    rows, columns = places.unbind(1)
    staging.see(Recorded.HISTORY, name, torch.stack([rows // each, columns + rows % each * where.shape[1]], dim=1))
    staging.see(
        Recorded.HISTORY, f"{name}.values", torch.stack([now[rows, columns], then[rows, columns]], dim=1).double()
    )


def _differs(now: torch.Tensor, then: torch.Tensor) -> torch.Tensor:
    """Element by element; a NaN is as another one."""
    both_nan = (now != now) & (then != then)
    return (now != then) & ~both_nan
