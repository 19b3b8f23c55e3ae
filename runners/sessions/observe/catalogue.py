"""All observations, in the order in which they record."""

from __future__ import annotations

from runners.sessions.observe.attributes import Attributes
from runners.sessions.observe.bucket import Bucket
from runners.sessions.observe.callers_batch import CallersBatch
from runners.sessions.observe.extents import ExtentsCaptured
from runners.sessions.observe.guard import GuardBands
from runners.sessions.observe.history import OtherHistory
from runners.sessions.observe.kept_outputs import KeptOutputs
from runners.sessions.observe.launch import Launch
from runners.sessions.observe.liveness import GraphInputs
from runners.sessions.observe.memory import MemoryAccess
from runners.sessions.observe.metadata import Metadata
from runners.sessions.observe.observer import Observer
from runners.sessions.observe.outputs import PassOutputs
from runners.sessions.observe.planned import Planned
from runners.sessions.observe.staged import Staged

OBSERVERS: tuple[type[Observer], ...] = (
    MemoryAccess,
    Launch,
    GraphInputs,
    Metadata,
    Bucket,
    ExtentsCaptured,
    Planned,
    Staged,
    PassOutputs,
    KeptOutputs,
    GuardBands,
    Attributes,
    CallersBatch,
    OtherHistory,  # the last, so that it notes no other's looks
)
