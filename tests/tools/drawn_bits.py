"""Digests of stored and of drawn cases, and of what a target records of the drawn ones, to compare two commits of this
repository: python -m tests.tools.drawn_bits [TARGET...] [--each N]. Where the lines are the same at both, no case has
another meaning, and nothing that was recorded differs by a bit."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import islice

from fuzz.draw.profiles import DEFAULT, PROFILES
from fuzz.draw.rounds import rounds
from repro.cases import codec
from repro.cases.case import Case, Target
from repro.upstream.fixes import SEEDS
from runners.processes.pool import Pool
from tests.builders.same_bits import bits

# 24 cases of each are the 216 of issue and review.
PAIRS = (
    *(("draft", backend) for backend in ("triton", "flashinfer", "fa3")),
    *(("draft_extend", "triton"), ("draft_extend", "fa3"), ("decode", "triton"), ("verify", "triton")),
    *(("multi_layer", "triton"), ("kv_move", "triton")),
)
NUMBER = 34


def digest_of(parts: Iterable[object]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(repr(part).encode())
    return total.hexdigest()[:16]


def drawn(runner: str, backend: str, count: int) -> Sequence[Case]:
    return list(islice(rounds(NUMBER, runner, backend, PROFILES[DEFAULT].cases_per_setup), count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", type=Target.parse, metavar="TARGET")
    parser.add_argument("--each", type=int, default=24, metavar="N", help="cases of each pair (default: 24)")
    options = parser.parse_args()
    for path in sorted(SEEDS.glob("*.json")):
        print(f"{path.stem} {codec.digest(codec.read(path).case)}")
    with ExitStack() as stack:
        pools = [stack.enter_context(Pool(target)) for target in options.targets]
        for runner, backend in PAIRS:
            cases = drawn(runner, backend, options.each)
            print(f"{runner}/{backend} {len(cases)} cases {digest_of(map(codec.digest, cases))}", flush=True)
            for pool in pools:
                traces = [pool.run(case) for case in cases]
                ended = [trace.ended.how.value for trace in traces]
                print(f"  {pool.target} {digest_of([*map(bits, traces), ended])}", flush=True)


if __name__ == "__main__":
    main()
