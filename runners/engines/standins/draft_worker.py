"""Stands in for the construction of a draft worker that is there already."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def constructor(kind: type, worker: Any, ranks: Mapping[str, Any]) -> Callable[..., Any]:
    """Takes what this class of sglang's takes, and gives the worker. ranks: those of this process, and its port: one of
    them in another's place is refused, as a group of several ranks would not come together."""

    def construct(*args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(kind).bind(*args, **kwargs).arguments
        wrong = {name: value for name, value in arguments.items() if value != ranks.get(name, value)}
        if wrong:
            raise ValueError(f"{kind.__name__} is handed {wrong}, and this process has {dict(ranks)}")
        return worker

    return construct
