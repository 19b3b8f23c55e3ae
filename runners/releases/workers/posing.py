"""A stand-in for an object of sglang's that has only the part that is asked for."""

from __future__ import annotations

from types import SimpleNamespace


class Posing(SimpleNamespace):
    """A namespace whose missing attributes are ours to add, and no finding; those of sglang's own SimpleNamespace
    are."""
