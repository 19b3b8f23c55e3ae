"""runners.session, which also tells the sizes of the draft model's weights: fact `sizes`, [rows, columns] by name."""

from __future__ import annotations

import importlib
import json
from typing import Any

from repro.case import Setup, Target
from runners.watch import RunCase, Watch


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    """As of runners.session, which is imported here only: what names this module needs no torch."""
    model = importlib.import_module("runners.releases.model")
    fill_weights = model.fill_weights

    def measured(of: Any) -> None:
        fill_weights(of)
        watch.fact("sizes", json.dumps({name: list(weight.shape) for name, weight in of.named_parameters()}))

    model.fill_weights = measured
    opened: RunCase = importlib.import_module("runners.session").open_session(setup, target, watch)
    return opened
