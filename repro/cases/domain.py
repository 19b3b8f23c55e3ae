"""What each runner can be captured with and how much room its requests need: one row a runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from repro.cases.layout import Paged, draft_positions


def draft_room(setup: Paged, seq_len: int) -> int:
    """Row positions that a request of this length uses, the drafts of all branches included."""
    return int(draft_positions(setup, seq_len).max()) + 1


def decode_room(setup: Paged, seq_len: int) -> int:
    """One position a token: the token that is decoded is the last of seq_len."""
    return seq_len


def verify_room(setup: Paged, seq_len: int) -> int:
    """The prefix and behind it, one after the other, first the drafts of all branches and then the tree's tokens."""
    return max(draft_room(setup, seq_len), extend_room(setup, seq_len))


def prefix_room(setup: Paged, seq_len: int) -> int:
    """One position a token: drafts are kept nowhere."""
    return seq_len


def extend_room(setup: Paged, seq_len: int) -> int:
    """The prefix and, behind it, every token of the tree that was verified."""
    return seq_len + setup.num_draft_tokens


def moved_room(setup: Paged, seq_len: int) -> int:
    """The verified tree, and all branches up to the ends of their pages: whole pages are copied and given back."""
    pages = -(-draft_room(setup, seq_len) // setup.page_size)
    return max(seq_len + setup.num_draft_tokens, pages * setup.page_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """backends, algorithms: those with which there is such a runner. num_steps_min: fewest draft steps. accepts: a
    request says how many drafts were accepted. speculative: False where there is no draft, so that topk and num_steps
    are 1 and mean nothing. branches: False where topk is 1. trees: True where it is more. room: how many positions of
    its row of req_to_token a request of seq_len tokens uses. since: no release before it has this runner. light: it
    runs no model, so that its contexts may be long. compiled: it takes seconds to capture a bucket, so that cases have
    few of them."""

    backends: tuple[str, ...] = ("triton",)
    algorithms: tuple[str, ...] = ("EAGLE",)
    num_steps_min: int = 1
    accepts: bool = False
    speculative: bool = True
    branches: bool = True
    trees: bool = False
    light: bool = False
    compiled: bool = False
    room: Callable[[Paged, int], int] = draft_room
    since: str = "0"


# Algorithms whose target keeps latent vectors for keys and values: on flashinfer that is another backend altogether.
TRITON_ONLY = frozenset({"NEXTN"})

DOMAINS = {
    # sglang captures no draft graph for a single step: that step only samples.
    "draft": Domain(backends=("triton", "flashinfer"), algorithms=("EAGLE", "EAGLE3", "NEXTN"), num_steps_min=2),
    "draft_v1": Domain(algorithms=("EAGLE", "EAGLE3", "NEXTN"), num_steps_min=2),
    "decode": Domain(backends=("triton", "flashinfer"), speculative=False, room=decode_room),
    "cpu_decode": Domain(backends=("intel_amx",), speculative=False, compiled=True, room=decode_room),
    "verify": Domain(backends=("triton", "flashinfer"), num_steps_min=2, room=verify_room),
    "frozen_kv_mtp": Domain(num_steps_min=2, room=prefix_room, since="0.5.12"),
    "draft_extend": Domain(
        backends=("triton", "flashinfer"), algorithms=("EAGLE", "EAGLE3", "NEXTN"), accepts=True, room=extend_room
    ),
    # Every layer draws one token. With a single layer it is draft_extend.
    "multi_layer": Domain(num_steps_min=2, accepts=True, branches=False, room=extend_room, since="0.5.11"),
    # Without a graph; trees apart, as their batches are padded wrongly in every release.
    "verify_eager": Domain(branches=False, room=extend_room),
    "verify_eager_tree": Domain(trees=True, room=extend_room),
    "verify_eager_multi_layer": Domain(branches=False, room=extend_room),
    "kv_move": Domain(accepts=True, light=True, room=moved_room),
    "toy": Domain(backends=("triton", "flashinfer"), num_steps_min=2),
}
