"""The first worker drafts from the same batches as the second."""

from __future__ import annotations

from runners.releases.draft.family import FAMILY

__all__ = ["FAMILY"]
