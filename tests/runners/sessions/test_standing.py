"""State that outlives a call is found by looking: tensors and attributes of sglang's objects alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runners.sessions.attributes import attributes, changed, moved, pools
from runners.sessions.standing import standing

pytestmark = pytest.mark.emulated


def made(name: str, module: str = "sglang.srt.layers.attention", **held: Any) -> Any:
    kind = type(name, (), {"__module__": module})
    thing = kind()
    vars(thing).update(held)
    return thing


def runner() -> Any:
    whole = torch.zeros(3, 8, dtype=torch.int32)
    steps = [made("Backend", kv_indptr=whole[n], forward_metadata=SimpleNamespace(rows=torch.zeros(4))) for n in (0, 1)]
    several = made("MultiStep", kv_indptr=whole, attn_backends=steps, workspace_buffer=torch.zeros(9))
    pool = made("TokenPool", table=torch.zeros(5))
    foreign = made("Cache", module="elsewhere", tensor=torch.zeros(6))
    buffers = SimpleNamespace(seq_lens=torch.zeros(4), absent=None, proxies={"hidden": torch.zeros(2, 2)})
    return made("Runner", backend=several, buffers=buffers, pool=pool, foreign=foreign, bs=2)


def test_tensors_are_found_once_and_where_they_are_whole() -> None:
    own = runner()
    own.backend.runner = own  # a circle
    found = standing({"": own})
    assert found.keys() == {"backend.kv_indptr", "buffers.seq_lens", "buffers.proxies.hidden"}
    assert found["backend.kv_indptr"] is own.backend.kv_indptr
    assert standing({"x": own, "y": own}).keys() == {f"x.{name}" for name in found}


def test_a_backend_that_keeps_the_pool_that_it_was_lent_is_named() -> None:
    own, lent = (made("MHATokenToKVPool") for _ in range(2))
    backends = [made("TritonAttnBackend", token_to_kv_pool=own), made("FlashInferAttnBackend")]
    before, remembered = pools(backends), attributes({"draft": backends[0]})
    assert moved(backends, before) == {}
    backends[0].token_to_kv_pool = lent
    another = b"MHATokenToKVPool -> another MHATokenToKVPool"
    assert moved(backends, before) == {"TritonAttnBackend.token_to_kv_pool": another}
    told = changed(remembered, attributes({"draft": backends[0]}))
    assert told == {"draft.token_to_kv_pool": b"another MHATokenToKVPool"}


def test_what_changes_is_named_with_what_it_was() -> None:
    own = runner()
    before = attributes({"runner": own})
    assert changed(before, attributes({"runner": own})) == {}
    own.bs = 4
    own.backend.attn_backends.append(None)
    own.buffers.seq_lens = torch.zeros(4)
    own.foreign.tensor = torch.zeros(7)  # of somebody else
    own.foreign.more = 1
    told = changed(before, attributes({"runner": own}))
    assert told["runner.bs"] == b"2 -> 4"
    assert told["runner.backend.attn_backends[2]"] == b"absent -> None"
    assert told.keys() == {
        "runner.bs",
        "runner.backend.attn_backends",
        "runner.backend.attn_backends[2]",
        "runner.buffers.seq_lens",
    }


def test_what_is_about_the_last_call_takes_over_no_path() -> None:
    table = made("Translator", page_size=1)
    own = made("Runner", _kv_loc_plan=None, backends=[made("Backend", translator=table)])
    before = attributes({"runner": own})
    assert before["runner.backends[0].translator.page_size"] == "1"
    own._kv_loc_plan = made("Plan", source=table)
    assert changed(before, attributes({"runner": own})) == {"runner._kv_loc_plan": b"None -> Plan"}
