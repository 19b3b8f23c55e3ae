"""State that outlives a call is found by looking: tensors and attributes of sglang's objects alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runners.sessions.attributes import attributes, changed, moved, pools
from runners.sessions.standing import standing

pytestmark = pytest.mark.emulated


def made(name: str, module: str = "sglang.srt.layers.attention", **fields: Any) -> Any:
    kind = type(name, (), {"__module__": module})
    thing = kind()
    vars(thing).update(fields)
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
    driven = runner()
    driven.backend.runner = driven  # a circle
    tensors = standing({"": driven})
    assert tensors.keys() == {"backend.kv_indptr", "buffers.seq_lens", "buffers.proxies.hidden"}
    assert tensors["backend.kv_indptr"] is driven.backend.kv_indptr
    assert standing({"x": driven, "y": driven}).keys() == {f"x.{name}" for name in tensors}


def test_a_backend_that_keeps_the_pool_that_it_was_lent_is_named() -> None:
    pool, lent = (made("MHATokenToKVPool") for _ in range(2))
    backends = [made("TritonAttnBackend", token_to_kv_pool=pool), made("FlashInferAttnBackend")]
    before, remembered = pools(backends), attributes({"draft": backends[0]})
    assert moved(backends, before) == {}
    backends[0].token_to_kv_pool = lent
    another = b"MHATokenToKVPool -> another MHATokenToKVPool"
    assert moved(backends, before) == {"TritonAttnBackend.token_to_kv_pool": another}
    changes = changed(remembered, attributes({"draft": backends[0]}))
    assert changes == {"draft.token_to_kv_pool": b"another MHATokenToKVPool"}


def test_what_changes_is_named_with_what_it_was() -> None:
    driven = runner()
    before = attributes({"runner": driven})
    assert changed(before, attributes({"runner": driven})) == {}
    driven.bs = 4
    driven.backend.attn_backends.append(None)
    driven.buffers.seq_lens = torch.zeros(4)
    driven.foreign.tensor = torch.zeros(7)  # of somebody else
    driven.foreign.more = 1
    changes = changed(before, attributes({"runner": driven}))
    assert changes["runner.bs"] == b"2 -> 4"
    assert changes["runner.backend.attn_backends[2]"] == b"absent -> None"
    assert changes.keys() == {
        "runner.bs",
        "runner.backend.attn_backends",
        "runner.backend.attn_backends[2]",
        "runner.buffers.seq_lens",
    }


def test_what_is_about_the_last_call_takes_over_no_path() -> None:
    table = made("Translator", page_size=1)
    driven = made("Runner", _kv_loc_plan=None, backends=[made("Backend", translator=table)])
    before = attributes({"runner": driven})
    assert before["runner.backends[0].translator.page_size"] == "1"
    driven._kv_loc_plan = made("Plan", source=table)
    assert changed(before, attributes({"runner": driven})) == {"runner._kv_loc_plan": b"None -> Plan"}
