"""The third opinion on a step: what the call should have given, in float64, and how far a right result may lie from it.

Asked for where graph and eager lie apart, and in the steps that the parent says, so that what both have wrong shows.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from repro.cases.case import Request, Setup
from repro.cases.drawn import is_drawn
from repro.cases.layout import Ints
from repro.traces.trace import Array
from runners.engines.active import engine
from runners.recording.observer import Watch
from runners.releases.live import RETURNED
from runners.releases.reference import bounds
from runners.releases.reference.question import Answer, Question, Reference
from runners.releases.reference.rounding import Rounding

# EAGLEEYE_REFERENCE=N: asked in one of N steps, drawn by the case's digest, 0: in none; otherwise as the parent says.
_DRAWN = os.environ.get("EAGLEEYE_REFERENCE", "")
# What graph_equals_eager lets pass by noise alone, so that no third opinion is needed: so many units in the last place
# of a row's largest value, and so many times the noise, where that is no more than so many units. They are those of
# oracles/tolerance.py, as a test makes sure.
UNITS, NOISES, NOISE_UNITS_MAX = 4.0, 4.0, 64.0
# Threads of one opinion: two take three quarters of the time that one takes over a deep tree.
_THREADS_MAX = 4

Bounded = dict[str, Array]
# What is recorded of an output besides its values.
PARTS = (".bound", ".norm", ".spread", ".all")


def is_asked(watch: Watch, case: str, step: int) -> bool:
    """True if this step is held to the reference whatever comes of it. case: its digest."""
    if _DRAWN:
        return is_drawn(case, step, int(_DRAWN))
    return watch.reference_steps is None or step in watch.reference_steps


def apart(
    graph: Mapping[str, Array], eager: Mapping[str, Array], variants: Sequence[Mapping[str, Array]], unit: float
) -> bool:
    """True if two paths' outputs, [rows, ...] each, lie further apart than the measured noise allows. variants: eager's
    outputs when it was moved by noise. unit: of the outputs' type."""
    if any(graph[name].shape != eager[name].shape for name in eager) or not same_choices(graph, eager):
        return True
    calm = [_calm(variant, eager) for variant in variants]
    for name, array in eager.items():
        if array.dtype.kind in "iub" or not array.size:
            continue
        step = 2 * unit * np.abs(_flat(array)).max(axis=1, initial=0.0)
        noise = np.zeros(len(array))
        for variant, quiet in zip(variants, calm, strict=True):
            noise = np.where(quiet, np.maximum(noise, _distances(variant[name], array)), noise)
        allowed = UNITS * step + np.where(noise <= NOISE_UNITS_MAX * step, NOISES * noise, 0.0)
        if not (_distances(graph[name], array) <= allowed).all():
            return True
    return False


def _calm(variant: Mapping[str, Array], eager: Mapping[str, Array]) -> Array:
    """In which rows a variant made eager's choices: in others its distance from it is no noise."""
    rows = len(next(iter(eager.values())))
    integers = [name for name, array in eager.items() if array.dtype.kind in "iub"]
    same = [(variant[name] == eager[name]).reshape(rows, -1).all(axis=1) for name in integers]
    return np.all(same, axis=0) if same else np.ones(rows, dtype=np.bool_)


def _flat(array: Array) -> npt.NDArray[np.float64]:
    return array.astype(np.float64).reshape(len(array), -1)


def _distances(left: Array, right: Array) -> npt.NDArray[np.float64]:
    """The largest distance in each row."""
    distances: npt.NDArray[np.float64] = np.abs(_flat(left) - _flat(right)).max(axis=1, initial=0.0)
    return distances


def same_choices(graph: Mapping[str, Array], eager: Mapping[str, Array]) -> bool:
    """True if the integers of two paths agree."""
    return all(np.array_equal(graph[name], eager[name]) for name in eager if eager[name].dtype.kind in "iub")


def recorded(question: Question, answer: Answer) -> Bounded:
    """The answer under the names of the trace: outputs with their bounds; and what the call should have written, as
    kv_slots, and kv_rows [slots, width] with its bounds."""
    bounded: Bounded = {}
    for name, values in answer.floats.items():
        known = answer.known.get(name, torch.ones(values.shape[1], dtype=torch.bool))
        bounded |= _bounded(name, values, known[:, None].expand(values.shape[1:3]))
    for name, (choice, sure) in answer.integers.items():
        bounded[name] = choice.numpy()
        bounded[f"{name}.bound"] = np.where(sure.numpy(), 0.0, np.inf)
    if answer.writes:
        bounded["kv_slots"], values, known = answer.left(question)
        bounded |= _bounded("kv_rows", values[:, :, None], known[:, None])
    return bounded


def unlike(bounded: Bounded, outputs: Mapping[str, Array]) -> set[str]:
    """The outputs that a reference and a call do not both give, of one size: a release for which the reference has
    not been adapted."""
    compared = {name for name in bounded if not name.startswith("kv_") and f"{name}.bound" in bounded}
    return {name for name in compared | outputs.keys() if not _one_size(bounded.get(name), outputs.get(name))}


def _one_size(left: Array | None, right: Array | None) -> bool:
    return left is not None and right is not None and left.size == right.size


def _bounded(name: str, values: torch.Tensor, known: torch.Tensor) -> Bounded:
    """values [samples, rows, tokens, width]; known: bool [rows, tokens]. <name> [rows, tokens * width];
    <name>.bound, of the same shape: how far off each may be; <name>.norm [rows, tokens]: the root of the sum of
    squares of a token's; <name>.spread [rows, tokens]: its expected size; <name>.all [1]: that of all tokens, each
    over its spread. What is not known has infinite bounds and spread; nor is a token in which a value is no number, as
    where the model's type has none so large."""
    rows = values.shape[1]
    # A sum is a number where each of them is.
    known = known & values.sum(dim=-1).isfinite().all(dim=0)
    values = values.masked_fill(~known[..., None], 0.0)
    spread = torch.where(known, bounds.spread(values), torch.inf)
    bounded = {
        name: values[0],
        f"{name}.bound": torch.where(known[..., None], bounds.each(values), torch.inf),
        f"{name}.norm": torch.where(known, bounds.together(values), torch.inf),
        f"{name}.spread": spread,
        f"{name}.all": bounds.everything(values, spread)[None],
    }
    return {part: tensor.reshape(rows if part != f"{name}.all" else 1, -1).numpy() for part, tensor in bounded.items()}


class ThirdOpinion:
    """The third opinion on one runner. make: reads its weights, once, when it is first asked."""

    def __init__(self, make: Callable[[], Reference | None], setup: Setup, dtype: torch.dtype) -> None:
        self.setup, self.dtype, self._make = setup, dtype, make

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
        path gave, which is followed in what rounding can turn over. As recorded(); None if this runner has no
        reference."""
        if self._reference is None:
            return None
        deterministic = self.setup.deterministic
        kv = [tensor.cpu() for tensor in before]
        by = Rounding(self.dtype, kv[0].dtype, on_gpu=engine.device == "cuda", seed=1, deterministic=deterministic)
        on_host = {name: value.cpu() for name, value in given.items()}
        claims = {
            name: torch.from_numpy(np.array(array)).reshape(len(requests), -1)
            for name, array in claimed.items()
            if array.dtype.kind in "iub"
        }
        question = Question(
            setup=self.setup, requests=requests, given=on_host, table=table, kv=kv, claimed=claims, by=by
        )
        with torch.no_grad(), _spare_cores():
            answer = self._reference(question)
            if RETURNED not in claimed:
                answer.floats.pop(RETURNED, None)
            return recorded(question, answer)


@contextmanager
def _spare_cores() -> Iterator[None]:
    """While entered, PyTorch computes with some of the idle cores, where the device is a GPU. Elsewhere
    sessions give the same bits wherever they run, which threads may change."""
    before = torch.get_num_threads()
    if engine.device == "cuda":
        torch.set_num_threads(max(before, min(_THREADS_MAX, _idle_cores() // 2)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _idle_cores() -> int:
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return len(os.sched_getaffinity(0)) - running
