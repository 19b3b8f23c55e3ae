"""FlashAttention 3 for a bundle: sglang-kernel's library of it, of which only what cases launch is carried.

The published library has 1.07 GB, for three kinds of GPU, all head dims and three dtypes, which no bundle has room for.
Of its GPU code stays what an H100 or H200 runs for cases: the dtypes and head dims that they draw, latent attention's
included, and what serves all of them (the schedule and the combination of splits). What was left out fails when it is
launched, with "device kernel image is invalid".
"""

from __future__ import annotations

import re
from dataclasses import replace

from repro.cases.backend_facts import BACKEND_FACTS
from runners.targets.bundle.archive import Member
from runners.targets.bundle.fatbin import Entry, NotALibrary, cut_down
from runners.targets.environments import NotUsable

MEMBER = "sgl_kernel/flash_ops.abi3.so"
HOPPER = 90
_FACTS = BACKEND_FACTS["fa3"]
# Head dims of values: those of ordinary attention, and the width of latent attention's values.
HEAD_DIMS = tuple(sorted({*_FACTS.drawn_head_dims, _FACTS.latent_dims[0]}))
# How CUTLASS spells the dtypes that cases draw.
_SPELT = {"float16": "6half_t", "bfloat16": "10bfloat16_t"}
DTYPES = tuple(sorted({_SPELT[dtype] for dtype in _FACTS.drawn_dtypes}))
# In the mangled name of a kernel that attends: the values' head dim, then the dtype.
_ATTENDS = re.compile(r"FlashAttnFwdSm\d+.*?ELi(\d+)EN\w*?_(\d+[a-z]\w*?_t)E")


def is_carried(entry: Entry) -> bool:
    """True if a bundle carries this code."""
    if entry.gpu != HOPPER:
        return False
    kinds = [_ATTENDS.search(kernel) for kernel in entry.kernels]
    return all(kind is None or (int(kind[1]) in HEAD_DIMS and kind[2] in DTYPES) for kind in kinds)


def carried(member: Member) -> Member:
    """The library as a bundle carries it, from the published wheel's. NotUsable, when it is read, if that is not such
    a library."""

    def read() -> bytes:
        try:
            return cut_down(member.read(), is_carried)
        except NotALibrary as error:
            raise NotUsable(f"{member.name} cannot be cut down to what a bundle carries: {error}") from error

    kept = f"sm_{HOPPER} {' '.join(DTYPES)} {' '.join(map(str, HEAD_DIMS))}"
    return replace(member, mark=f"{member.mark} {kept}", read=read)
