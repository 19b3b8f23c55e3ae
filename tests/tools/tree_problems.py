"""Random draft trees, built by the stand-in for sgl_kernel's build_tree_kernel_efficient and by something else.

python tests/tools/tree_problems.py WHOSE [COUNT] builds them by both and says, as JSON, which differ. WHOSE:
sgl_kernel, on a GPU, or triton: sglang's own kernel for other machines, which is in it from 0.5.15 on; or short: the
stand-in itself, given a mask that ends too early, which must hold the first part of the whole one.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from runners.engines.standins import tree

# The most tokens of a tree. Interpreted, a tree's time grows with their square and more.
TOKENS_MAX = {"sgl_kernel": 48, "triton": 24}
NAMES = ("tree_mask", "positions", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """lengths: what is verified of each request. parents, selected: as sglang's draft gives them, one row each."""

    topk: int
    num_steps: int
    tokens: int
    lengths: list[int]
    parents: list[list[int]]
    selected: list[list[int]]


def problem(number: int, tokens_max: int) -> Problem:
    dice = random.Random(number)
    topk, num_steps = dice.randint(1, 8), dice.randint(2, 6)
    candidates = topk + (num_steps - 1) * topk**2
    tokens = num_steps + 1 if topk == 1 else dice.randint(2, min(candidates + 1, tokens_max))
    rows = [_drawn(dice, topk, num_steps, tokens) for _ in range(dice.randint(1, 5))]
    lengths = [dice.randint(1, 40) for _ in rows]
    parents, selected = ([row[part] for row in rows] for part in (0, 1))
    return Problem(topk=topk, num_steps=num_steps, tokens=tokens, lengths=lengths, parents=parents, selected=selected)


def _drawn(dice: random.Random, topk: int, num_steps: int, tokens: int) -> tuple[list[int], list[int]]:
    """The candidates of one request and those that are kept: the likeliest, where a child is less likely than its
    parent. Per step the topk best go on, each with topk children."""
    scores = sorted((dice.uniform(0.1, 1.0) for _ in range(topk)), reverse=True)
    parents = list(range(-1, topk))
    going_on = list(zip(scores, range(topk), strict=True))
    for _ in range(1, num_steps):
        first = len(scores)
        children = [score * dice.uniform(0.05, 0.95) for score, _ in going_on for _ in range(topk)]
        scores += children
        best = sorted(range(len(children)), key=lambda place: -children[place])[:topk]
        going_on = [(children[place], first + place) for place in best]
        parents += [first + place for place in best]
    kept = sorted(sorted(range(len(scores)), key=lambda place: -scores[place])[: tokens - 1])
    return parents[: topk * (num_steps - 1) + 1], kept


def mask_bits(posed: Problem) -> int:
    return posed.tokens * (sum(posed.lengths) + len(posed.lengths) * posed.tokens)


def built(posed: Problem, build: Callable[..., Any], device: str, bits: int | None = None) -> dict[str, list[Any]]:
    """Everything that the function writes, in a mask of so many bits (default: of all that there are)."""
    rows, tokens = len(posed.lengths), posed.tokens
    bits = mask_bits(posed) if bits is None else bits
    out = {
        "tree_mask": torch.full((bits,), True, device=device),
        "positions": torch.zeros(rows * tokens, dtype=torch.long, device=device),
        **{name: torch.full((rows, tokens), -1, dtype=torch.long, device=device) for name in NAMES[2:]},
    }
    tensors = (torch.tensor(values, device=device) for values in (posed.parents, posed.selected, posed.lengths))
    build(*tensors, *(out[name] for name in NAMES), posed.topk, posed.num_steps, tokens, tree.FULL_MASK)
    return {name: tensor.tolist() for name, tensor in out.items()}


def real(whose: str) -> tuple[Callable[..., Any], str]:
    if whose == "sgl_kernel":
        return importlib.import_module("sgl_kernel").build_tree_kernel_efficient, "cuda"
    importlib.import_module("runners.engines.emulated").install()
    importlib.import_module("sglang.srt.server_args")
    return importlib.import_module("sglang.srt.speculative.eagle_utils").sgl_build_tree_kernel_triton, "cpu"


def short(count: int) -> list[list[Any]]:
    """Masks that end anywhere, in a request's part or before it, and are not the first part of the whole mask."""
    differ = []
    for number in range(count):
        posed = problem(number, TOKENS_MAX["triton"])
        bits = random.Random(-number).randrange(mask_bits(posed))
        whole, cut = (built(posed, tree.build_tree_kernel_efficient, "cpu", kept_bits) for kept_bits in (None, bits))
        whole["tree_mask"] = whole["tree_mask"][:bits]
        differ += [[number, name] for name in NAMES if whole[name] != cut[name]]
    return differ


def main(whose: str, count: int) -> None:
    if whose == "short":
        print(json.dumps({"built": count, "differ": short(count)}))
        return
    build, device = real(whose)
    differ = []
    for number in range(count):
        posed = problem(number, TOKENS_MAX[whose])
        ours, theirs = built(posed, tree.build_tree_kernel_efficient, "cpu"), built(posed, build, device)
        differ += [[number, name] for name in NAMES if ours[name] != theirs[name]]
    print(json.dumps({"built": count, "differ": differ}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40)
