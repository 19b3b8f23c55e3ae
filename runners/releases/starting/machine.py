"""Questions of sglang to the machine for each server's arguments, by a program that takes half a second where others
use the GPUs' driver, too: it is asked once, before sessions are forked."""

from __future__ import annotations

import contextlib
import functools
from typing import Any
from unittest.mock import patch

_ASKS, _OTHERWISE = "get_nvgpu_memory_capacity", "_cuda_mem_fallback"


def remember(common: Any) -> None:
    """common: sglang's module of utilities. Nothing is asked of the device itself, which must not be started: where
    that would be the answer, each session gets its own."""
    if not hasattr(common, _ASKS):
        return
    remembered = functools.cache(getattr(common, _ASKS))
    setattr(common, _ASKS, remembered)
    with patch.object(common, _OTHERWISE, _refused, create=True), contextlib.suppress(_NotAsked, ValueError):
        remembered()


class _NotAsked(Exception):
    pass


def _refused(*_: Any) -> float:
    raise _NotAsked
