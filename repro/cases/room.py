"""The number of positions that a request needs in its row of req_to_token, by runner."""

from __future__ import annotations

from repro.cases.layout import Paged, branch_stride

# Positions of the context that a prompt leaves at least: six in every release, its first token and one more.
KEPT_FREE = 8


def draft_room(setup: Paged, seq_len: int) -> int:
    """Row positions that a request of this length uses, the drafts of all branches included."""
    return seq_len + (setup.topk - 1) * branch_stride(setup, seq_len) + setup.num_steps


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


def served_room(setup: Paged, seq_len: int) -> int:
    """Room as of moved rows, once the first token of its own is behind the prompt, also for an adaptive worker's other
    number of draft steps; and what a scheduler keeps free behind each request, which is refused without it."""
    verified = seq_len + 2 + setup.adaptive if setup.adaptive else 0
    whole = -(-verified // setup.page_size) * setup.page_size
    return max(moved_room(setup, seq_len + 1), whole, seq_len + KEPT_FREE)
