"""Memory that goes to a GPU and back; here, where there is none, it stays."""

from __future__ import annotations

import pytest
import torch

from runners.engines.sending import fetched, sent

pytestmark = pytest.mark.emulated


def test_what_is_on_the_host_stays_there_and_whoever_waits_is_called() -> None:
    values, waited = torch.arange(4), []
    assert sent(values, torch.device("cpu")) is values
    assert fetched(values, lambda: waited.append(1)) is values and waited == [1]
    assert fetched(values) is values


@pytest.mark.cuda
@pytest.mark.parametrize("values", [torch.arange(5), torch.ones(3, 2), torch.empty(0, 4)])
def test_what_is_sent_is_there_and_comes_back(values: torch.Tensor) -> None:
    there = sent(values, torch.device("cuda"))
    assert there.is_cuda and there.shape == values.shape
    host = values.clone()
    host.zero_()
    assert torch.equal(fetched(there), values)
