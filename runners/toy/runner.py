"""The toy's runner: static buffers, padding resets, attention metadata, the graph path and the eager path, and in them
the bugs that a target's name asks for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from repro.cases.case import Setup
from repro.cases.layout import draft_positions, pool_tokens, req_to_token
from repro.cases.payload import floats
from repro.traces.paths import Recorded
from repro.traces.trace import Array
from runners.toy.draft import KV_WIDTH, Floats, Inputs, Ints, Model, Segments, Tree, draft, make_model

See = Callable[[str, Mapping[str, Array]], None]  # records the arrays of one path

# What each target plants. The first three are right: a sound oracle does not fail them.
BUGS: Mapping[str, str] = {
    "clean": "nothing",
    "rounding": "the graph rounds its hidden states otherwise than eager, by one bit",
    "tie": "as rounding, over a model in which that bit decides between equal candidates",
    "stale_padding": "padding resets seq_lens, positions and out_cache_loc, and forgets the other buffers",
    "stale_req_pool": "padding forgets req_pool_indices",
    "stale_seq_lens": "padding forgets seq_lens",
    "stale_mirror": "metadata is made with the host lengths of the batch before, where this one is padded",
    "sum_of_the_batch": "metadata of a padded batch is made with the sum of its own lengths",
    "row_not_staged": "the last request's topk_index is not copied into its buffer",
    "kv_indices_short": "the kv_indices buffer lacks the topk factor, so that long rows run into the next",
    "branches_overlap": "all branches of a request get the draft slots of its first branch",
    "guard_overrun": "one entry is written behind the kv_indptr buffer",
    "indptr_off": "in kv_indptr the first row ends one entry early",
    "kv_write_astray": "the graph also writes to the first prefix token of the first request",
    "eager_write_astray": "the eager path does",
    "wrong_bucket": "the bucket after the smallest that fits is launched",
    "caller_left_padded": "the caller's padded seq_lens and batch_size are not put back",
    "graph_differs": "the graph drafts from other first tokens than those staged",
    "kv_values_differ": "the graph writes a wrong value for the last draft step",
    "write_missed": "the graph does not keep its KV write of the last draft step",
    "wrong_alike": "graph and eager draft from twice the hidden states",
    "raises": "a padded batch raises AssertionError in the graph path",
    "crash": "a launch aborts the process",
    "exit": "a launch ends the process with status 0",
    "hang": "a launch never returns",
    "garbage": "a launch prints binary garbage to file descriptor 1",
    "unsupported": "the session says that it cannot be opened here",
    "broken": "the session fails by a mistake of its own while it opens",
}

NEUTRAL: Mapping[str, int] = {
    "seq_lens": 1,
    "req_pool_indices": 0,
    "out_cache_loc": 0,
    "positions": 0,
    "topk_p": 0,
    "topk_index": 0,
    "hidden_states": 0,
}
FORGOTTEN: Mapping[str, frozenset[str]] = {
    "stale_padding": frozenset({"topk_p", "topk_index", "hidden_states", "req_pool_indices"}),
    "stale_req_pool": frozenset({"req_pool_indices"}),
    "stale_seq_lens": frozenset({"seq_lens"}),
}
GUARD = 16  # entries on either side of a guarded buffer
GUARD_VALUE = -7777  # no KV slot and no row start


@dataclass(slots=True, kw_only=True)
class Batch:
    """The caller's batch. Mutable, since runners pad it in place and must put it back."""

    batch_size: int
    seq_lens: Ints
    seq_lens_cpu: Ints
    seq_lens_sum: int
    req_pool_indices: Ints
    positions: Ints
    out_cache_loc: Ints
    topk_p: Floats
    topk_index: Ints
    hidden_states: Floats


class Guarded:
    """A buffer [rows, width] between two guard bands. It can be addressed past a row's end, as on a GPU."""

    def __init__(self, rows: int, width: int) -> None:
        self.rows, self.width = rows, width
        self.flat = np.zeros(rows * width + 2 * GUARD, dtype=np.int64)
        self.reset()

    def reset(self) -> None:
        self.flat[GUARD:-GUARD] = 0
        self.flat[:GUARD] = self.flat[-GUARD:] = GUARD_VALUE

    def view(self) -> Ints:
        return self.flat[GUARD:-GUARD].reshape(self.rows, self.width)

    def write(self, row: int, values: Ints) -> None:
        """Write from the start of a row on, whatever its width; the far end of memory swallows the rest."""
        row_view = self.flat[GUARD + row * self.width :]
        row_view[: values.size] = values[: row_view.size]

    def from_row(self, row: int) -> Ints:
        """The entries from the start of a row on, past its end."""
        return self.flat[GUARD + row * self.width :]

    def bands(self) -> Ints:
        return np.concatenate([self.flat[:GUARD], self.flat[-GUARD:]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The state that lives as long as the capture: the buffers under the names of trace.py, metadata and the KV
    cache."""

    setup: Setup
    bug: str
    model: Model
    table: Ints
    buffers: dict[str, Array]
    buffers_on_host: dict[str, Array]
    indptr: Guarded
    indices: Guarded
    kv: Floats
    kv_at_start: Floats


def build_session(setup: Setup, bug: str) -> Session:
    bs, topk, rows = setup.max_bs, setup.topk, setup.num_steps
    kv = floats(3, "toy kv", (pool_tokens(setup) + setup.page_size, KV_WIDTH))
    buffers: dict[str, Array] = {
        "seq_lens": np.zeros(bs, dtype=np.int32),
        "req_pool_indices": np.zeros(bs, dtype=np.int64),
        "out_cache_loc": np.zeros((bs, topk * setup.num_steps), dtype=np.int64),
        "positions": np.zeros((bs, topk), dtype=np.int64),
        "topk_p": np.zeros((bs, topk), dtype=np.float32),
        "topk_index": np.zeros((bs, topk), dtype=np.int64),
        "hidden_states": np.zeros((bs, setup.hidden_size), dtype=np.float32),
    }
    return Session(
        setup=setup,
        bug=bug,
        model=make_model(setup, ties=bug == "tie"),
        table=req_to_token(setup),
        buffers=buffers,
        buffers_on_host={"seq_lens_cpu": np.zeros(bs, dtype=np.int64)},
        indptr=Guarded(rows, bs * topk + 1),
        indices=Guarded(rows, bs * setup.context_len * (1 if bug == "kv_indices_short" else topk)),
        kv=kv,
        kv_at_start=kv.copy(),
    )


def reset(session: Session) -> None:
    """Back to how the session was opened: a case must run alike alone and after another."""
    for name, buffer in session.buffers.items():
        buffer[...] = NEUTRAL[name]
    session.buffers_on_host["seq_lens_cpu"][...] = NEUTRAL["seq_lens"]
    session.indptr.reset()
    session.indices.reset()
    session.kv[...] = session.kv_at_start


def run_graph(session: Session, batch: Batch, see: See, launching: Callable[[], None]) -> Tree:
    """The graph path: pad, stage, build metadata, launch, cut back to the batch, put the caller's batch back.

    launching is called right before the launch, when everything that explains a crash has been seen.
    """
    raw_bs = batch.batch_size
    bs = _bucket(session, raw_bs)
    if session.bug == "raises" and bs != raw_bs:
        raise AssertionError(f"expected {bs} rows, got {raw_bs}")
    _stage(session, batch, raw_bs, bs)
    rows = {name: buffer[:bs] for name, buffer in session.buffers.items()}
    see(Recorded.PLANNED, _plan(session, batch, rows, raw_bs))
    if bs != raw_bs:
        _point_to(batch, session, bs)
    _pack(session, rows)
    metadata = {"kv_indptr": session.indptr, "kv_indices": session.indices}
    see(Recorded.LAUNCH, {**session.buffers, "bs": np.array(bs), "raw_bs": np.array(raw_bs)})
    see(Recorded.NEUTRAL, {name: np.array(value) for name, value in NEUTRAL.items()})
    see(Recorded.METADATA, {name: guarded.view() for name, guarded in metadata.items()})
    launching()
    _misbehave(session.bug)
    tree = _launch(session, rows)
    for name, guarded in metadata.items():
        see(Recorded.GUARD, {name: guarded.bands(), f"{name}.want": np.full(2 * GUARD, GUARD_VALUE)})
    if bs != raw_bs and session.bug != "caller_left_padded":
        _point_to(batch, session, raw_bs)
    return first_rows(tree, raw_bs)


def _plan(session: Session, batch: Batch, rows: Mapping[str, Array], raw_bs: int) -> dict[str, Array]:
    """The values that the metadata is made of."""
    bs = len(rows["seq_lens"])
    mirror = session.buffers_on_host["seq_lens_cpu"]
    if bs == raw_bs or session.bug != "stale_mirror":
        mirror[...] = NEUTRAL["seq_lens"]
        mirror[:raw_bs] = batch.seq_lens_cpu
    padding = 0 if session.bug == "sum_of_the_batch" else (bs - raw_bs) * NEUTRAL["seq_lens"]
    return {
        "batch_size": np.asarray(bs),
        "seq_lens": rows["seq_lens"],
        "seq_lens_cpu": mirror[:bs],
        "seq_lens_sum": np.asarray(batch.seq_lens_sum + padding),
        "req_pool_indices": rows["req_pool_indices"],
    }


def run_eager(session: Session, batch: Batch) -> Tree:
    """The eager path: the same draft without buffers, over metadata of exact size. It advances batch.positions."""
    inputs = {name: getattr(batch, name) for name in NEUTRAL}
    packed = (_segments(session, inputs, i) for i in range(session.setup.num_steps - 1))
    tree = _draft(session, inputs, tuple(packed))
    if session.bug == "eager_write_astray":
        session.kv[session.table[batch.req_pool_indices[0], 0]] += 1
    return tree


def first_rows(tree: Tree, count: int) -> Tree:
    return Tree(**{field.name: getattr(tree, field.name)[:count] for field in fields(Tree)})


def _bucket(session: Session, raw_bs: int) -> int:
    bs = session.setup.bucket(raw_bs)
    if session.bug == "wrong_bucket" and bs != session.setup.max_bs:
        return session.setup.bucket(bs + 1)
    return bs


def _stage(session: Session, batch: Batch, raw_bs: int, bs: int) -> None:
    """Copy the batch into the first rows of the buffers; where it does not fill the bucket, reset all rows first."""
    for name, buffer in session.buffers.items():
        if bs != raw_bs and name not in FORGOTTEN.get(session.bug, ()):
            buffer[...] = NEUTRAL[name]
        copied = raw_bs - 1 if session.bug == "row_not_staged" and name == "topk_index" else raw_bs
        buffer[:copied] = getattr(batch, name)[:copied]


def _point_to(batch: Batch, session: Session, rows: int) -> None:
    """Let the caller's batch look into the buffers, as sglang does on a padded replay."""
    batch.batch_size = rows
    for name in ("seq_lens", "req_pool_indices", "positions"):
        setattr(batch, name, session.buffers[name][:rows])


def _segments(session: Session, rows: Mapping[str, Array], i: int) -> Segments:
    """The reads of every row of draft step i. As in sglang's kernel, the lengths in the layout come from seq_lens and
    the row starts from positions; they differ only in padded rows, where both point to slot 0."""
    setup, pieces = session.setup, []
    for slot, seq_len in zip(rows["req_pool_indices"].tolist(), rows["seq_lens"].tolist(), strict=True):
        row, drafts = session.table[slot], draft_positions(setup, seq_len)
        for branch in range(setup.topk):
            segment = 0 if session.bug == "branches_overlap" else branch
            pieces += [row[:seq_len], row[drafts[segment, : i + 1]]]
    lengths = rows["positions"].reshape(-1).astype(np.int64) + i + 1
    return Segments(indptr=np.concatenate([[0], np.cumsum(lengths)]), indices=np.concatenate(pieces))


def _pack(session: Session, rows: Mapping[str, Array]) -> None:
    """Write the segments of all draft steps into the buffers that the graph was captured with."""
    for i in range(session.setup.num_steps - 1):
        packed = _segments(session, rows, i)
        if session.bug == "indptr_off":
            packed.indptr[1] -= 1
        session.indptr.write(i, packed.indptr)
        session.indices.write(i, packed.indices)
    if session.bug == "guard_overrun":
        session.indptr.flat[-GUARD] = 0


def _launch(session: Session, rows: Mapping[str, Array]) -> Tree:
    """The graph: the draft over the first rows of the buffers, whose addresses are fixed, whatever lies there."""
    bs, topk, steps = len(rows["seq_lens"]), session.setup.topk, session.setup.num_steps
    starts = session.indptr.view()[:, : bs * topk + 1]
    segments = tuple(Segments(indptr=starts[i], indices=session.indices.from_row(i)) for i in range(steps - 1))
    inputs = dict(rows)
    if session.bug in ("rounding", "tie"):
        inputs["hidden_states"] = np.nextafter(rows["hidden_states"], np.float32(np.inf))
    if session.bug == "graph_differs":
        inputs["topk_index"] = (rows["topk_index"].astype(np.int64) + 1) % session.setup.vocab_size
    last = rows["out_cache_loc"].reshape(bs, topk, steps)[:, :, steps - 2].astype(np.int64)
    rows_of_last = session.kv[last]
    tree = _draft(session, inputs, segments)
    if session.bug == "write_missed":
        session.kv[last] = rows_of_last
    if session.bug == "kv_values_differ":
        session.kv[last] += 1
    if session.bug == "kv_write_astray":
        session.kv[session.table[rows["req_pool_indices"][0], 0]] += 1
    return tree


def _draft(session: Session, inputs: Mapping[str, Any], segments: tuple[Segments, ...]) -> Tree:
    named = Inputs(**{field.name: inputs[field.name] for field in fields(Inputs)})
    if session.bug == "wrong_alike":
        named = replace(named, hidden_states=named.hidden_states * 2)
    return draft(session.setup, session.model, named, segments, session.kv)


def _misbehave(bug: str) -> None:
    if bug == "crash":
        os.abort()
    if bug == "exit":
        os._exit(0)
    if bug == "hang":
        while True:
            time.sleep(60)
    if bug == "garbage":
        os.write(1, b"\x00\xff{not a reply\n")
