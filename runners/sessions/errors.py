"""Whose error it is: what is raised under `theirs` is sglang's, what a session raises otherwise is our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from repro.cases.case import Case
from runners.engines.active import engine
from runners.recording.observer import HarnessError, RunCase, Unsupported, Watch
from runners.sessions.captured import Theirs


@contextmanager
def theirs() -> Iterator[None]:
    """Run sglang's code: what it raises is a finding. Waits for the device, so that an error of its surfaces here."""
    try:
        yield
        engine.synchronize()
    except (Unsupported, HarnessError):
        raise
    except Exception as error:
        raise Theirs(error) from error


def blaming(run: RunCase) -> RunCase:
    """The same run, raising what sglang raised as it is, and HarnessError for a mistake of the session's."""

    def blamed(case: Case, watch: Watch) -> None:
        try:
            run(case, watch)
        except Theirs as raised:
            raise raised.error from None
        except (
            Unsupported,
            HarnessError,
            torch.AcceleratorError,
        ):  # the latter of a kernel before, wherever it surfaces
            raise
        except Exception as error:
            raise HarnessError(f"the session failed: {type(error).__name__}: {error}") from error

    return blamed
