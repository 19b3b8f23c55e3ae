"""The calls of a backend that count as a plan, and what they were given."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runners.sessions.planner import Planner

pytestmark = pytest.mark.emulated


class Inner:
    def init_forward_metadata(self, forward_batch: Any) -> None:
        pass


class MultiStep:
    """A backend that plans for those of its steps."""

    def __init__(self) -> None:
        self.attn_backends = [Inner(), Inner()]

    def init_forward_metadata_replay_cuda_graph(self, forward_batch: Any, bs: int) -> None:
        for backend in self.attn_backends:
            backend.init_forward_metadata(forward_batch)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self.init_forward_metadata_replay_cuda_graph(forward_batch, forward_batch.batch_size)


class OneByOne:
    """A backend of a release that hands over fields instead of a batch."""

    def init_forward_metadata(self, forward_batch: Any) -> None:
        pass

    def init_forward_metadata_replay_cuda_graph(
        self, bs: int, seq_lens: torch.Tensor, seq_lens_sum: int, spec_info: Any, *, seq_lens_cpu: torch.Tensor
    ) -> None:
        pass


def listened(worker: Any, call: Any) -> list[tuple[int, Mapping[str, object]]]:
    planner, messages = Planner([worker]), []
    with planner.listened(lambda number, batch, counts: messages.append((number, batch))):
        call()
        call()
    call()  # nobody listens any more
    return messages


def test_the_outermost_backend_counts() -> None:
    backend = MultiStep()
    batch = SimpleNamespace(batch_size=3, seq_lens=torch.tensor([1, 2]), seq_lens_sum=None, spec_info=None)
    messages = listened(
        SimpleNamespace(draft_attn_backend=backend),
        lambda: backend.init_forward_metadata_replay_cuda_graph(batch, 4),
    )
    assert [number for number, _ in messages] == [0, 1]
    assert messages[0][1].keys() == {"batch_size", "seq_lens", "backend"}
    assert messages[0][1]["batch_size"] == 4


def test_fields_that_are_handed_over_one_by_one_have_the_same_names() -> None:
    backend = OneByOne()
    runner = SimpleNamespace(attn_backend=backend)
    spec = SimpleNamespace(accept_length=torch.tensor([1]), extend_seq_lens_cpu=[2], positions=None)
    lengths = torch.tensor([1, 2])
    messages = listened(
        SimpleNamespace(model_runner=runner),
        lambda: backend.init_forward_metadata_replay_cuda_graph(2, lengths, 3, spec, seq_lens_cpu=lengths),
    )
    assert messages[0][1].keys() == {
        "batch_size",
        "seq_lens",
        "seq_lens_sum",
        "seq_lens_cpu",
        "num_accept_tokens",
        "spec_extend_seq_lens_cpu",
        "backend",
    }
