"""A real session that forgets, and gives the right results all the same: of `decode`, a graph runner that changes one
of its attributes with every call; of `verify`, an attention backend that leaves the last row's place in its mask as it
was, which is a padded row's where the batch does not fill the bucket."""

from __future__ import annotations

from typing import Any

from repro.cases.case import Setup, Target
from runners.recording.observer import RunCase, Watch
from runners.sessions import open
from runners.sessions.captured import Captured

MASKED = "_update_target_verify_buffers"  # in 0.5.13
PADDED = 1  # the length of a padded row


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    original = Captured.__init__

    def init(self: Captured, *args: Any) -> None:
        original(self, *args)
        if setup.runner == "verify":
            leave_mask(type(self.runner.attn_backend))
        else:
            change_attribute(type(self.runner))

    Captured.__init__ = init  # type: ignore[method-assign,assignment]  # plants what is wrong
    return open.open_session(setup, target, watch)


def change_attribute(runner: Any) -> None:
    call = runner.replay

    def changing(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.enable_torch_compile = not self.enable_torch_compile
        return call(self, *args, **kwargs)

    runner.replay = changing


def leave_mask(backend: Any) -> None:
    update = getattr(backend, MASKED)

    def leaving(self: Any, bs: int, seq_lens: Any, *args: Any) -> Any:
        kept = self.mask_indptr[bs - 1].clone()
        made = update(self, bs, seq_lens, *args)
        if int(seq_lens[bs - 1]) == PADDED:
            self.mask_indptr[bs - 1] = kept
        return made

    setattr(backend, MASKED, leaving)
