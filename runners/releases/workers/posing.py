"""What stands for an object of sglang's where as much of it as is asked for will do."""

from __future__ import annotations

from types import SimpleNamespace


class Posing(SimpleNamespace):
    """What it lacks is ours to add, and no finding; what a SimpleNamespace of sglang's own lacks is."""
