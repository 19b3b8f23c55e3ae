"""A verify batch in a data-parallel group, and what is watched while EAGLE's second workers verify it eagerly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from repro.cases.case import Request, Setup
from repro.cases.layout import Ints
from repro.cases.payload import integers_each
from runners.recording.observer import HarnessError
from runners.releases.live import Live

RANK = 0  # this process's, of two; the other rank has the busiest batch of the group


# What a request of sglang's has and these do not: no adapter, no grammar, no classifier's or embedding's inputs.
_OF_REQUESTS = dict.fromkeys(("lora_id", "grammar", "token_type_ids", "multi_item_delimiter_indices", "dimensions"))


class NotStoodIn(HarnessError, AttributeError):
    """sglang asks a stand-in for something that it does not have: what would follow is fiction, and no finding."""


class StandIn(SimpleNamespace):
    """Has what it is given and nothing else. what: of what it stands in place."""

    def __getattr__(self, name: str) -> Any:
        raise _not_stood_in(self.__dict__.get("what", "object"), name)


def _not_stood_in(what: str, name: str) -> NotStoodIn:
    return NotStoodIn(f"the stand-in for sglang's {what} has no {name}")


def of_class(kind: Any, **attributes: Any) -> Any:
    """An object of sglang's own class, never constructed: the defaults of the class, None where it says that there may
    be nothing, and what is given. Whatever else it is asked for is an error of the harness."""

    def missing(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _not_stood_in(kind.__name__, name)

    instance: Any = object.__new__(type(kind.__name__, (kind,), {"__getattr__": missing}))
    for entry in fields(kind):
        if entry.default is not MISSING:
            vars(instance)[entry.name] = entry.default
        elif entry.default_factory is not MISSING:
            vars(instance)[entry.name] = entry.default_factory()
        elif "Optional" in str(entry.type) or "None" in str(entry.type):
            vars(instance)[entry.name] = None
    vars(instance).update(attributes)
    return instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """n requests whose trees are to be verified, in a group whose busiest rank has `busiest` requests. Tokens and
    positions of the trees' nodes: [n * num_draft_tokens]; mask: which token sees which, request by request, flat."""

    busiest: int
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor

    @property
    def size(self) -> int:
        return len(self.seq_lens)


def verified(setup: Setup, requests: Sequence[Request], device: str) -> Verified:
    """A chain of drafts for each request; the busiest rank has as many requests as the bucket."""
    nodes = setup.num_draft_tokens
    chain = np.tril(np.ones((nodes, nodes), dtype=np.bool_))
    masks = [np.concatenate([np.ones((nodes, r.seq_len), dtype=np.bool_), chain], axis=1).reshape(-1) for r in requests]
    arrays: dict[str, Ints | np.ndarray] = {
        "req_pool_indices": np.array([r.slot for r in requests], dtype=np.int64),
        "seq_lens": np.array([r.seq_len for r in requests], dtype=np.int64),
        "tokens": integers_each([r.data for r in requests], "tokens", (nodes,), setup.vocab_size).reshape(-1),
        "positions": np.concatenate([np.arange(r.seq_len, r.seq_len + nodes) for r in requests]),
        "mask": np.concatenate(masks),
    }
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    return Verified(busiest=setup.bucket(len(requests)), **tensors)


def schedule_batch(live: Live, verified: Verified, kind: Any, spec_info: Any, forward_mode: Any) -> Any:
    """The batch that the scheduler hands to the worker. kind: its class."""
    lengths = verified.seq_lens.cpu()
    counts = [verified.size, verified.busiest]
    runner = live.target.model_runner
    return of_class(
        kind,
        forward_mode=forward_mode,
        req_pool_indices=verified.req_pool_indices,
        seq_lens=verified.seq_lens,
        seq_lens_cpu=lengths,
        seq_lens_sum=int(lengths.sum()),
        orig_seq_lens=verified.seq_lens.to(torch.int32),
        reqs=[StandIn(what="Req", rid=str(n), **_OF_REQUESTS) for n in range(verified.size)],
        lora_ids=[None] * verified.size,
        spec_algorithm=runner.spec_algorithm,
        spec_info=spec_info,
        model_config=runner.model_config,
        device=verified.seq_lens.device,
        return_logprob=False,
        return_hidden_states=False,
        return_hidden_states_before_norm=False,
        is_extend_in_batch=False,
        all_extend_in_batch=False,
        can_run_dp_cuda_graph=False,
        has_grammar=False,
        sampling_info=None,  # of no use before a verify samples
        global_num_tokens=counts,
        global_num_tokens_for_logprob=counts,
    )


class Forwarded(BaseException):
    """The target has run and its logits were probed: what a verify samples from them, `output`, is another matter.
    Nothing on the way may catch it."""

    def __init__(self, output: Any = None) -> None:
        super().__init__()
        self.output = output


def end(*values: Any, **named: Any) -> Any:
    """Stands where a verify samples."""
    raise Forwarded(next((value for value in (*values, *named.values()) if hasattr(value, "next_token_logits")), None))


# Called with what happens: "metadata" or "padding" with the ForwardBatch, "attention" with it and the query, and
# "sampling" with what is sampled from.
Tell = Callable[..., None]


@contextmanager
def watched(live: Live, forward_batch: Any, tell: Tell) -> Iterator[None]:
    """Tell of every initialisation of metadata, every padding and every attention call, just before it (padding:
    just after it), until the verify would sample, and of that. forward_batch: sglang's class."""
    backend = live.target.model_runner.attn_backend
    pads = forward_batch.prepare_mlp_sync_batch

    def init(batch: Any, *args: Any, **kwargs: Any) -> Any:
        tell("metadata", batch)
        return type(backend).init_forward_metadata(backend, batch, *args, **kwargs)

    def padded(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = pads(self, *args, **kwargs)
        tell("padding", self)
        return done

    def attention(q: Any, k: Any, v: Any, layer: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        tell("attention", batch, q)
        return type(backend).forward_extend(backend, q, k, v, layer, batch, *args, **kwargs)

    backend.init_forward_metadata, backend.forward_extend = init, attention
    forward_batch.prepare_mlp_sync_batch = padded
    try:
        yield
    except Forwarded as ended:
        tell("sampling", ended.output)
    finally:
        forward_batch.prepare_mlp_sync_batch = pads
        del backend.init_forward_metadata, backend.forward_extend
