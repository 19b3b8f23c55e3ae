"""Kernels that Triton times with each of their configurations, to keep the fastest: here the first is taken, as none is
timed."""

from __future__ import annotations

from typing import Any

from triton.runtime import autotuner


class _Known(dict[Any, Any]):
    """A tuner's choices by what it is asked: always its first configuration."""

    def __init__(self, first: Any) -> None:
        super().__init__()
        self._first = first

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: Any) -> Any:
        return self._first


_tuner_init = autotuner.Autotuner.__init__


def _init(tuner: Any, *args: Any, **kwargs: Any) -> None:
    _tuner_init(tuner, *args, **kwargs)
    tuner.cache = _Known(tuner.configs[0])


def install() -> None:
    """To be called before kernels are defined."""
    autotuner.Autotuner.__init__ = _init
