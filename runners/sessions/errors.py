"""Whose error it is: what is raised under `sglang_errors` is sglang's, what a session raises otherwise is the
harness's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from repro.cases.case import Case
from runners.engines.active import engine
from runners.recording.observer import HarnessError, Refused, RunCase, Unsupported, Watch
from runners.sessions.attribution import raise_harness_error


class SglangError(Exception):
    """Carries an exception of sglang's code past the handlers of the session's own errors."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def sglang_errors(*, wait: bool = True) -> Iterator[None]:
    """Run sglang's code: what it raises is a finding. wait: for the device, so that an asynchronous error surfaces
    here; otherwise somebody else waits for it."""
    try:
        yield
        if wait:
            engine.synchronize()
    except (Unsupported, HarnessError, Refused):
        raise
    except Exception as error:
        raise_harness_error(error)
        raise SglangError(error) from error


def attributed(run: RunCase) -> RunCase:
    """The same run, raising what sglang raised as it is, and HarnessError for a mistake of the session's."""

    def blamed(case: Case, watch: Watch) -> None:
        try:
            run(case, watch)
        except SglangError as raised:
            raise raised.error from None
        # The last of a kernel before, wherever it surfaces.
        except (Unsupported, HarnessError, torch.AcceleratorError):
            raise
        except Exception as error:
            raise HarnessError(f"the session failed: {type(error).__name__}: {error}") from error

    return blamed
