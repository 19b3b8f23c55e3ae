"""Random attention problems, solved by flashinfer's wrappers, by their stand-ins, or by plain dense attention.

On a GPU: python tests/tools/flashinfer_problems.py [COUNT] solves them by both and says, as JSON, how far they are
apart.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from runners.engines.standins import flashinfer

Solution = dict[str, np.ndarray]
SHARING = ((1, 1), (2, 2), (4, 2), (4, 1), (8, 2), (6, 3))  # heads of queries and of keys
PAGE_SIZES = (1, 1, 4, 16)
CLASSES = (
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "fast_decode_plan",
    "merge_state",
)
# How far apart two solutions may be, absolutely and relatively: a few units in the last place of a result and of the
# weights, which a tensor core takes in the dtype of the values. Logarithms are float32 on either side.
VALUES = {torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6, torch.float32: 2.0**-17}
LOGS = 2.0**-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """query: [sum of counts, heads, dim]. keys, values: [pages, page size, key heads, dim]. pages: per sequence the
    pages that hold its tokens. lengths: tokens of each. counts: queries of each. masks: which key each query sees."""

    number: int
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    pages: tuple[np.ndarray, ...]
    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    masks: tuple[np.ndarray, ...]
    scale: float

    @property
    def page_size(self) -> int:
        return int(self.keys.shape[1])

    @property
    def heads(self) -> tuple[int, int, int]:
        """The heads of queries and of keys, and their size."""
        return int(self.query.shape[1]), int(self.keys.shape[2]), int(self.query.shape[2])

    def first_queries(self) -> Problem:
        """With the first query of each sequence alone: what a decode wrapper takes."""
        starts = np.cumsum((0, *self.counts[:-1]))
        ones = (1,) * len(self.counts)
        return replace(self, query=self.query[torch.from_numpy(starts)].contiguous(), counts=ones)


def problem(number: int, head_dim: int, dtype: torch.dtype = torch.float16) -> Problem:
    """The same for the same number."""
    draw = np.random.default_rng((number, head_dim))
    heads, groups = SHARING[draw.integers(len(SHARING))]
    size = PAGE_SIZES[draw.integers(len(PAGE_SIZES))]
    lengths = tuple(int(n) for n in draw.choice((1, 2, 7, 16, 33, 130, 700), draw.integers(1, 6)))
    counts = tuple(int(draw.integers(1, min(n, 9) + 1)) for n in lengths)
    needs = [-(-n // size) for n in lengths]
    room = sum(needs) + 3
    order = draw.permutation(room)
    # sglang's layout of branches: sequences share pages.
    pages = [order[sum(needs[:i]) : sum(needs[: i + 1])] for i in range(len(needs))]
    for i in range(1, len(needs)):
        shared = min(needs[i], needs[i - 1]) // 2
        pages[i][:shared] = pages[i - 1][:shared]

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(draw.standard_normal(shape).astype(np.float32)).to(dtype)

    def mask(count: int, length: int) -> np.ndarray:
        seen = draw.random((count, length)) < 0.6
        seen[np.arange(count), length - count + np.arange(count)] = True
        return seen

    return Problem(
        number=number,
        query=normal(sum(counts), heads, head_dim),
        keys=normal(room, size, groups, head_dim),
        values=normal(room, size, groups, head_dim),
        pages=tuple(pages),
        lengths=lengths,
        counts=counts,
        masks=tuple(mask(n, length) for n, length in zip(counts, lengths, strict=True)),
        scale=float(draw.choice((1.0, 0.5))) / math.sqrt(head_dim),
    )


class Solver:
    """Wrappers of this name, of flashinfer or of its stand-in, as sglang's backend calls them."""

    def __init__(self, api: Any, device: str) -> None:
        self.api, self.device = api, device
        self.workspace = torch.zeros(128 << 20 if device == "cuda" else 16, dtype=torch.uint8, device=device)

    def ints(self, values: Sequence[int] | np.ndarray) -> torch.Tensor:
        return torch.tensor(list(map(int, values)), dtype=torch.int32, device=self.device)

    def paged(self, posed: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """kv_indptr, kv_indices, kv_last_page_len."""
        starts = np.cumsum((0, *(pages.size for pages in posed.pages)))
        last = [(n - 1) % posed.page_size + 1 for n in posed.lengths]
        return self.ints(starts), self.ints(np.concatenate(posed.pages)), self.ints(last)

    def cache(self, posed: Problem) -> tuple[torch.Tensor, torch.Tensor]:
        """The cache as sglang hands it over: without a dimension for pages of one token."""
        both = (posed.keys.to(self.device), posed.values.to(self.device))
        return (both[0].squeeze(1), both[1].squeeze(1)) if posed.page_size == 1 else both

    def solve(self, posed: Problem) -> Solution:
        first = posed.first_queries()
        solution: Solution = {}
        for cores in (False, True):
            solution |= self.decode(first, use_tensor_cores=cores)
            solution |= self.decode_graph(first, use_tensor_cores=cores)
        for name in ("causal", "all", "masked", "masked graph"):
            solution |= self.prefill(posed, name)
        return solution | self.ragged(posed)

    def decode(self, posed: Problem, *, use_tensor_cores: bool) -> Solution:
        kind = self.api.BatchDecodeWithPagedKVCacheWrapper
        wrapper = kind(self.workspace, "NHD", backend="fa2", use_tensor_cores=use_tensor_cores)
        dtype = posed.query.dtype
        wrapper.begin_forward(*self.paged(posed), *posed.heads, posed.page_size, data_type=dtype, q_data_type=dtype)
        return self.decoded(wrapper, posed, f"decode cores={use_tensor_cores}")

    def decoded(self, wrapper: Any, posed: Problem, name: str) -> Solution:
        query, cache = posed.query.to(self.device), self.cache(posed)
        # A window and a cap that the plan was not told of are without effect.
        out = wrapper.forward(query, cache, sm_scale=posed.scale, logits_soft_cap=3.0, k_scale=0.5, v_scale=2.0)
        again, logs = wrapper.run(query, cache, k_scale=0.5, v_scale=2.0, return_lse=True)
        return solution(name, out, logs) | solution(f"{name} again", again)

    def decode_graph(self, posed: Problem, *, use_tensor_cores: bool) -> Solution:
        """Planned for one token a sequence, then planned fast over buffers that were filled anew."""
        kind = self.api.BatchDecodeWithPagedKVCacheWrapper
        indptr, indices, last = self.paged(posed)
        count, dtype = len(last), posed.query.dtype
        buffers = (torch.zeros_like(indptr), torch.zeros(len(indices) + 5, dtype=torch.int32, device=self.device))
        wrapper = kind(
            self.workspace,
            "NHD",
            backend="fa2",
            use_cuda_graph=True,
            use_tensor_cores=use_tensor_cores,
            paged_kv_indptr_buffer=buffers[0],
            paged_kv_indices_buffer=buffers[1],
            paged_kv_last_page_len_buffer=torch.zeros_like(last),
        )
        types = {"data_type": dtype, "q_data_type": dtype}
        ones = (self.ints(range(count + 1)), self.ints([0] * count), last)
        wrapper.begin_forward(*ones, *posed.heads, posed.page_size, **types)
        buffers[0].copy_(indptr)
        buffers[1][: len(indices)].copy_(indices)
        wrapper.begin_forward = partial(self.api.fast_decode_plan, wrapper)
        wrapper.begin_forward(
            buffers[0],
            buffers[1][: len(indices)],
            last,
            *posed.heads,
            posed.page_size,
            **types,
            non_blocking=True,
            fixed_split_size=None,
            disable_split_kv=False,
            global_override_indptr_cpu=indptr.cpu(),
        )
        return self.decoded(wrapper, posed, f"decode graph cores={use_tensor_cores}")

    def prefill(self, posed: Problem, name: str) -> Solution:
        indptr, indices, last = self.paged(posed)
        queries = self.ints(np.cumsum((0, *posed.counts)))
        mask = torch.from_numpy(np.concatenate([part.reshape(-1) for part in posed.masks])).to(self.device)
        buffers: dict[str, Any] = {}
        if "graph" in name:
            buffers = {
                "use_cuda_graph": True,
                "qo_indptr_buf": torch.zeros_like(queries),
                "paged_kv_indptr_buf": torch.zeros_like(indptr),
                "paged_kv_indices_buf": torch.zeros(len(indices) + 3, dtype=torch.int32, device=self.device),
                "paged_kv_last_page_len_buf": torch.zeros_like(last),
                "custom_mask_buf": torch.zeros(mask.numel() + 64, dtype=torch.uint8, device=self.device),
                "mask_indptr_buf": torch.zeros_like(queries),
            }
        wrapper = self.api.BatchPrefillWithPagedKVCacheWrapper(self.workspace, "NHD", backend="fa2", **buffers)
        dtype = posed.query.dtype
        wrapper.begin_forward(
            queries,
            indptr,
            indices,
            last,
            *posed.heads,
            posed.page_size,
            q_data_type=dtype,
            kv_data_type=dtype,
            custom_mask=mask if "masked" in name else None,
            non_blocking=True,
        )
        options = {"causal": name == "causal", "sm_scale": posed.scale, "window_left": -1, "logits_soft_cap": 0.0}
        out, logs = wrapper.forward_return_lse(posed.query.to(self.device), self.cache(posed), **options)
        again = wrapper.forward(posed.query.to(self.device), self.cache(posed), **options, k_scale=None, v_scale=None)
        return solution(f"prefill {name}", out, logs) | solution(f"prefill {name} again", again)

    def ragged(self, posed: Problem) -> Solution:
        """The last tokens of each sequence as they come, and the rest in the cache, as sglang extends."""
        (new_keys, new_values), starts = rows(posed), self.ints(np.cumsum((0, *posed.counts)))
        wrapper = self.api.BatchPrefillWithRaggedKVCacheWrapper(self.workspace, "NHD", backend="fa2")
        wrapper.begin_forward(starts, starts, *posed.heads, q_data_type=posed.query.dtype)
        tensors = (posed.query.to(self.device), new_keys.to(self.device), new_values.to(self.device))
        options = {"causal": True, "sm_scale": posed.scale, "logits_soft_cap": 0.0}
        out, logs = wrapper.forward_return_lse(*tensors, **options)
        other = self.prefill(posed, "all")
        before = (torch.from_numpy(other["prefill all"]).to(out), torch.from_numpy(other["prefill all logs"]).to(logs))
        merged, merged_logs = self.api.merge_state(out, logs, *before)
        return solution("ragged", out, logs) | solution("merged", merged, merged_logs)


def rows(posed: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of each sequence's last tokens, as many as it has queries."""
    flat = [cache.reshape(-1, *cache.shape[2:]) for cache in (posed.keys, posed.values)]
    places = np.concatenate([slots(posed, i)[-count:] for i, count in enumerate(posed.counts)])
    keys, values = (cache[torch.from_numpy(places)].contiguous() for cache in flat)
    return keys, values


def slots(posed: Problem, sequence: int) -> np.ndarray:
    size = posed.page_size
    every = posed.pages[sequence][:, None] * size + np.arange(size)
    return np.asarray(every).reshape(-1)[: posed.lengths[sequence]]


def solution(name: str, out: torch.Tensor, logs: torch.Tensor | None = None) -> Solution:
    parts = {name: out.float().cpu().numpy()}
    return parts if logs is None else parts | {f"{name} logs": logs.float().cpu().numpy()}


def dense(query: Any, keys: Any, values: Any, seen: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """One query and one head after the other, in float64."""
    query, keys, values = (tensor.double().numpy() for tensor in (query, keys, values))
    out, logs = np.zeros((*query.shape[:2], values.shape[2])), np.zeros(query.shape[:2])
    for row in range(query.shape[0]):
        for head in range(query.shape[1]):
            group = head * keys.shape[1] // query.shape[1]
            scores = keys[seen[row], group] @ query[row, head] * scale
            weights = np.exp(scores)
            out[row, head] = weights @ values[seen[row], group] / weights.sum()
            logs[row, head] = np.log2(weights.sum())
    return out, logs


def by_definition(posed: Problem) -> Solution:
    """The solution of a problem by definition."""
    caches = [cache.reshape(-1, *cache.shape[2:]) for cache in (posed.keys, posed.values)]
    results: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    first = 0
    for number, (count, length) in enumerate(zip(posed.counts, posed.lengths, strict=True)):
        query = posed.query[first : first + count]
        keys, values = (cache[torch.from_numpy(slots(posed, number))] for cache in caches)
        whole = np.ones((count, length), dtype=bool)
        behind = np.arange(count)[:, None] + length - count - np.arange(length)
        ways = {"prefill causal": behind >= 0, "prefill all": whole, "prefill masked": posed.masks[number]}
        for name, seen in ways.items():
            results.setdefault(name, []).append(dense(query, keys, values, seen, posed.scale))
        # Half of the scale is in k_scale, and twice the values in v_scale.
        out, logs = dense(query[:1], keys, values, whole[:1], posed.scale / 2)
        results.setdefault("decode", []).append((2 * out, logs))
        new = behind[:, -count:] >= 0
        results.setdefault("ragged", []).append(dense(query, keys[-count:], values[-count:], new, posed.scale))
        first += count
    both = {name: tuple(np.concatenate(part) for part in zip(*parts, strict=True)) for name, parts in results.items()}
    both["prefill masked graph"] = both["prefill masked"]
    for kind in ("decode", "decode graph"):
        both |= {f"{kind} cores={cores}": both["decode"] for cores in (False, True)}
    del both["decode"]
    parts = [both[name] for name in ("ragged", "prefill all")]
    weights = np.stack([2.0**logs for _, logs in parts])
    merged = (weights[..., None] * np.stack([out for out, _ in parts])).sum(axis=0)
    total = weights.sum(axis=0)
    both["merged"] = (merged / total[..., None], np.log2(total))
    outputs = {name: out for name, (out, _) in both.items()} | {
        f"{name} logs": logs for name, (_, logs) in both.items()
    }
    again = (name for name in both if name not in ("ragged", "merged"))
    return outputs | {f"{name} again": both[name][0] for name in again}


def differences(a: Solution, b: Solution, dtype: torch.dtype) -> Iterator[tuple[str, float]]:
    """The parts that are further apart than they may be, and how far, in units of the limit."""
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    for name in a:
        limit = LOGS if name.endswith("logs") else VALUES[dtype]
        apart = np.abs(a[name] - b[name]) / (limit * (1 + np.abs(b[name])))
        worst = float(apart.max()) if np.isfinite(apart).all() else math.inf
        if worst > 1:
            yield name, worst


class Real:
    """flashinfer itself."""

    def __init__(self) -> None:
        flashinfer, cascade = (importlib.import_module(name) for name in ("flashinfer", "flashinfer.cascade"))
        for name in CLASSES:
            setattr(self, name, getattr(cascade if name == "merge_state" else flashinfer, name))


class StandIn:
    def __init__(self) -> None:
        for exports in flashinfer.EXPORTS.values():
            for name, thing in exports.items():
                setattr(self, name, thing)


def main(count: int) -> None:
    solvers = (Solver(StandIn(), "cpu"), Solver(Real(), "cuda"))
    totals: dict[str, Any] = {"solved": 0, "parts": 0, "differences": []}
    for head_dim in (64, 128):
        for number in range(count):
            posed = problem(number, head_dim)
            ours, theirs = (solver.solve(posed) for solver in solvers)
            totals["solved"] += 1
            totals["parts"] += len(ours)
            differing = differences(ours, theirs, posed.query.dtype)
            totals["differences"] += [[head_dim, number, name, apart] for name, apart in differing]
    print(json.dumps(totals))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
