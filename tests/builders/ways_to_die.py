"""The ways in which a run of tests/builders/dying_session.py may be asked to end; read without torch."""

from __future__ import annotations

# The data by which each is asked for, and how such a run ends: how, and what it is called.
WAYS = {
    "device assert": (900_001, "raised", "CUDA error: device-side assert triggered"),
    # A full device says nothing about sglang.
    "out of memory": (900_002, "error", "OutOfMemoryError: "),
    "abort": (900_003, "crashed", "SIGABRT"),
    "hang": (900_004, "hung", "no answer"),
}


def data_of(way: str) -> int:
    return WAYS[way][0]
