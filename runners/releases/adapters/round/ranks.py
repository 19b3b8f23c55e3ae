"""This process as one of several ranks, of which the others are modelled: collectives are answered here. Their shares
of weights count as zero, so that their part of each sum is.

Under data-parallel attention (enable_dp_attention) this rank is of the last group: the schedule says how many tokens
the other group has, whose rows are numbers on which no text may depend. In a group (tp_size) it is the first of two:
the second one has the same tokens, and the logits of its half of the vocabulary are too low for any token of it, or no
numbers where this one's are none."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from torch import distributed
from torch.futures import Future

from repro.cases.buffer_facts import DP_RANKS
from repro.cases.case import Setup
from repro.cases.sharing import groups_of, ranks_of, sharers_of
from runners.releases.adapters.round.collectives import CALLS
from runners.releases.adapters.round.others import Others

BATCH: Any = ForwardBatch  # which is padded
_BACKEND = "modelled"
# Where the ranks tell each other of their batches, and where their groups are made.
_SYNC, _GROUPS = "sglang.srt.managers.scheduler_components.dp_attn", "sglang.srt.distributed.parallel_state"
# Where rows of ranks are put among those of all.
_GATHERS = "sglang.srt.layers.dp_attention"
# The numbers in other ranks' parts where all ranks' are gathered: in rows of another group, and in logits of this one's
# tokens; and which switches of a group are none.
_THEIRS, _UNLIKELY, _NO_SWITCHES = 3.0, -1e4, {"use_local_synchronization"}
_SHARED = "max_running_requests", "chunked_prefill_size", "max_mamba_cache_size"


class Modelled(distributed.ProcessGroup):
    """A group whose other ranks answer at once. Mutable: members are its ranks in the world, and rows their answers
    while ranks exchange batches. sharers: the ranks of the world that serve this one's requests."""

    sharers: range = range(0)
    # The parts of the last sum that was shared out among ranks of the world, of which each rank has its own: by where
    # this one's lies.
    _shared_out: ClassVar[dict[int, Mapping[int, torch.Tensor]]] = {}

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.here, self.members, self.rows = rank, list(range(size)), list[torch.Tensor]()

    def getBackendName(self) -> str:
        return _BACKEND

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: object = None) -> Any:
        """The others' part of a sum is zero, and what ranks agree on is what this one says."""
        self._note("all_reduce", tensors[0])
        return _done(tensors)

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: object = None) -> Any:
        """The same of what the first rank hands out; of batches that ranks exchange it has gathered all."""
        self._note("broadcast", tensors[0])
        if self.rows:
            tensors[0].copy_(torch.stack(self.rows).view(tensors[0].shape))
        return _done(tensors)

    def gather(self, outputs: object, shares: object, opts: object = None) -> Any:
        """The first rank gathers, and hands the rows on by a broadcast."""
        return _done(shares)

    def barrier(self, opts: object = None) -> Any:
        return _done(None)

    def all_gather_single(self, output: torch.Tensor, share: torch.Tensor, opts: object = None) -> Any:
        self._note("all_gather", share)
        self._gather(output.view(len(self.members), -1).unbind(), share)
        return _done(output)

    def allgather(self, outputs: Sequence[Any], shares: Sequence[torch.Tensor], opts: object = None) -> Any:
        for places, each in zip(outputs, shares, strict=True):
            self._note("all_gather", each)
            self._gather(places, each)
        return _done(outputs)

    def reduce_scatter_single(self, output: torch.Tensor, share: torch.Tensor, opts: object = None) -> Any:
        self._note("reduce_scatter", share)
        parts = share.view(len(self.members), -1).unbind()
        if output.data_ptr() != parts[self.here].data_ptr():
            output.copy_(parts[self.here].view(output.shape))
        self._shared_out.clear()
        self._shared_out[output.data_ptr()] = dict(zip(self.members, parts, strict=True))
        return _done(output)

    # Their names up to PyTorch 2.12.
    _allgather_base, _reduce_scatter_base = all_gather_single, reduce_scatter_single

    def _note(self, kind: str, tensor: torch.Tensor) -> None:
        CALLS.note(kind, tensor, self.members, self.sharers)

    def _gather(self, places: Sequence[torch.Tensor], share: torch.Tensor) -> None:
        parts = self._shared_out.get(share.data_ptr(), {})
        for number, (rank, place) in enumerate(zip(self.members, places, strict=True)):
            if number == self.here:
                place.copy_(share.view(place.shape))
            elif self.rows:
                place.copy_(self.rows[number].view(place.shape))
            elif rank in self.sharers and rank in parts:
                place.copy_(parts[rank].view(place.shape))
            elif rank in self.sharers and share.is_floating_point():
                place.copy_(torch.where(share.isnan(), share, _UNLIKELY).view(place.shape))  # NaN is all ranks'
            elif rank in self.sharers:
                place.copy_(share.view(place.shape))
            else:
                place.fill_(_THEIRS if share.is_floating_point() else 0)


def _done(result: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(result)
    return torch._C._distributed_c10d._create_work_from_future(future)


@functools.cache
def _known() -> None:
    """Once a process: PyTorch keeps the backend."""
    distributed.Backend.register_backend(_BACKEND, lambda store, rank, size, timeout: Modelled(rank, size))


def arguments(setup: Setup, alone: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a server with these ranks. alone: those of a server with one; what sglang shares out among
    groups is as large for each."""
    if not setup.dp_attention:
        return {"tp_size": ranks_of(setup)}
    amounts = {name: DP_RANKS * alone[name] for name in _SHARED if name in alone}
    of_groups = {"dp_size": DP_RANKS, "enable_dp_attention": True, "enable_dp_lm_head": True}
    return {"tp_size": ranks_of(setup)} | of_groups | amounts


def placed(setup: Setup) -> dict[str, Any]:
    """The ranks of this process that are not 0, as a scheduler is given them up to 0.5.20."""
    return {"tp_rank": _sharers(setup)[0], "dp_rank": groups_of(setup) - 1} if setup.dp_attention else {}


def rank_of(args: Any) -> int:
    """This process's in the world of these arguments of a server."""
    return int(args.tp_size - args.tp_size // args.dp_size)


def _sharers(setup: Setup) -> range:
    """The ranks of this process's group, the last one."""
    return range(ranks_of(setup) - sharers_of(setup), ranks_of(setup))


@contextmanager
def modelled(setup: Setup, others: Others) -> Iterator[None]:
    """While entered, process groups are made of modelled ranks, if the setup has any; these groups stay so."""
    if ranks_of(setup) == 1:
        yield
        return
    _known()
    Modelled.sharers = _sharers(setup)
    copies = vars(importlib.import_module(_GATHERS))
    copies["memcpy_func"] = copies["memcpy_triton"]  # where a CPU asks the host how many rows there are
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join([cores] * ranks_of(setup))
    if setup.dp_attention:
        _answer(others)
    with ExitStack() as stack:
        for name in ("init_process_group", "new_group"):
            stack.enter_context(patch.object(distributed, name, functools.partial(_make, getattr(distributed, name))))
        stack.enter_context(patch.object(distributed, "monitored_barrier", lambda *_, **__: None))
        group: Any = importlib.import_module(_GROUPS).GroupCoordinator
        stack.enter_context(patch.object(group, "__init__", _over_torch(group.__init__)))
        if hasattr(group, "all_gather_object"):
            group.all_gather_object = _all_say
        for module in [module for name, module in sys.modules.items() if name.startswith("sglang.srt.")]:
            if hasattr(module, "broadcast_pyobj"):  # of the first rank, which would say what this one says
                stack.enter_context(patch.object(module, "broadcast_pyobj", lambda data, *_, **__: data))
        yield


def _all_say(self: Any, obj: Any) -> list[Any]:
    """The answers of all ranks of a group, which are alike."""
    return [obj] * self.world_size


def _answer(others: Others) -> None:
    """Answer the scheduler's synchronisation of batches, as long as the process lives."""
    kind: Any = importlib.import_module(_SYNC).MLPSyncBatchInfo
    gathers = inspect.unwrap(kind.all_gather)

    @functools.wraps(gathers)
    def all_gather(self: Any, device: Any, group: Any, *args: Any, **named: Any) -> None:
        theirs = others.entry(self)._get_local_tensor(device=device)
        row = self._get_local_tensor(device=device)
        group.rows = [row if rank in group.sharers else theirs for rank in group.members]
        try:
            gathers(self, device, group, *args, **named)
        finally:
            group.rows = []

    kind.all_gather = all_gather


def _over_torch(construct: Callable[..., None]) -> Callable[..., None]:
    """A constructor of groups that have no communicators of their own, so that PyTorch's groups are asked."""
    parameters = inspect.signature(construct)
    switches = [name for name in parameters.parameters if name.startswith("use_") and name not in _NO_SWITCHES]

    def constructed(*args: Any, **named: Any) -> None:
        bound = parameters.bind(*args, **named)
        bound.arguments.update(dict.fromkeys(switches, False))
        construct(*bound.args, **bound.kwargs)

    return constructed


def _make(makes: Callable[..., Any], *args: Any, **named: Any) -> Any:
    options = {"pg_options": None} if "pg_options" in named else {}
    group = makes(*args, **named | options | {"backend": _BACKEND})
    members = args[0] if args else named.get("ranks")
    if isinstance(group, Modelled) and members is not None:
        group.members = list(members)
    return group
