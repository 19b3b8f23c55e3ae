"""Pools with KV slots of their own for sliding layers."""

from __future__ import annotations

import pytest

from repro.cases.case import Case, Target
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from tests.builders.cases import PAIR, setup_of, step

pytestmark = pytest.mark.emulated("0.5.15.post1")


def test_a_pool_holds_all_contexts_in_sliding_layers() -> None:
    """From 0.5.14 to 0.5.21 sglang sizes it by windows and evictions where chunked prefill is off."""
    setup = setup_of("decode", capture_bs=(2,), slots=4, page_size=32, context_len=580, window=1, swa=True)
    case = Case(setup=setup, steps=(step(*PAIR),))
    with Pool(Target("0.5.15.post1", "emulated"), timeout_s=120) as pool:
        assert pool.run(case).ended.how is Termination.DONE
