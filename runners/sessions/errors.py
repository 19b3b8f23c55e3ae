"""Whose error it is: what is raised under `sglang_errors` is sglang's, what a session raises otherwise is the
harness's; and a kernel that has failed is sglang's, wherever that comes out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch

from repro.cases.case import Case, Setup
from repro.traces.device_errors import fault_in
from runners.engines.active import engine
from runners.recording.observer import HarnessError, Refused, RunCase, Unsupported, Watch
from runners.releases import catalogue
from runners.releases.refusals import refused
from runners.sessions.attribution import raise_harness_error, told


class SglangError(Exception):
    """Carries an exception of sglang's code past the handlers of the session's own errors."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Misshapen(Exception):
    """A buffer or a result of sglang's has another shape than this release leaves, and cannot be read."""


# What torch says of shapes and places that do not fit.
_SHAPES = re.compile(r"shape|size|dimension|broadcast|out of (bounds|range)", re.IGNORECASE)


def unreadable(error: Exception, doing: str) -> Exception:
    """The error to raise where reading what sglang left came to this one. doing: what was not done, in words. In a
    release that an adapter was written for, shapes are known, and others are sglang's; anything else is a mistake of
    ours."""
    text = f"{doing}: {type(error).__name__}: {error}"
    about_shapes = isinstance(error, IndexError) or (
        isinstance(error, RuntimeError | ValueError) and _SHAPES.search(str(error)) is not None
    )
    known = about_shapes and catalogue.is_adapted(catalogue.present_release())
    return SglangError(Misshapen(text)) if known else HarnessError(text)


@contextmanager
def sglang_errors(*, wait: bool = True) -> Iterator[None]:
    """Run sglang's code: what it raises is a finding. wait: for the device, so that an asynchronous error surfaces
    here; otherwise somebody else waits for it."""
    try:
        yield
        if wait:
            engine.synchronize()
    except (Unsupported, HarnessError, Refused, SglangError):  # the last from within another of these
        raise
    except Exception as error:
        raise_harness_error(error)
        raise SglangError(error) from error


@contextmanager
def device_waited() -> Iterator[None]:
    """A block whose work has ended on the device, too, when it ends. Where it raises, the device is asked first: once
    a kernel has failed, whatever else goes wrong may be a consequence."""
    try:
        yield
    except Exception as error:
        if fault_in(error) is None and (fault := _fault_of_device()):
            raise fault from error
        raise
    engine.synchronize()


def _fault_of_device() -> BaseException | None:
    """The error that the device gives to each call since a kernel has failed; None if none has."""
    try:
        engine.synchronize()
    except Exception as error:  # or a capture was left open
        return fault_in(error)
    return None


def raise_published(raised: SglangError, setup: Setup) -> NoReturn:
    """Raise sglang's own exception, or Unsupported if sglang refuses this setup by it."""
    if words := refused(setup, raised.error):
        raise Unsupported(words) from raised.error
    raise raised.error from None


def attributed(run: RunCase) -> RunCase:
    """The same run, raising what sglang raised as it is, and HarnessError for a mistake of the session's."""

    def blamed(case: Case, watch: Watch) -> None:
        try:
            run(case, watch)
        except SglangError as raised:
            raise_published(raised, case.setup)
        # The last of a kernel before, wherever it surfaces.
        except (Unsupported, HarnessError, torch.AcceleratorError):
            raise
        except Exception as error:
            raise HarnessError(f"the session failed: {told(error)}") from error

    return blamed
