"""A sample of steps that is always the same, drawn by the digests of their cases."""

from __future__ import annotations

import hashlib


def is_drawn(case: str, step: int, each: int) -> bool:
    """True if this step is drawn, as one in `each` is, 0: none. case: its digest."""
    drawn = hashlib.sha256(f"{case}/{step}".encode()).digest()
    return each > 0 and int.from_bytes(drawn[:8]) % each == 0
