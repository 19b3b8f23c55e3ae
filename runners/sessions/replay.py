"""Cases on a captured runner: every step by graph and by eager, from the state right after capture."""

from __future__ import annotations

import numpy as np
import torch

from repro.case import Case, Setup
from runners.releases.live import Adapter
from runners.sessions.captured import Captured, Theirs
from runners.sessions.step import Step
from runners.watch import RunCase, Unfit, Watch


def open_session(adapter: Adapter, setup: Setup, watch: Watch) -> RunCase:
    """Build workers and capture graphs."""
    captured = Captured(adapter, setup, watch)

    def run(case: Case, watch: Watch) -> None:
        captured.reset()
        watch.see(-1, "input", "req_to_token", captured.table)
        ranges = adapter.family.ranges(setup)
        for name in captured.buffers:
            if name in ranges:
                watch.see(-1, "range", name, np.asarray(ranges[name]))
            else:
                watch.see(-1, "neutral", name, np.asarray(captured.neutral.get(name.removesuffix("_cpu"), 0)))
        for number, step in enumerate(case.steps):
            try:
                Step(captured, number, step.requests, watch).run()
            except Theirs as raised:
                raise raised.error from None
            except torch.AcceleratorError:  # of the graph or of a kernel before it, wherever it surfaces
                raise
            except Exception as error:
                raise Unfit(f"the session failed: {type(error).__name__}: {error}") from error

    return run
