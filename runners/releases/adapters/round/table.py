"""A worker that drafts from a table of n-grams: what it needs where there is no GPU, and the trees that it drafts."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runners.engines.active import engine
from runners.engines.standins import native_imports, ngram_corpus
from runners.releases.adapters.round import blocks

# The folder of sglang's kernels that are compiled when they are asked for, since 0.5.17 and before; and the class of
# the table, likewise.
_KERNELS = ("sglang.kernels.jit.utils", "sglang.jit_kernel.utils")
_TABLE = ("sglang.kernels.ops.speculative.ngram_corpus", "sglang.jit_kernel.ngram_corpus")
_WORKER = "sglang.srt.speculative.ngram_worker"
# Gives tokens and mask of the trees that the table drafts for a batch.
_DRAFTS = "_prepare_draft_tokens"


def prepare() -> None:
    """Once a process, before a scheduler is constructed. On a GPU nothing is stood in for."""
    if engine.device != "cpu":
        return
    native_imports.stand_in_if_absent("tvm_ffi")
    newer = importlib.util.find_spec("sglang.kernels") is not None and _is_there(_TABLE[0])
    kernels: Any = importlib.import_module(_KERNELS[not newer])
    ngram_corpus.bind(importlib.import_module(_TABLE[not newer]), Path(kernels.KERNEL_PATH) / "csrc")
    worker: Any = importlib.import_module(_WORKER).NGRAMWorker
    makes = worker.alloc_memory_pool

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        self.device = engine.device  # up to 0.5.15 a GPU of the worker's number
        makes(self, *args, **kwargs)

    worker.alloc_memory_pool = make


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def accepted() -> AbstractContextManager[None]:
    """While entered, arguments of a server for a CPU may have the algorithm, which up to 0.5.15 is for GPUs."""
    return blocks.accepted("_handle_ngram")


@contextmanager
def listened(worker: Any, listener: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """While entered, `listener` is given the parent of each token of the trees that the table drafts for a batch,
    [requests, num_draft_tokens]; -1 for roots."""
    drafts = getattr(worker, _DRAFTS)

    def drafted(batch: Any) -> Any:
        tokens, mask = drafts(batch)
        count = worker.draft_token_num
        above = np.tril(np.reshape(mask, (-1, count, count)) != 0, k=-1)
        parents = np.where(above.any(axis=2), count - 1 - above[:, :, ::-1].argmax(axis=2), -1)
        listener(torch.from_numpy(parents))
        return tokens, mask

    setattr(worker, _DRAFTS, drafted)
    try:
        yield
    finally:
        delattr(worker, _DRAFTS)
