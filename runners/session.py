"""One live sglang: built and captured for a setup, then driven through cases, graph path and eager path side by side.

Importing this module imports torch and sglang, which takes seconds, and touches no device: a worker imports it
once and forks a process for each session.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from repro.case import Case, Request, Setup, Step, Target
from repro.layout import draft_positions, req_to_token
from repro.payload import floats, integers
from repro.trace import Array
from runners.engines.guards import Guarded, Guards, untouched
from runners.releases import catalogue, model
from runners.releases.live import Adapter, Drafts, Live, Rows
from runners.watch import RunCase, Unfit, Watch

if os.environ.get("TRITON_INTERPRET") == "1":
    from runners.engines import emulated as engine
else:
    from runners.engines import cuda as engine  # type: ignore[no-redef]

# How far hidden states are moved to see whether an output hangs on rounding: a few units in the last place.
NUDGE = {torch.float32: 2.0**-21, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}

# The caller's fields that a runner may touch, and the runner's input buffers that a step fills.
CALLERS = ("batch_size", "seq_lens", "seq_lens_cpu", "seq_lens_sum", "req_pool_indices", "positions", "out_cache_loc")
CALLERS_SPEC = ("topk_p", "topk_index", "hidden_states")
BUFFERS = (
    "seq_lens",
    "seq_lens_cpu",
    "req_pool_indices",
    "out_cache_loc",
    "positions",
    "topk_p",
    "topk_index",
    "hidden_states",
)


engine.install()
with engine.importing():
    RELEASE = catalogue.present_release()
    ADAPTER: Adapter = catalogue.load(RELEASE, engine.device)


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """Build workers and capture graphs. Unfit, or whatever sglang raises, if that fails."""
    if target.engine == "emulated" and setup.backend != "triton":
        raise Unfit(f"the emulated engine has no {setup.backend} kernels")
    if target.engine == "emulated" and setup.dtype == "bfloat16":
        raise Unfit("Triton's interpreter has no bfloat16 arithmetic")
    if not target.is_checkout and target.sglang != RELEASE:
        raise Unfit(f"asked for sglang {target.sglang}, found {RELEASE} on the import path")
    for name, text in _facts(target).items():
        watch.fact(name, text)
    start = time.perf_counter()
    session = Session(ADAPTER, setup, watch)
    watch.spent("build", time.perf_counter() - start)
    return session.run


def _facts(target: Target) -> dict[str, str]:
    return {
        "sglang": RELEASE,
        "adapter": ADAPTER.name,
        "adapted": "yes" if catalogue.is_adapted(RELEASE) else "no: newer than every adapter",
        "engine": target.engine,
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"),
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if engine.device == "cuda" else platform.machine(),
    }


class Session:
    """A captured runner, and the state it had right after capture, to which every case returns."""

    def __init__(self, adapter: Adapter, setup: Setup, watch: Watch) -> None:
        self.adapter, self.setup = adapter, setup
        guards = Guards(engine.capturing)
        with guards, model.folders(setup) as folders:
            self.live: Live = adapter.build(setup, engine.device, folders)
            model.fill_weights(self.live.model_runner.model)
            self.device = torch.device(engine.device)
            self.dtype = self.live.model_runner.dtype
            self.table = req_to_token(setup)
            self._fill_memory()
            watch.at(-1, "capture")
            self.runner = adapter.capture(self.live)
        self.buffers = self._input_buffers()
        self.guarded = guards.keep(self._static_tensors())
        self.start = {name: tensor.clone() for name, tensor in self._static_tensors().items()}
        self._neutral = dict(adapter.neutral(self.live))

    # What exists -------------------------------------------------------------------------------------------------

    @property
    def kv(self) -> list[torch.Tensor]:
        """The draft model's KV cache: keys and values of each layer, [kv slots, heads, head_dim]."""
        pool = self.live.model_runner.token_to_kv_pool
        return [*pool.k_buffer, *pool.v_buffer]

    def _input_buffers(self) -> dict[str, torch.Tensor]:
        buffers = self.runner.buffers
        return {name: getattr(buffers, name) for name in BUFFERS if getattr(buffers, name, None) is not None}

    def _static_tensors(self) -> dict[str, torch.Tensor]:
        """Everything that outlives a call: runner buffers, metadata buffers, the KV cache and its index."""
        backend = self.live.backend
        found = dict(self._input_buffers())
        for name in ("kv_indptr", "cuda_graph_kv_indices", "cuda_graph_num_kv_splits"):
            if isinstance(tensor := getattr(backend, name, None), torch.Tensor):
                found[name.removeprefix("cuda_graph_")] = tensor
        found |= {f"kv_cache.{number}": tensor for number, tensor in enumerate(self.kv)}
        found["req_to_token"] = self.live.model_runner.req_to_token_pool.req_to_token
        return found

    def _fill_memory(self) -> None:
        rows = self.live.model_runner.req_to_token_pool.req_to_token
        height, width = self.table.shape
        if rows.shape[0] < height or rows.shape[1] < width:
            raise Unfit(f"req_to_token is {tuple(rows.shape)}, the layout needs {self.table.shape}")
        rows.zero_()
        rows[:height, :width] = torch.from_numpy(self.table)
        for number, tensor in enumerate(self.kv):
            if tensor.shape[0] <= self.table.max():
                raise Unfit(f"the KV cache has {tensor.shape[0]} slots, the layout needs {self.table.max() + 1}")
            tensor.copy_(torch.from_numpy(floats(0, f"kv{number}", tuple(tensor.shape))))

    # A case ------------------------------------------------------------------------------------------------------

    def run(self, case: Case, watch: Watch) -> None:
        for name, tensor in self._static_tensors().items():
            tensor.copy_(self.start[name])
        watch.see(-1, "input", "req_to_token", self.table)
        for number, step in enumerate(case.steps):
            _Step(self, number, step, watch).run()

    @contextmanager
    def timed(self, stage: str, watch: Watch) -> Iterator[None]:
        start = time.perf_counter()
        yield
        engine.synchronize()
        watch.spent(stage, time.perf_counter() - start)


class _Step:
    """One call of the runner: the graph path, then the eager path from the same memory."""

    def __init__(self, session: Session, number: int, step: Step, watch: Watch) -> None:
        self.session, self.number, self.watch = session, number, watch
        self.setup = session.setup
        self.rows = self._rows(step.requests)
        self.requests = step.requests

    def run(self) -> None:
        session, watch = self.session, self.watch
        self._fill_prefixes()
        self._see_input()
        before = [tensor.clone() for tensor in session.kv]
        forward_batch = session.adapter.batch(session.live, self._copied(self.rows))
        self._see_caller("before", forward_batch)
        watch.at(self.number, "graph")
        graph = self._graph(forward_batch)
        self._see_drafts("graph", graph)
        graph_kv = self._see_kv("graph", before)
        self._see_caller("after_graph", forward_batch)
        self._see_guards()
        self._restore(before)
        eager, eager_kv = self._eager("eager", self.rows, before)
        if not (_same(graph, eager) and _same_kv(graph_kv, eager_kv)):
            self._eager_again(before)

    def _graph(self, forward_batch: Any) -> Drafts:
        session = self.session

        def launched(_: object) -> None:
            self._see_launch()
            self.watch.at(self.number, "replay")

        engine.Graph.before_replay = launched
        try:
            with session.timed("graph", self.watch):
                return _cloned(session.adapter.graph(session.runner, forward_batch))
        finally:
            engine.Graph.before_replay = None

    def _eager(self, path: str, rows: Rows, before: list[torch.Tensor]) -> tuple[Drafts, Any]:
        """An eager pass; it leaves its KV cache behind."""
        session = self.session
        forward_batch = session.adapter.batch(session.live, self._copied(rows))
        self.watch.at(self.number, path)
        with session.timed("eager", self.watch):
            drafts = _cloned(session.adapter.eager(session.live, forward_batch))
        drafts = Drafts(
            parents=drafts.parents[: self.rows.count],
            scores_index=drafts.scores_index[: self.rows.count],
            tokens=drafts.tokens[: self.rows.count],
        )
        self._see_drafts(path, drafts)
        kv = self._see_kv(path, before)
        if path == "eager":
            self._see_caller("after_eager", forward_batch)
        return drafts, kv

    def _eager_again(self, before: list[torch.Tensor]) -> None:
        """Graph and eager differ: measure how far eager differs from itself, then put its first result back."""
        kept = [tensor.clone() for tensor in self.session.kv]
        nudge = NUDGE[self.session.dtype]
        for path, rows in (
            ("eager_again", self._padded(self.rows)),
            ("eager_nudged_up", _nudged(self.rows, 1 + nudge)),
            ("eager_nudged_down", _nudged(self.rows, 1 - nudge)),
        ):
            self._restore(before)
            self._eager(path, rows, before)
        self._restore(kept)

    # Inputs ------------------------------------------------------------------------------------------------------

    def _rows(self, requests: tuple[Request, ...]) -> Rows:
        setup, session = self.setup, self.session
        table, topk = session.table, setup.topk
        locations = [table[r.slot, draft_positions(setup, r.seq_len)].reshape(-1) for r in requests]
        lengths = np.array([r.seq_len for r in requests], dtype=np.int64)
        chances = np.stack([np.sort(np.abs(floats(r.data, "topk_p", (topk,))))[::-1] for r in requests])
        tokens = np.stack([integers(r.data, "topk_index", (topk,), setup.vocab_size) for r in requests])
        hidden = np.stack([floats(r.data, "hidden_states", (setup.hidden_size,)) for r in requests])

        def put(array: Array) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(session.device)

        return Rows(
            req_pool_indices=put(np.array([r.slot for r in requests], dtype=np.int64)),
            seq_lens=put(lengths),
            out_cache_loc=put(np.concatenate(locations)),
            positions=put(np.repeat(lengths, topk)),
            topk_p=put(chances),
            topk_index=put(tokens),
            hidden_states=put(hidden).to(session.dtype),
        )

    def _padded(self, rows: Rows) -> Rows:
        """The batch padded to its bucket as the graph pads it: row 0 of req_to_token, slot 0, neutral lengths."""
        missing = self.setup.bucket(rows.count) - rows.count
        topk = self.setup.topk

        def extended(tensor: torch.Tensor, count: int, value: int = 0) -> torch.Tensor:
            return torch.cat((tensor, tensor.new_full((count, *tensor.shape[1:]), value)))

        return Rows(
            req_pool_indices=extended(rows.req_pool_indices, missing),
            seq_lens=extended(rows.seq_lens, missing, self.session._neutral.get("seq_lens", 0)),
            out_cache_loc=extended(rows.out_cache_loc, missing * topk * self.setup.num_steps),
            positions=extended(rows.positions, missing * topk),
            topk_p=extended(rows.topk_p, missing),
            topk_index=extended(rows.topk_index, missing),
            hidden_states=extended(rows.hidden_states, missing),
        )

    @staticmethod
    def _copied(rows: Rows) -> Rows:
        return Rows(**{name: getattr(rows, name).clone() for name in Rows.__slots__})

    def _fill_prefixes(self) -> None:
        """Put each request's prefix into the KV cache, from its `data`, whatever ran before."""
        session = self.session
        for request in self.requests:
            slots = torch.from_numpy(session.table[request.slot, : request.seq_len]).to(session.device)
            for number, tensor in enumerate(session.kv):
                shape = (self.setup.context_len, *tensor.shape[1:])
                values = torch.from_numpy(floats(request.data, f"prefix{number}", shape)[: request.seq_len])
                tensor[slots] = values.to(session.device, tensor.dtype)

    def _restore(self, before: list[torch.Tensor]) -> None:
        for tensor, contents in zip(self.session.kv, before, strict=True):
            tensor.copy_(contents)

    # Recording ---------------------------------------------------------------------------------------------------

    def _see(self, path: str, name: str, value: object) -> None:
        array = _array(value)
        if array is not None:
            self.watch.see(self.number, path, name, array)

    def _see_input(self) -> None:
        count = self.rows.count
        for name in Rows.__slots__:
            self._see("input", name, getattr(self.rows, name).reshape(count, -1).squeeze(-1))

    def _see_caller(self, path: str, forward_batch: Any) -> None:
        for name in CALLERS:
            self._see(path, name, getattr(forward_batch, name))
        for name in CALLERS_SPEC:
            self._see(path, name, getattr(forward_batch.spec_info, name))

    def _see_launch(self) -> None:
        session, runner = self.session, self.session.runner
        self._see("launch", "bs", runner.bs)
        self._see("launch", "raw_bs", runner.raw_bs)
        for name, tensor in session.buffers.items():
            self._see("launch", name, tensor.reshape(self.setup.max_bs, -1).squeeze(-1))
            self._see("neutral", name, session._neutral.get(name.removesuffix("_cpu"), 0))
        backend = session.live.backend
        used = self.setup.topk * (int(self.rows.seq_lens.sum()) + self.setup.max_bs * (self.setup.num_steps + 1))
        self._see("metadata", "kv_indptr", backend.kv_indptr)
        self._see("metadata", "kv_indices", backend.cuda_graph_kv_indices[:, :used])

    def _see_drafts(self, path: str, drafts: Drafts) -> None:
        self._see(path, "parents", drafts.parents)
        self._see(path, "scores_index", drafts.scores_index)
        self._see(path, "tokens", drafts.tokens)

    def _see_kv(self, path: str, before: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Record which KV slots changed since `before`, and to what: [n] and [n, layers * 2 * heads * head_dim]."""
        changed = torch.zeros(before[0].shape[0], dtype=torch.bool, device=before[0].device)
        for tensor, contents in zip(self.session.kv, before, strict=True):
            changed |= (_bits(tensor) != _bits(contents)).flatten(1).any(1)
        slots = changed.nonzero().flatten()
        rows = torch.cat([tensor[slots].flatten(1) for tensor in self.session.kv], dim=1)
        self._see(path, "kv_slots", slots)
        self._see(path, "kv_rows", rows)
        return slots, rows

    def _see_guards(self) -> None:
        for name, guarded in self.session.guarded.items():
            self._see_guard(name, guarded)

    def _see_guard(self, name: str, guarded: Guarded) -> None:
        bands = guarded.bands()
        self._see("guard", name, bands)
        self._see("guard", f"{name}.want", np.frombuffer(untouched(bands.numel()), dtype=np.uint8))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, so that equal NaNs are equal and zeros of different sign are not."""
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def _array(value: object) -> Array | None:
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
    return np.asarray(value)


def _cloned(drafts: Drafts) -> Drafts:
    return Drafts(
        parents=drafts.parents.clone(), scores_index=drafts.scores_index.clone(), tokens=drafts.tokens.clone()
    )


def _nudged(rows: Rows, factor: float) -> Rows:
    return Rows(
        **{name: getattr(rows, name) for name in Rows.__slots__ if name != "hidden_states"},
        hidden_states=(rows.hidden_states.float() * factor).to(rows.hidden_states.dtype),
    )


def _same(a: Drafts, b: Drafts) -> bool:
    return (
        torch.equal(a.parents, b.parents)
        and torch.equal(a.scores_index, b.scores_index)
        and torch.equal(a.tokens, b.tokens)
    )


def _same_kv(a: tuple[torch.Tensor, torch.Tensor], b: tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Slot 0 apart, in which padded rows write, the same slots changed to the same contents."""
    (slots_a, rows_a), (slots_b, rows_b) = a, b
    real_a, real_b = slots_a != 0, slots_b != 0
    return torch.equal(slots_a[real_a], slots_b[real_b]) and torch.equal(_bits(rows_a[real_a]), _bits(rows_b[real_b]))
