"""A padded static-buffer graph runner in memory, in numpy, with bugs on request: the whole line runs in milliseconds
and each oracle can show that it catches its bug by name. The target's name says which: clean/toy, stale_padding/toy.

It does what sglang's draft runner does: buckets, buffers that live as long as the session, padding resets, kv_indices
packed from req_to_token into a buffer of fixed width, and a caller's batch that is padded in place and put back. A
"graph" is the draft computation over views of the buffers. It computes in float32 whatever the setup's dtype.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np

from repro.cases.case import Case, Request, Setup, Target
from repro.cases.layout import draft_positions
from repro.cases.payload import floats, integers
from repro.traces.paths import VARIANTS, Recorded
from repro.traces.trace import Array
from runners.recording.observer import HarnessError, RunCase, Unsupported, Watch
from runners.toy.draft import KV_WIDTH, Floats, Tree
from runners.toy.runner import BUGS, NEUTRAL, Batch, Session, build_session, first_rows, reset, run_eager, run_graph

BARE = os.environ.get("EAGLEEYE_RECORD") == "bare"


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """Build the buffers for a setup. Unsupported if the target names no bug, or one that is about this."""
    if target.sglang not in BUGS:
        raise Unsupported(f"the toy plants no {target.sglang!r}; it knows {', '.join(BUGS)}")
    if target.sglang == "unsupported":
        raise Unsupported("this toy target cannot be built anywhere")
    if target.sglang == "broken":
        raise HarnessError("this toy session never works")
    watch.at(-1, "build")
    watch.fact("sglang", f"toy with {target.sglang}: {BUGS[target.sglang]}")
    begun = time.perf_counter()
    session = build_session(setup, target.sglang)
    watch.spent("build", time.perf_counter() - begun)

    def run_case(case: Case, watch: Watch) -> None:
        if case.setup != setup:
            raise HarnessError("the case has another setup than the session that was opened for it")
        reset(session)
        if BARE:
            _bare_loop(session, case, watch)
            return
        watch.see(-1, Recorded.INPUT, "req_to_token", session.table)
        for step, planned in enumerate(case.steps):
            _run_step(session, watch, step, planned.requests)

    return run_case


def close_session() -> None:
    """Nothing stays: another setup can be opened in this process."""


def _bare_loop(session: Session, case: Case, watch: Watch) -> None:
    """Both paths of every step and nothing else, as the stage `bare`."""
    batches = []
    for step in case.steps:
        _fill_prefixes(session, step.requests)
        inputs = _given(session, step.requests)
        batches.append((inputs, copy.deepcopy(inputs)))
    watch.at(0, "bare")
    begun = time.perf_counter()
    for graph_batch, eager_batch in batches:
        run_graph(session, graph_batch, see=lambda path, arrays: None, launching=lambda: None)
        run_eager(session, eager_batch)
    watch.spent("bare", time.perf_counter() - begun)


def _run_step(session: Session, watch: Watch, step: int, requests: tuple[Request, ...]) -> None:
    inputs = _given(session, requests)
    _fill_prefixes(session, requests)
    _see(watch, step, Recorded.INPUT, {name: getattr(inputs, name) for name in NEUTRAL})
    _see(watch, step, Recorded.BEFORE, _fields(inputs))
    before = session.kv.copy()

    watch.at(step, "graph")
    batch = copy.deepcopy(inputs)
    begun = time.perf_counter()
    tree = run_graph(
        session,
        batch,
        see=lambda path, arrays: _see(watch, step, path, arrays),
        launching=lambda: watch.at(step, "replay"),
    )
    watch.spent("graph", time.perf_counter() - begun)
    graph = _outputs(session, tree, before)
    _see(watch, step, Recorded.GRAPH, graph)
    _see(watch, step, Recorded.AFTER_GRAPH, _fields(batch))
    session.kv[...] = before

    watch.at(step, "eager")
    batch = copy.deepcopy(inputs)
    begun = time.perf_counter()
    tree = run_eager(session, batch)
    watch.spent("eager", time.perf_counter() - begun)
    eager = _outputs(session, tree, before)
    _see(watch, step, Recorded.EAGER, eager)
    _see(watch, step, Recorded.AFTER_EAGER, _fields(batch))
    after = session.kv.copy()
    if _differ(session.setup, graph, eager):
        _run_variants(session, watch, step, inputs, before)
    elif watch.reference_steps is None or step in watch.reference_steps:
        _see(watch, step, Recorded.REFERENCE, _reference(session, inputs, before, after))
    session.kv[...] = after


def _fill_prefixes(session: Session, requests: tuple[Request, ...]) -> None:
    """Put each request's prefix into the KV cache, from its `data`, whatever ran before."""
    for request in requests:
        prefix = floats(request.data, "prefix", (request.seq_len, KV_WIDTH))
        session.kv[session.table[request.slot, : request.seq_len]] = prefix


def _run_variants(session: Session, watch: Watch, step: int, inputs: Batch, before: Floats) -> None:
    """Eager at the graph's padded shapes, and eager with the hidden states one bit up and down."""
    up, down = (np.nextafter(inputs.hidden_states, np.float32(end)) for end in (np.inf, -np.inf))
    padding = session.setup.bucket(inputs.batch_size) - inputs.batch_size
    runs = zip(VARIANTS, (inputs.hidden_states, up, down), (padding, 0, 0), strict=True)
    for path, hidden, padding_rows in runs:
        watch.at(step, path)
        session.kv[...] = before
        batch = copy.deepcopy(inputs)
        batch.hidden_states = hidden
        if padding_rows:
            for name in NEUTRAL:
                rows = getattr(batch, name)
                neutral = np.full((padding_rows, *rows.shape[1:]), NEUTRAL[name], dtype=rows.dtype)
                setattr(batch, name, np.concatenate([rows, neutral]))
        tree = run_eager(session, batch)
        _see(watch, step, path, _outputs(session, first_rows(tree, inputs.batch_size), before))


def _reference(session: Session, inputs: Batch, before: Floats, after: Floats) -> dict[str, Array]:
    """The right results of the step: eager without the bug, exact in every bit, so that all bounds are 0. after: what
    both paths left."""
    sound = replace(session, bug="clean", kv=before.copy())
    outputs = _outputs(sound, run_eager(sound, copy.deepcopy(inputs)), before)
    slots, rows = np.asarray(outputs["kv_slots"], dtype=np.int64), outputs["kv_rows"]
    exact: dict[str, Array] = {name: array for name, array in outputs.items() if name not in ("kv_slots", "kv_rows")}
    exact |= {f"{name}.bound": np.zeros(array.shape) for name, array in exact.items()}
    kv = {"kv_rows.bound": np.zeros(rows.shape), "kv_rows.norm": np.zeros((len(rows), 1))}
    return exact | kv | {"kv_slots": slots, "kv_rows": rows, "kv_graph": after[slots], "kv_eager": after[slots]}


def _given(session: Session, requests: tuple[Request, ...]) -> Batch:
    """The batch as a caller would make it, its contents drawn from each request's `data`."""
    setup, table = session.setup, session.table
    slots = [table[r.slot, draft_positions(setup, r.seq_len)].reshape(-1) for r in requests]
    lengths = np.array([r.seq_len for r in requests], dtype=np.int64)
    shares = [np.abs(floats(r.data, "topk_p", (setup.topk,))) + np.float32(2.0**-8) for r in requests]
    return Batch(
        batch_size=len(requests),
        seq_lens=lengths,
        seq_lens_cpu=lengths.copy(),
        seq_lens_sum=int(lengths.sum()),
        req_pool_indices=np.array([r.slot for r in requests], dtype=np.int64),
        positions=np.repeat(lengths[:, None], setup.topk, axis=1),
        out_cache_loc=np.stack(slots),
        topk_p=np.stack([-np.sort(-share / share.sum()) for share in shares]),
        topk_index=np.stack([integers(r.data, "topk_index", (setup.topk,), setup.vocab_size) for r in requests]),
        hidden_states=np.stack([floats(r.data, "hidden_states", (setup.hidden_size,)) for r in requests]),
    )


def _fields(batch: Batch) -> dict[str, Array]:
    """Every field of the batch as an array, the numbers among them too."""
    return {field.name: np.asarray(getattr(batch, field.name)) for field in fields(Batch)}


def _outputs(session: Session, tree: Tree, before: Floats) -> dict[str, Array]:
    """The results of a path: its tree, and the KV slots whose contents changed in any bit."""
    changed = np.flatnonzero((session.kv.view(np.uint32) != before.view(np.uint32)).any(axis=1))
    outputs: dict[str, Array] = {field.name: getattr(tree, field.name) for field in fields(Tree)}
    return {**outputs, "kv_slots": changed, "kv_rows": session.kv[changed]}


def _differ(setup: Setup, graph: Mapping[str, Array], eager: Mapping[str, Array]) -> bool:
    """True if the two paths differ outside the reserved page, in which padded rows write."""
    unreserved = [np.asarray(outputs["kv_slots"], dtype=np.int64) >= setup.page_size for outputs in (graph, eager)]
    kv = ("kv_slots", "kv_rows")
    return any(
        not np.array_equal(graph[name][unreserved[0]], eager[name][unreserved[1]])
        if name in kv
        else not np.array_equal(graph[name], eager[name])
        for name in graph
    )


def _see(watch: Watch, step: int, path: str, arrays: Mapping[str, Array]) -> None:
    begun = time.perf_counter()
    for name, array in arrays.items():
        watch.see(step, path, name, array)
    watch.spent("record", time.perf_counter() - begun)
