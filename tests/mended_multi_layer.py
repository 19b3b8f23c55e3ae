"""runners.session in which the attention backend of every layer knows how many tokens of a request its layer goes over.
Up to 0.5.14 sglang's Triton backend takes num_draft_tokens for that, whichever the layer."""

from __future__ import annotations

import importlib
from typing import Any

from repro.case import Setup, Target
from runners.watch import RunCase, Watch


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    captured = importlib.import_module("runners.sessions.captured").Captured
    init = captured.__init__

    def mended(self: Any, adapter: Any, *rest: Any) -> None:
        def capture(live: Any) -> Any:
            for layer, backend in enumerate(live.draft.draft_extend_attn_backend_list):
                backend.num_draft_tokens = setup.num_draft_tokens + layer
            return adapter.capture(live)

        dataclasses = importlib.import_module("dataclasses")
        init(self, dataclasses.replace(adapter, capture=capture), *rest)

    captured.__init__ = mended
    session = importlib.import_module("runners.session")
    opened: RunCase = session.open_session(setup, target, watch)
    return opened
