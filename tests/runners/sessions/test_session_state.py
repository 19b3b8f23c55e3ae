"""State between calls goes back where memory goes back: attributes, what they hold, and tensors."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from runners.sessions.state import State
from tests.runners.sessions.test_standing import made

pytestmark = pytest.mark.emulated


def owner() -> Any:
    buffers = SimpleNamespace(seq_lens=torch.arange(4), host=np.arange(3))
    backend = made("Backend", _key=(2, (5, 7)), plans={2: [1, 2]}, recent=deque([1], maxlen=2), seen={3})
    return made("Runner", backend=backend, buffers=buffers, bs=2, model=torch.nn.Linear(2, 2))


def test_what_python_holds_goes_back_in_place() -> None:
    owned = owner()
    backend, plans, rows = owned.backend, owned.backend.plans, owned.backend.plans[2]
    moment = State({"": owned}, ()).take()
    backend._key, backend.more, owned.bs = (4, (1,)), torch.ones(2), 4
    backend.plans = {9: []}
    plans[4] = plans.pop(2)
    rows.append(3)
    backend.recent.extend([2, 3])
    backend.seen.discard(3)
    owned.buffers.seq_lens[1] = 9
    owned.buffers.host[0] = 9
    moment.put_back()
    assert (backend._key, owned.bs, hasattr(backend, "more")) == ((2, (5, 7)), 2, False)
    assert backend.plans is plans and plans == {2: [1, 2]} and plans[2] is rows
    assert (list(backend.recent), backend.recent.maxlen, backend.seen) == ([1], 2, {3})
    assert owned.buffers.seq_lens.tolist() == [0, 1, 2, 3] and owned.buffers.host.tolist() == [0, 1, 2]


def test_a_tensor_that_another_took_the_place_of_comes_back() -> None:
    owned = owner()
    first = owned.buffers.seq_lens
    moment = State({"": owned}, ()).take()
    owned.buffers.seq_lens = torch.zeros(4)
    first.zero_()
    moment.put_back()
    assert owned.buffers.seq_lens is first and first.tolist() == [0, 1, 2, 3]


def test_what_is_kept_elsewhere_is_left_alone() -> None:
    cache, workspace = torch.zeros(8), torch.zeros(4)
    pool = made("MHATokenToKVPool", k_buffer=cache, size=8)
    owned = made("Runner", cache=cache[2:], workspace_buffer=workspace, pool=pool, weights=torch.nn.Linear(2, 2))
    moment = State({"": owned}, [cache]).take()
    weights = owned.weights.weight.detach().clone() + 1
    owned.weights.weight.data.copy_(weights)
    for tensor in (cache, workspace):
        tensor.fill_(1)
    pool.size = 9
    moment.put_back()
    assert cache.sum() == 8 and workspace.sum() == 4 and pool.size == 9
    assert torch.equal(owned.weights.weight, weights)


def test_a_later_moment_holds_what_has_changed_since_the_first() -> None:
    owned = owner()
    state = State({"": owned}, ())
    first = state.take()
    owned.bs, owned.backend.plans = 4, {9: [5]}
    second, rows = state.take(), owned.backend.plans[9]
    first.put_back()
    rows.append(6)
    owned.backend._key = ()
    second.put_back()
    assert (owned.bs, owned.backend.plans, owned.backend._key) == (4, {9: [5]}, (2, (5, 7)))
    assert owned.backend.plans[9] is rows
    first.put_back()
    assert (owned.bs, owned.backend.plans) == (2, {2: [1, 2]})
