"""Process groups of sessions: one after the other in a process, and none of them needs a port of the host."""

from __future__ import annotations

import os

import pytest
from torch import distributed, ones

from runners.releases.workers.rendezvous import NO_PORT, in_memory

pytestmark = pytest.mark.emulated


def test_groups_are_made_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE", "tcp://127.0.0.1:1")
    for _ in range(2):
        assert in_memory() == NO_PORT
        method = os.environ["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"]
        distributed.init_process_group("gloo", init_method=method, rank=0, world_size=1)
        try:
            values = ones(2)
            distributed.all_reduce(values)
            assert values.tolist() == [1, 1]
        finally:
            distributed.destroy_process_group()
