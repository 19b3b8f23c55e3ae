"""Capturing a program of tensor operations, for the tests of the emulated engine and its memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runners.engines.arena import Arena
from runners.engines.emulated import Graph, graph
from tests.builders.tensor_programs import Tensors


def captured(program: Callable[[], Tensors], pool: Arena | None = None) -> tuple[Graph, Tensors]:
    made = Graph()
    with graph(made, pool=pool):
        results = program()
    return made, results


def address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
