"""The other rank of data-parallel attention, by its batches: a schedule says how many requests it has."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import Any

_MODES = "sglang.srt.model_executor.forward_batch_info"


@dataclass(slots=True)
class Others:
    """Mutable: the schedule begins each iteration of the event loop, in which ranks exchange batches once or twice.
    requests: those that run there. tokens: of their prompts, in the iteration in which they arrive. batch_size: of the
    last batch. prefills_max: tokens of the largest prefill graph. decodes: whether it has batches that decode."""

    requests: int = 0
    tokens: int = 0
    batch_size: int = 0
    prefills_max: int = 0
    decodes: bool = True
    _asked: int = 0

    def begin(self, requests: int = 0, tokens: int = 0) -> None:
        self.requests, self.tokens, self._asked = requests, tokens, 0

    def entry(self, info: Any) -> Any:
        """This rank's entry (MLPSyncBatchInfo) as the other one's. A scheduler with drafts tells of a prefill first,
        and if no rank has one, of what decodes."""
        mode: Any = importlib.import_module(_MODES).ForwardMode
        self._asked += 1
        prefills, decodes = bool(self.tokens) and self._asked == 1, self.decodes and self._asked > 1
        count = self.tokens if prefills else self.requests if decodes else 0
        self.batch_size = self.requests if decodes else 0
        votes = not count or (prefills and self.tokens <= self.prefills_max)
        entries = {
            "num_tokens": count,
            "num_tokens_for_logprob": self.requests if prefills else count,
            "is_extend_in_batch": prefills,
            "local_can_run_tbo": False,
            "local_forward_mode": (mode.EXTEND if prefills else mode.DECODE if count else mode.IDLE).value,
            # Whether graphs may run: of decode, by two names, of prefills, by two, and of drafts.
            "can_cuda_graph": not prefills,
            "can_run_decode_cuda_graph": not prefills,
            "can_run_breakable_cuda_graph": votes,
            "can_run_prefill_cuda_graph": votes,
            "can_run_draft_cuda_graph": True,
        }
        names = {each.name for each in dataclasses.fields(info)}
        return dataclasses.replace(info, **{name: entry for name, entry in entries.items() if name in names})
