"""The toy's draft model: a small deterministic tree draft in numpy that reads every input it is given, the KV cache
through kv_indices among them, and writes the KV cache at out_cache_loc.

Only exactly rounded operations are used, in an order that no other row changes: a row's result does not depend on the
size of its batch, so the padded and the unpadded run agree in every bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from repro.cases.case import Setup
from repro.cases.payload import floats

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

KV_WIDTH = 4
# Logits are formed for a sample of the vocabulary, as with sglang's hot_token_id: enough for topk of the largest kind.
HOT_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """embedding [vocab, KV_WIDTH], gates [KV_WIDTH, hidden], hot [HOT_TOKENS] (token ids).

    ties: the hot tokens come in pairs of equal logits, and the last bit of a row's hidden state says which of a pair
    comes first, as two kernels that add in another order may."""

    embedding: Floats
    gates: Floats
    hot: Ints
    ties: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The inputs of a draft, one row per request: positions [bs, topk], out_cache_loc [bs, topk * num_steps],
    topk_p and topk_index [bs, topk], hidden_states [bs, hidden]. positions are advanced in place."""

    positions: Ints
    out_cache_loc: Ints
    topk_p: Floats
    topk_index: Ints
    hidden_states: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """The reads of one draft step's rows: row r reads the KV slots indices[indptr[r]:indptr[r + 1]]."""

    indptr: Ints
    indices: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The draft: parents [bs, 1 + topk * (num_steps - 1)], scores_index and tokens [bs, num_draft_tokens - 1]."""

    parents: Ints
    scores_index: Ints
    tokens: Ints


def make_model(setup: Setup, *, ties: bool) -> Model:
    embedding = floats(1, "toy embedding", (setup.vocab_size, KV_WIDTH))
    hot = np.arange(HOT_TOKENS, dtype=np.int64) * (setup.vocab_size // HOT_TOKENS)
    if ties:
        embedding[hot[1::2]] = embedding[hot[::2]]
    return Model(embedding=embedding, gates=floats(2, "toy gates", (KV_WIDTH, setup.hidden_size)), hot=hot, ties=ties)


def draft(setup: Setup, model: Model, inputs: Inputs, segments: tuple[Segments, ...], kv: Floats) -> Tree:
    """Draft a tree for every row. kv [pool, KV_WIDTH] is written at the slots of each draft step before it is read."""
    bs, topk = inputs.topk_index.shape
    locs = inputs.out_cache_loc.reshape(bs, topk, setup.num_steps)
    scores, tokens = inputs.topk_p, inputs.topk_index
    hidden = np.repeat(inputs.hidden_states, topk, axis=0)
    beams = np.broadcast_to(np.arange(topk), (bs, topk))
    parents = [np.full((bs, 1), -1, dtype=np.int64)]
    all_scores, all_tokens = [scores], [tokens]
    for i in range(setup.num_steps - 1):
        slots = locs[:, :, i].reshape(-1)
        child_p, child, hidden = _forward(model, tokens, hidden, inputs.positions, slots, segments[i], kv)
        inputs.positions[...] += 1
        candidates = (scores[:, :, None] * child_p.reshape(bs, topk, topk)).reshape(bs, -1)
        children = child.reshape(bs, -1)
        parents.append(beams)
        all_scores.append(candidates)
        all_tokens.append(children)
        order = _best(candidates, topk)
        scores, tokens = np.take_along_axis(candidates, order, axis=1), np.take_along_axis(children, order, axis=1)
        parent_rows = (np.arange(bs)[:, None] * topk + order // topk).reshape(-1)
        hidden = hidden[parent_rows]
        beams = topk + i * topk * topk + order
    chosen = np.sort(_best(np.concatenate(all_scores, axis=1), setup.num_draft_tokens - 1), axis=1)
    selected = np.take_along_axis(np.concatenate(all_tokens, axis=1), chosen, axis=1)
    return Tree(parents=np.concatenate(parents, axis=1), scores_index=chosen, tokens=selected)


def _forward(
    model: Model, tokens: Ints, hidden: Floats, positions: Ints, slots: Ints, segments: Segments, kv: Floats
) -> tuple[Floats, Ints, Floats]:
    """One model step: probabilities and tokens of each row's topk children, and its next hidden state."""
    summary = np.stack([(hidden * gate).sum(axis=1) for gate in model.gates], axis=1)
    place = (positions.reshape(-1, 1) % 97).astype(np.float32) * np.float32(2.0**-6)
    key = _squash(model.embedding[tokens.reshape(-1)] + summary + place)
    kv[slots] = key
    out = _squash(key + _attend(segments, kv, len(slots)))
    logits = np.zeros((len(out), HOT_TOKENS), dtype=np.float32)
    for column in range(KV_WIDTH):
        logits += out[:, column : column + 1] * model.embedding[model.hot, column]
    weights = np.float32(1.5) + _squash(logits)
    order = _best(weights, tokens.shape[1])
    child_p = np.take_along_axis(weights / weights.sum(axis=1, keepdims=True), order, axis=1)
    if model.ties:
        order = order ^ (hidden[:, :1].view(np.uint32).astype(np.int64) & 1)
    repeated = np.resize(np.arange(KV_WIDTH), hidden.shape[1])
    return child_p, model.hot[order], _squash(hidden * np.float32(0.5) + out[:, repeated])


def _attend(segments: Segments, kv: Floats, rows: int) -> Floats:
    """The mean of what each row's segment points to."""
    starts = segments.indptr[:rows]
    lengths = segments.indptr[1 : rows + 1] - starts
    offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    read = kv[segments.indices[np.repeat(starts, lengths) + offsets]]
    sums = np.add.reduceat(read, np.cumsum(lengths) - lengths, axis=0)
    return np.asarray(sums / lengths[:, None].astype(np.float32))


def _best(values: Floats, count: int) -> Ints:
    """The columns of the largest values, best first; of equal ones the leftmost."""
    return np.argsort(-values, axis=1, kind="stable")[:, :count]


def _squash(x: Floats) -> Floats:
    return np.asarray(x / (np.float32(1.0) + np.abs(x)))
