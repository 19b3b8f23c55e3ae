"""Calls of a method through another, for what sglang's objects do while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Wrapping = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextmanager
def wrapped(owner: Any, names: tuple[str, ...], wrapping: Wrapping) -> Iterator[None]:
    """While entered, the first of these methods that an object has is called through another."""
    name = next((name for name in names if hasattr(owner, name)), None)
    if name is not None:
        setattr(owner, name, wrapping(getattr(owner, name)))
    try:
        yield
    finally:
        if name is not None:
            delattr(owner, name)
