"""sglang 0.5.10.post1: constructing a worker also makes its pools and attention backends; row 0 of the request pool is
an ordinary row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from repro.cases.case import Setup
from runners.releases.workers.arguments import ranks
from runners.releases.workers.building import Generation


def published(arguments: Mapping[str, Any]) -> Any:
    args = ServerArgs(**arguments)
    set_global_server_args_for_scheduler(args)
    return args


def graphs_on(args: Any, setup: Setup) -> None:
    args.disable_cuda_graph = False


GENERATION = Generation(published=published, ranks=ranks, graphs_on=graphs_on, phased=False, spare_rows=1)
