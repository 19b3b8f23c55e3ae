"""Places in sglang's source, as findings name them."""

from __future__ import annotations

import sys
from collections.abc import Collection

_SGLANG = "/sglang/"
NOWHERE = "the harness"


def in_sglang(but: Collection[str] = ()) -> str:
    """The innermost place of sglang's on the stack: file, function and line. but: parts of paths that are passed
    over."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if _SGLANG in path and not any(part in path for part in but):
            return f"{path.rpartition(_SGLANG)[2]} {frame.f_code.co_name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return NOWHERE
