"""The first worker drafts from the same batches as the second."""

from __future__ import annotations

from runners.releases.adapters.draft import family

FAMILY = family.FAMILY
