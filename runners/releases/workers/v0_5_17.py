"""sglang 0.5.17: arguments are published and read-only from then on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sglang.srt.runtime_context import publish
from sglang.srt.server_args import ServerArgs

from runners.releases.workers import v0_5_16
from runners.releases.workers.bags import ROLE, graphs_on


def published(arguments: Mapping[str, Any]) -> Any:
    args = ServerArgs(**arguments)
    publish(args, role=ROLE)
    return args


GENERATION = replace(v0_5_16.GENERATION, published=published, graphs_on=graphs_on)
