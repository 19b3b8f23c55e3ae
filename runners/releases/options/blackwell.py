"""Backends of Blackwell: without a GPU, that sglang takes the machine for one of SM100 where it resolves arguments and
makes attention backends."""

from __future__ import annotations

import sys
from typing import Any

# Since 0.5.19 all ask one object for what the machine is; before, each has taken these functions by name.
_CONTEXT = "sglang.srt.runtime_context"
_FACTS = {"is_sm100": True, "is_sm100_or_sm110": True, "is_blackwell": True}
_PROBES = ("is_sm100_supported", "is_sm100_or_sm110_supported", "is_blackwell_supported", "is_blackwell")
_ASKING = tuple(f"sglang.srt.{name}" for name in ("server_args", "arg_groups.", "speculative.", "layers.attention."))


def prepare(device: str) -> None:
    """To be called before the workers of such a setup are built."""
    if device != "cpu":
        return
    context: Any = sys.modules.get(_CONTEXT)
    if hasattr(context, "override_platform"):
        known = {**context._PLATFORM_PROBES, **context._PLATFORM_VALUES}
        context.override_platform(**{name: fact for name, fact in _FACTS.items() if name in known}).install()
    for name, module in list(sys.modules.items()):
        if name.startswith(_ASKING):
            for probe in _PROBES:
                if hasattr(module, probe):
                    setattr(module, probe, lambda *_: True)
