"""sglang 0.5.17: arguments are published and read-only from then on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang.srt.runtime_context import publish
from sglang.srt.server_args import ServerArgs

from runners.releases.workers.bags import ROLE, graphs_on
from runners.releases.workers.phased import Generation
from runners.releases.workers.v0_5_16 import ranks


def published(arguments: Mapping[str, Any]) -> Any:
    args = ServerArgs(**arguments)
    publish(args, role=ROLE)
    return args


GENERATION = Generation(name="0.5.17", published=published, ranks=ranks, graphs_on=graphs_on)
