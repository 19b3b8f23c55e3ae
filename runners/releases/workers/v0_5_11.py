"""sglang 0.5.11 to 0.5.13: row 0 of the request pool is reserved for padding."""

from __future__ import annotations

from repro.cases.case import Setup
from runners.releases.live import Live
from runners.releases.model import Folders
from runners.releases.workers import v0_5_10

NAME = "0.5.11"


def build_target(setup: Setup, device: str, models: Folders) -> Live:
    arguments = v0_5_10.server_args(setup, device, models) | {"max_running_requests": setup.slots}
    return v0_5_10.target_in_one_phase(setup, device, arguments)


def build(setup: Setup, device: str, models: Folders) -> Live:
    arguments = v0_5_10.server_args(setup, device, models) | {"max_running_requests": setup.slots}
    return v0_5_10.one_phase(setup, device, arguments)
