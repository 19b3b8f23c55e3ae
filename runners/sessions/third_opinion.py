"""The third opinion on a step: what the call should have given, in float64, and how far a right result may lie from it.

Asked for where graph and eager lie apart, and on a drawn sample of the other steps, so that what both have wrong shows.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from repro.cases.case import Request, Setup
from repro.cases.layout import Ints
from repro.traces.trace import Array
from runners.engines.active import engine
from runners.releases.live import Adapter, Live
from runners.releases.reference import bounds
from runners.releases.reference.question import Answer, Question, Reference
from runners.releases.reference.rounding import Rounding

# Of so many steps in which graph and eager agree, one is drawn; an opinion costs some ten milliseconds, a step on a GPU
# a tenth of one on the emulated engine. EAGLEEYE_REFERENCE has another number, 0 for none.
DRAWN = int(os.environ.get("EAGLEEYE_REFERENCE", {"cuda": "64", "cpu": "16"}[engine.device]))
# Rows may be apart by so many units in the last place of their largest value before anybody asks: fewer than any
# oracle minds (oracles/tolerance.py).
UNITS = 2.0

Bounded = dict[str, Array]
# What is recorded of an output besides its values.
PARTS = (".bound", ".norm", ".spread", ".all")


def is_drawn(digest: str, step: int) -> bool:
    """Always the same for the same step of the same case."""
    drawn = hashlib.sha256(f"{digest}/{step}".encode()).digest()
    return DRAWN > 0 and int.from_bytes(drawn[:8]) % DRAWN == 0


def apart(graph: Array, eager: Array, unit: float) -> bool:
    """Whether two outputs differ by more than a hint of rounding, [rows, ...] each. unit: of their type."""
    if graph.shape != eager.shape or graph.dtype.kind in "iub":
        return not np.array_equal(graph, eager)
    left, right = (array.astype(np.float64).reshape(len(array), math.prod(array.shape[1:])) for array in (graph, eager))
    scale = np.abs(right).max(axis=1, initial=0.0)
    return not bool((np.abs(left - right).max(axis=1, initial=0.0) <= 2 * UNITS * unit * scale).all())


def same_choices(graph: Mapping[str, Array], eager: Mapping[str, Array]) -> bool:
    """Whether the integers of two paths agree."""
    return all(np.array_equal(graph[name], eager[name]) for name in eager if eager[name].dtype.kind in "iub")


def recorded(question: Question, answer: Answer) -> Bounded:
    """The answer under the names of the trace: outputs with their bounds; and what the call should have written, as
    kv_slots, and kv_rows [slots, width] with its bounds."""
    found: Bounded = {}
    for name, values in answer.floats.items():
        known = answer.known.get(name, torch.ones(values.shape[1], dtype=torch.bool))
        found |= _bounded(name, values, known[:, None].expand(values.shape[1:3]))
    for name, (choice, sure) in answer.integers.items():
        found[name] = choice.numpy()
        found[f"{name}.bound"] = np.where(sure.numpy(), 0.0, np.inf)
    if answer.writes:
        found["kv_slots"], values, known = answer.left(question)
        found |= _bounded("kv_rows", values[:, :, None], known[:, None])
    return found


def unlike(found: Bounded, outputs: Mapping[str, Array]) -> set[str]:
    """The outputs that a reference and a call do not both give, of one size: a release that nobody has adapted the
    reference to."""
    given = {name for name in found if not name.startswith("kv_") and f"{name}.bound" in found}
    return {name for name in given | outputs.keys() if not _one_size(found.get(name), outputs.get(name))}


def _one_size(one: Array | None, other: Array | None) -> bool:
    return one is not None and other is not None and one.size == other.size


def _bounded(name: str, values: torch.Tensor, known: torch.Tensor) -> Bounded:
    """values [samples, rows, tokens, width]; known: bool [rows, tokens]. <name> [rows, tokens * width];
    <name>.bound, of the same shape: how far off each may be; <name>.norm [rows, tokens]: the root of the sum of
    squares of a token's; <name>.spread [rows, tokens]: its expected size; <name>.all [1]: that of all tokens, each
    over its spread. What is not known has infinite bounds and spread."""
    rows = values.shape[1]
    spread = torch.where(known, bounds.spread(values), torch.inf)
    found = {
        name: values[0],
        f"{name}.bound": torch.where(known[..., None], bounds.each(values), torch.inf),
        f"{name}.norm": torch.where(known, bounds.together(values), torch.inf),
        f"{name}.spread": spread,
        f"{name}.all": bounds.everything(values, spread)[None],
    }
    return {part: tensor.reshape(rows if part != f"{name}.all" else 1, -1).numpy() for part, tensor in found.items()}


class ThirdOpinion:
    """Of one captured runner. Its weights are read once, when it is first asked."""

    def __init__(self, adapter: Adapter, live: Live, setup: Setup, dtype: torch.dtype) -> None:
        self.setup, self.dtype = setup, dtype
        self._make = functools.partial(adapter.family.reference, live)

    @functools.cached_property
    def _reference(self) -> Reference | None:
        return self._make()

    def on(
        self,
        requests: Sequence[Request],
        given: Mapping[str, torch.Tensor],
        table: Ints,
        before: Sequence[torch.Tensor],
        claimed: Mapping[str, Array],
    ) -> Bounded | None:
        """given: the batch, one row a request. before: the KV cache that the call found. claimed: the integers that a
        path gave, which is followed in what rounding can turn over. As recorded(); None where nobody has written a
        reference for this runner."""
        if self._reference is None:
            return None
        by = Rounding(self.dtype, on_gpu=engine.device == "cuda", seed=1)
        kv = [tensor.cpu() for tensor in before]
        on_host = {name: value.cpu() for name, value in given.items()}
        claims = {
            name: torch.from_numpy(np.array(array)).reshape(len(requests), -1)
            for name, array in claimed.items()
            if array.dtype.kind in "iub"
        }
        question = Question(
            setup=self.setup, requests=requests, given=on_host, table=table, kv=kv, claimed=claims, by=by
        )
        with torch.no_grad():
            return recorded(question, self._reference(question))
