"""The batch sizes that sglang would capture graphs for in servers of other sizes: its own function, asked directly. It
is given this session's buckets, request pools of many sizes, and two batches at once, where a size must be even."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from runners.releases.workers.posing import Posing

# Where the function is, up to 0.5.13 and since.
_MODULES = ("sglang.srt.model_executor.cuda_graph_runner", "sglang.srt.model_executor.runner.base_cuda_graph_runner")


class _With:
    """An object with some attributes replaced."""

    def __init__(self, original: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced, _original=original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_original"], name)


def asked(server_args: Any, buckets: Sequence[int]) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """Rows of the request pool and how many batches there are at once, and the sizes that are captured. Nothing where
    this release has no such function."""
    module = next((module_of for name in _MODULES if (module_of := _module(name))), None)
    if module is None:
        return
    question: Callable[..., tuple[list[int], list[int]]] = module.get_batch_sizes_to_capture
    # Where arguments are asked for behind our back, two batches cannot be had.
    is_ours = not hasattr(module, "get_exec")
    for at_once in (1, 2) if is_ours else (1,):
        for size in range(1, max(buckets) + 3):
            most = -(-size // at_once) * at_once
            if max(buckets) > most or any(bucket % at_once == 0 and bucket <= most for bucket in buckets):
                options: dict[str, Any] = {"enable_two_batch_overlap": at_once == 2}
                if hasattr(server_args, "cuda_graph_bs"):
                    options["cuda_graph_bs"] = list(buckets)  # which it may add to
                arguments = _With(server_args, **options)
                pool = Posing(size=size)
                runner = Posing(server_args=arguments, req_to_token_pool=pool)
                yield (size, at_once), question(runner)[0]


def _module(name: str) -> Any:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return None
    return module if hasattr(module, "get_batch_sizes_to_capture") else None
