"""The batches for which sglang asks its graph runners whether a graph holds them, and what they answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repro.cases.case import Setup
from repro.cases.rows.serving import PREFILL
from repro.traces.paths import Recorded
from runners.recording.observer import Watch
from runners.sessions.wrapped import wrapped

# The method that sglang asks; newest first.
_ASKS = "can_run_graph", "can_run"
# Fields of a batch each of which lets sglang prefill without a graph.
_OTHERWISE = "input_embeds", "replace_embeds", "return_logprob", "global_num_tokens_cpu"


@dataclass(slots=True)
class Asked:
    """Mutable: it collects a row for each question. answers: by runner [n, 3]: the size of the batch, 1 if nothing but
    its size lets sglang do without a graph, and the answer. sizes: those of the runner's graphs."""

    setup: Setup
    answers: dict[str, list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    sizes: dict[str, list[int]] = field(default_factory=dict)

    @contextmanager
    def listened(self, runners: Mapping[str, Any], prefills: list[Any]) -> Iterator[None]:
        """While entered, each question is noted. runners: those of decode rounds, by name."""
        with ExitStack() as stack:
            for name, runner in runners.items():
                self.sizes[name] = list(getattr(runner, "capture_bs", None) or runner.runners[0].capture_bs)
                stack.enter_context(wrapped(runner, _ASKS, self._asking(name, self._of_round)))
            for number, runner in enumerate(prefills):
                name = f"{PREFILL}{number or ''}"
                self.sizes[name] = list(runner.capture_num_tokens)
                stack.enter_context(wrapped(runner, _ASKS, self._asking(name, _of_prefill(runner))))
            yield

    def see(self, watch: Watch) -> None:
        """Record what was collected."""
        for name, rows in self.answers.items():
            watch.see(-1, Recorded.GRAPHS_ASKED, name, np.asarray(rows, np.int64))
            watch.see(-1, Recorded.GRAPHS_ASKED, f"{name} sizes", np.asarray(self.sizes[name], np.int64))

    def _asking(self, name: str, sized: Callable[[Any], tuple[int, bool]]) -> Callable[..., Callable[..., Any]]:
        def wrapping(asks: Callable[..., Any]) -> Callable[..., Any]:
            def ask(batch: Any, *args: Any, **kwargs: Any) -> Any:
                answer = asks(batch, *args, **kwargs)
                size, is_plain = sized(batch)
                self.answers[name].append((size, int(is_plain), int(bool(answer))))
                return answer

            return ask

        return wrapping

    def _of_round(self, batch: Any) -> tuple[int, bool]:
        """Ranks vote, each with a batch of its own."""
        return int(batch.batch_size), not self.setup.dp_attention


def _of_prefill(runner: Any) -> Callable[[Any], tuple[int, bool]]:
    """Tokens of a prefill, and whether it has whole prompts alone, at most as many as the graph was captured for, and
    returns no logits of prompts."""

    def sized(batch: Any) -> tuple[int, bool]:
        requests_max = getattr(runner, "_capture_req_slots", None) or int(batch.batch_size)
        is_plain = (
            batch.forward_mode.is_extend()
            and not batch.forward_mode.is_target_verify()
            and not batch.forward_mode.is_mixed()
            and not any(batch.extend_prefix_lens_cpu or ())
            and int(batch.batch_size) <= requests_max
            and not batch.contains_mm_inputs()
            and not any(getattr(batch, name, None) not in (None, False) for name in _OTHERWISE)
        )
        return len(batch.input_ids), is_plain

    return sized
