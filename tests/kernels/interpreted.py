"""Run the same Triton kernels under Triton's own interpreter and under ours: python interpreted.py FOLDER [sglang].

What every operation gave goes to FOLDER/plain.json and FOLDER/ours.json: name -> type, shape and bytes; the kernels
that were run one program after the other, to FOLDER/one-by-one.json, those that are recorded to FOLDER/recorded.json.
Each runs in a process forked from this one, because ours is never taken back out. Needs TRITON_INTERPRET=1.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from runners.engines import emulated
from runners.engines.standins import native_imports
from runners.engines.triton import interpreter, recorded
from runners.releases import catalogue
from tests.kernels.again import again, split
from tests.kernels.notes import RESULTS, note
from tests.kernels.of_memory import launches, memory
from tests.kernels.of_operations import arithmetic, structure
from tests.kernels.of_programs import programs


@triton.jit
def advance(x_ptr, out_ptr, by, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + at)
    tl.store(x_ptr + at, x + by)
    tl.store(out_ptr + at, x * 2)


def in_a_graph(ours: bool) -> None:
    """A launch between other calls: with ours recorded and replayed, else just run."""

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.empty_like(x)
        advance[(2,)](x, out, 3, 4)
        between = out + x
        advance[(2,)](between, out, 1, N=4)
        return out, between

    x = torch.arange(8.0)
    if ours:
        graph = emulated.Graph()
        with emulated.graph(graph):
            results = work()
        assert x.tolist() == list(range(8)), "the capture moved x"
        assert graph.calls == 4, graph.calls  # empty_like, a launch, an addition, a launch
    for turn in range(3):
        x.copy_(torch.arange(8.0) * turn)
        if ours:
            graph.replay()
        else:
            results = work()
        for name, tensor in zip(("out", "between", "x"), (*results, x), strict=True):
            note(f"graph {turn} {name}", tensor)


def ways_in_a_graph(ours: bool) -> None:
    """A launch whose programs part elsewhere at every replay, over the same memory."""
    lengths, x, out = torch.zeros(5, dtype=torch.int32), torch.zeros(5, 64), torch.zeros(5, 4, 8)
    graph = emulated.Graph()
    if ours:
        with emulated.graph(graph):
            split[(5, 4)](x, lengths, out, 0.25, 16, 8)
    generator = torch.Generator().manual_seed(6)
    for turn in range(8):
        lengths.copy_(torch.randint(0, 64, (5,), generator=generator) if turn < 7 else torch.zeros(5))
        x.copy_(torch.randn(5, 64, generator=generator))
        if ours:
            graph.replay()
        else:
            split[(5, 4)](x, lengths, out, 0.25, 16, 8)
        note(f"graph {turn} split", out)


def sglang_kernels() -> None:
    attention = importlib.import_module("sglang.srt.layers.attention.triton_ops.decode_attention")
    spec_utils = importlib.import_module("sglang.srt.speculative.spec_utils")
    generator = torch.Generator().manual_seed(5)
    for topk, page in ((1, 1), (2, 1), (3, 4), (8, 1)):
        bs, steps, pool = 3, 3, 64
        table = torch.randint(0, 5000, (bs + 2, pool), generator=generator, dtype=torch.int32)
        lengths = torch.tensor([9, 1, 30])
        indices = torch.full((steps, 1000), -1)
        indptr = torch.full((steps, bs * topk + 1), -1, dtype=torch.int32)
        spec_utils.generate_draft_decode_kv_indices[(steps, bs, topk)](
            torch.tensor([2, 4, 1]),
            table,
            lengths,
            indices,
            indptr,
            lengths.repeat_interleave(topk),
            pool,
            indices.shape[1],
            indptr.shape[1],
            triton.next_power_of_2(bs),
            triton.next_power_of_2(steps),
            triton.next_power_of_2(bs * topk),
            page,
        )
        note(f"kv_indices topk {topk} page {page}", indices)
        note(f"kv_indptr topk {topk} page {page}", indptr)
    for kind in (torch.float32, torch.float16):
        for heads, kv_heads, splits, cap in ((2, 2, 1, 0.0), (2, 2, 3, 30.0), (4, 2, 2, 0.0), (4, 1, 1, 5.0)):
            bs, dim, slots = 3, 16, 40

            def random(*shape: int, kind: torch.dtype = kind) -> torch.Tensor:
                return torch.randn(*shape, generator=generator).to(kind)

            q, k, v = random(bs, heads, dim), random(slots, kv_heads, dim), random(slots, kv_heads, dim)
            lengths = torch.tensor([1, 17, 6])
            indptr = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).to(torch.int32)
            indices = torch.randperm(slots, generator=generator)[: int(indptr[-1])]
            out = torch.zeros(bs, heads, dim, dtype=kind)
            logits, lse = torch.zeros(bs, heads, splits, dim), torch.zeros(bs, heads, splits)
            used = torch.full((bs,), splits, dtype=torch.int32)
            attention.decode_attention_fwd(
                q, k, v, out, indptr, indices, logits, lse, used, splits, dim**-0.5, 1.0, 1.0, logit_cap=cap
            )
            name = f"attention {kind} heads {heads}/{kv_heads} splits {splits} cap {cap}"
            for part, tensor in (("out", out), ("logits", logits), ("lse", lse)):
                note(f"{name} {part}", tensor)


def run(folder: Path, ours: bool, sglang: bool) -> None:
    if ours:
        interpreter.install()
    if sglang:
        sglang_kernels()
    else:
        for part in (arithmetic, structure, memory, launches, programs, again):
            part()
        in_a_graph(ours)
        ways_in_a_graph(ours)
    (folder / ("ours.json" if ours else "plain.json")).write_text(json.dumps(RESULTS))
    if ours:
        (folder / "one-by-one.json").write_text(json.dumps(sorted(interpreter.one_by_one())))
        (folder / "recorded.json").write_text(json.dumps(sorted(recorded.kernels())))


def main(folder: Path, sglang: bool) -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    if sglang:
        # As in a worker, what the release imports is imported once, before the fork.
        native_imports.define_torchvision_schemas()
        firsts = tuple(catalogue.NATIVE_IMPORTS)
        native_imports.stand_in(
            *catalogue.NATIVE_IMPORTS[catalogue.latest(catalogue.present_release(), firsts, "anything")]
        )
        importlib.import_module("sglang.srt.server_args")
        importlib.import_module("sglang.srt.speculative.spec_utils")
    children = []
    for ours in (False, True):
        child = os.fork()
        if not child:
            try:
                run(folder, ours, sglang)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "sglang" in sys.argv[2:]))
