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
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repro.case import Case, Setup, Step, Target
from repro.layout import draft_positions, req_to_token
from repro.payload import NOISE_SIZE, floats, integers, noise, window
from repro.trace import Array
from runners.engines.guards import Guards, untouched
from runners.engines.tape import Tape
from runners.overlay import overlay_at
from runners.releases import catalogue, model
from runners.releases.live import Adapter, Drafts, Live, Rows
from runners.watch import RunCase, Unfit, Watch

if os.environ.get("TRITON_INTERPRET") == "1":
    from runners.engines import emulated as engine
else:
    from runners.engines import cuda as engine  # type: ignore[no-redef]

# Record KV contents and eager's noise even where both paths agree: what two engines are compared by.
WHOLE = os.environ.get("EAGLEEYE_RECORD") == "whole"

# How far hidden states are moved to see whether an output hangs on rounding: a few units in the last place.
NUDGE = {torch.float32: 2.0**-21, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}

# The caller's fields that a runner may touch, and the runner's input buffers that a step fills.
CALLERS = ("batch_size", "seq_lens", "seq_lens_cpu", "seq_lens_sum", "req_pool_indices", "positions", "out_cache_loc")
CALLERS_SPEC = ("topk_p", "topk_index", "hidden_states")
BUFFERS = ("seq_lens", "seq_lens_cpu", "req_pool_indices", "out_cache_loc", "positions", *CALLERS_SPEC)


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
    overlay = overlay_at(Path(target.sglang)) if target.is_checkout else None
    if overlay and overlay.release != RELEASE:
        raise Unfit(f"asked for sglang {overlay}, found {RELEASE} on the import path")
    told = {"overlay": str(overlay)} if overlay else {}
    return told | {
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
        self.device = torch.device(engine.device)
        self.table = req_to_token(setup)
        guards = Guards(engine.capturing)
        with guards, model.folders(setup) as folders:
            self.live: Live = adapter.build(setup, engine.device, folders)
            model.fill_weights(self.live.model_runner.model)
            self.dtype: torch.dtype = self.live.model_runner.dtype
            self._fill_memory()
            watch.at(-1, "capture")
            self.runner = adapter.capture(self.live)
        self.neutral = dict(adapter.neutral(self.live))
        self.noise = torch.from_numpy(noise()).to(self.device, self.dtype)
        self.buffers = self._input_buffers()
        static = self._static_tensors()
        self.bands = guards.bands(static)
        self._static = list(static.values())
        self._start = [tensor.clone() for tensor in self._static]

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
        for tensor, contents in zip(self._static, self._start, strict=True):
            tensor.copy_(contents)
        watch.see(-1, "input", "req_to_token", self.table)
        for name in self.buffers:
            watch.see(-1, "neutral", name, np.asarray(self.neutral.get(name.removesuffix("_cpu"), 0)))
        for number, step in enumerate(case.steps):
            try:
                _Step(self, number, step, watch).run()
            except _Theirs as raised:
                raise raised.error from None
            except torch.AcceleratorError:  # of the graph or of a kernel before it, wherever it surfaces
                raise
            except Exception as error:
                raise Unfit(f"the session failed: {type(error).__name__}: {error}") from error

    @contextmanager
    def timed(self, stage: str, watch: Watch) -> Iterator[None]:
        """Run sglang's code: what it raises is a finding. Adds the time until the device is done, so that an
        asynchronous error surfaces here."""
        start = time.perf_counter()
        try:
            yield
            engine.synchronize()
        except Unfit:
            raise
        except Exception as error:
            raise _Theirs(error) from error
        watch.spent(stage, time.perf_counter() - start)


class _Theirs(Exception):
    """Carries what sglang's code raised past what would take our own mistakes for it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Step:
    """One call of the runner: the graph path, then the eager path from the same memory."""

    def __init__(self, session: Session, number: int, step: Step, watch: Watch) -> None:
        self.session, self.number, self.watch = session, number, watch
        self.setup = session.setup
        self.requests = step.requests
        self.tape = Tape(watch.see)
        self.given = self._given()
        self.rows = self._rows()

    def run(self) -> None:
        session = self.session
        self._fill_cache()
        before = [tensor.clone() for tensor in session.kv]
        forward_batch = session.adapter.batch(session.live, self.rows.copied())
        self._see_caller("before", forward_batch)
        self.watch.at(self.number, "graph")
        self._see_drafts("graph", self._graph(forward_batch))
        self._see_slots("graph", before)
        self._see_caller("after_graph", forward_batch)
        self._ask_bands()
        self.tape.hold()
        graph_kv = [tensor.clone() for tensor in session.kv]
        self._restore(before)
        forward_batch = self._eager("eager", self.rows)
        self._see_slots("eager", before)
        self._see_caller("after_eager", forward_batch)
        self.tape.see(self.number, "eager", "kv_same", _same_contents(graph_kv, session.kv), tell=False)
        came = self.tape.flush()
        self._see_bands(came)
        if _equal(came) and not WHOLE:
            self._see("eager", "kv_same", 1)
        else:
            self._see_rows("graph", came, graph_kv)
            self._see_rows("eager", came, session.kv)
            self._measure_noise(before)

    def _graph(self, forward_batch: Any) -> Drafts:
        session = self.session

        def launched(_: object) -> None:
            start = time.perf_counter()
            try:
                self._see_launch()
                self.tape.flush()
            except torch.AcceleratorError:
                raise
            except Exception as error:
                raise Unfit(f"the launch could not be recorded: {type(error).__name__}: {error}") from error
            self.watch.at(self.number, "replay")
            self.watch.spent("graph", start - time.perf_counter())  # recording is no part of the path

        engine.Graph.before_replay = launched
        try:
            with session.timed("graph", self.watch):
                return session.adapter.graph(session.runner, forward_batch)
        finally:
            engine.Graph.before_replay = None

    def _eager(self, path: str, rows: Rows) -> Any:
        """An eager pass; it leaves its KV cache behind. The batch, as the pass left it."""
        session = self.session
        forward_batch = session.adapter.batch(session.live, rows.copied())
        self.watch.at(self.number, path)
        with session.timed("eager", self.watch):
            drafts = session.adapter.eager(session.live, forward_batch)
        self._see_drafts(path, drafts)
        return forward_batch

    def _measure_noise(self, before: list[torch.Tensor]) -> None:
        """Graph and eager differ: measure how far eager differs from itself, then put its first result back."""
        kept = [tensor.clone() for tensor in self.session.kv]
        nudge = NUDGE[self.session.dtype]
        for path, rows in (
            ("eager_again", self.rows.padded(self.setup, self.session.neutral)),
            ("eager_nudged_up", self.rows.nudged(1 + nudge)),
            ("eager_nudged_down", self.rows.nudged(1 - nudge)),
        ):
            self._restore(before)
            self._eager(path, rows)
            self._see_slots(path, before)
            self._see_rows(path, self.tape.flush(), self.session.kv)
        self._restore(kept)

    # Inputs ------------------------------------------------------------------------------------------------------

    def _given(self) -> dict[str, Array]:
        """The batch as host arrays, one row per request, and recorded as such."""
        setup, requests = self.setup, self.requests
        table, topk = self.session.table, setup.topk
        lengths = np.array([r.seq_len for r in requests], dtype=np.int64)
        given: dict[str, Array] = {
            "req_pool_indices": np.array([r.slot for r in requests], dtype=np.int64),
            "seq_lens": lengths,
            "out_cache_loc": np.stack([table[r.slot, draft_positions(setup, r.seq_len)].reshape(-1) for r in requests]),
            "positions": np.repeat(lengths[:, None], topk, axis=1),
            "topk_p": np.stack([np.sort(np.abs(floats(r.data, "topk_p", (topk,))))[::-1] for r in requests]),
            "topk_index": np.stack([integers(r.data, "topk_index", (topk,), setup.vocab_size) for r in requests]),
            "hidden_states": np.stack([floats(r.data, "hidden_states", (setup.hidden_size,)) for r in requests]),
        }
        return given

    def _rows(self) -> Rows:
        session, given = self.session, self.given
        put = {name: torch.from_numpy(np.ascontiguousarray(array)).to(session.device) for name, array in given.items()}
        put["hidden_states"] = put["hidden_states"].to(session.dtype)
        rows = Rows(**(put | {name: put[name].flatten() for name in ("out_cache_loc", "positions")}))
        for name in Rows.__slots__:
            self._see("input", name, put[name].reshape(rows.count, -1).squeeze(-1))
        return rows

    def _fill_cache(self) -> None:
        """Put each request's prefix into the KV cache, from its `data`, whatever ran before; and into the slots of
        its drafts what differs from step to step, so that every write shows as a change."""
        session, table = self.session, self.session.table
        slots = np.concatenate([table[r.slot, : r.seq_len] for r in self.requests] + [self.given["out_cache_loc"].flat])
        for number, tensor in enumerate(session.kv):
            width = tensor[0].numel()
            starts = [
                window(r.data, f"prefix{number}") + np.arange(r.seq_len, dtype=np.int64) * width for r in self.requests
            ]
            drafts = self.given["out_cache_loc"].size
            starts.append(window(self.number, f"stale{number}") + np.arange(drafts, dtype=np.int64) * width)
            where = torch.from_numpy(np.stack([slots, np.concatenate(starts)])).to(session.device)
            cells = (where[1][:, None] + torch.arange(width, device=session.device)) & (NOISE_SIZE - 1)
            tensor.view(len(tensor), width)[where[0]] = session.noise[cells]

    def _restore(self, before: list[torch.Tensor]) -> None:
        for tensor, contents in zip(self.session.kv, before, strict=True):
            tensor.copy_(contents)

    # Recording ---------------------------------------------------------------------------------------------------

    def _see(self, path: str, name: str, value: object) -> None:
        self.tape.see(self.number, path, name, value)

    def _see_caller(self, path: str, forward_batch: Any) -> None:
        for name in CALLERS:
            self._see(path, name, getattr(forward_batch, name))
        for name in CALLERS_SPEC:
            self._see(path, name, getattr(forward_batch.spec_info, name))
        self.tape.hold()

    def _see_launch(self) -> None:
        session, runner = self.session, self.session.runner
        self._see("launch", "bs", runner.bs)
        self._see("launch", "raw_bs", runner.raw_bs)
        for name, tensor in session.buffers.items():
            self._see("launch", name, tensor.reshape(self.setup.max_bs, -1).squeeze(-1))
        backend = session.live.backend
        used = self.setup.topk * (int(self.given["seq_lens"].sum()) + self.setup.max_bs * (self.setup.num_steps + 1))
        self._see("metadata", "kv_indptr", backend.kv_indptr)
        self._see("metadata", "kv_indices", backend.cuda_graph_kv_indices[:, :used])

    def _see_drafts(self, path: str, drafts: Drafts) -> None:
        """The rows of real requests: an eager pass over a padded batch gives more."""
        for name in Drafts.__slots__:
            self._see(path, name, getattr(drafts, name)[: self.rows.count])

    def _see_slots(self, path: str, before: list[torch.Tensor]) -> None:
        """Record which KV slots have changed in any bit since `before`."""
        differs = [
            (_bits(tensor) != _bits(contents)).flatten(1).any(1)
            for tensor, contents in zip(self.session.kv, before, strict=True)
        ]
        changed = torch.stack(differs).any(0)
        self.tape.see(self.number, path, "kv_slots", changed, as_slots=True)

    def _see_rows(self, path: str, came: dict[tuple[str, str], Array], kv: list[torch.Tensor]) -> None:
        """Record what lies in the changed KV slots: [n, layers * 2 * heads * head_dim]."""
        slots = torch.from_numpy(came[path, "kv_slots"]).to(self.session.device)
        self._see(path, "kv_rows", torch.cat([tensor[slots].flatten(1) for tensor in kv], dim=1))
        self.tape.flush()

    def _ask_bands(self) -> None:
        for number, bands in enumerate(self.session.bands):
            self.tape.see(self.number, "guard", f"broken{number}", bands.broken(), tell=False)

    def _see_bands(self, came: dict[tuple[str, str], Array]) -> None:
        intact = 0
        for number, bands in enumerate(self.session.bands):
            if not came["guard", f"broken{number}"]:
                intact += bands.filling.numel()
                continue
            for name, contents in bands.contents().items():
                self._see("guard", name, contents)
                self._see("guard", f"{name}.want", np.frombuffer(untouched(contents.numel()), dtype=np.uint8))
        self._see("guard", "intact", intact)
        self.tape.flush()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, so that equal NaNs are equal and zeros of different sign are not."""
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def _same_contents(a: list[torch.Tensor], b: list[torch.Tensor]) -> torch.Tensor:
    """Whether two KV caches hold the same bits, slot 0 apart, in which padded rows write: a scalar on the device."""
    equal = [(_bits(x)[1:] == _bits(y)[1:]).all() for x, y in zip(a, b, strict=True)]
    return torch.stack(equal).all()


def _equal(came: dict[tuple[str, str], Array]) -> bool:
    """Whether both paths gave the same drafts and left the same KV cache."""
    drafts = all(np.array_equal(came["graph", name], came["eager", name]) for name in Drafts.__slots__)
    return drafts and bool(came["eager", "kv_same"])
