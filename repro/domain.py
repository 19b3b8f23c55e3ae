"""What each runner can be captured with and how much room its requests need: one row a runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from repro.layout import Paged, draft_positions


def draft_room(setup: Paged, seq_len: int) -> int:
    """Row positions that a request of this length uses, the drafts of all branches included."""
    return int(draft_positions(setup, seq_len).max()) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """backends, algorithms: those with which there is such a runner. num_steps_min: fewest draft steps. accepts: a
    request says how many drafts were accepted. room: how many positions of its row of req_to_token a request of
    seq_len tokens uses."""

    backends: tuple[str, ...] = ("triton",)
    algorithms: tuple[str, ...] = ("EAGLE",)
    num_steps_min: int = 1
    accepts: bool = False
    room: Callable[[Paged, int], int] = draft_room


DOMAINS = {
    # sglang captures no draft graph for a single step: that step only samples.
    "draft": Domain(backends=("triton", "flashinfer"), num_steps_min=2),
    "toy": Domain(backends=("triton", "flashinfer"), num_steps_min=2),
}
