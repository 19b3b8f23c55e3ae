"""A release or a checkout with known bugs mended: an overlay with the backports that can be made there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from repro.cases.case import Target
from repro.cases.release_list import ADAPTED
from repro.ledger.explain import Mended
from repro.upstream.backports import mends
from repro.upstream.edits import EditNotFound
from runners.targets import packages
from runners.targets.environments import NotUsable, overlays_directory, release_under, sglang_path
from runners.targets.overlay import CannotMake, Overlay, make_overlay


def mended(target: Target, names: Sequence[str], cache: Path | None = None) -> Mended | None:
    """The target with as many of these backports as can be made there; None where none can, on the toy too. OSError if
    the disk refuses."""
    if target.engine == "toy":
        return None
    try:
        source = sglang_path(target, cache)
        edits = mends(names, lambda file: (source / file).read_text(encoding="utf-8"))
        if not edits:
            return None
        changes = [edit for edits_of in edits.values() for edit in edits_of]
        # A place of its own: overlays of one release are mended while sessions run on each of them.
        which = hashlib.sha256(repr((str(source), changes)).encode()).hexdigest()[:8]
        what = Overlay(release=release_under(target), change=f"mended {which}")
        path = make_overlay(source, what, changes, overlays_directory(target, cache))
    except (NotUsable, CannotMake, EditNotFound):
        return None
    return Mended(target=Target(str(path), target.engine), names=tuple(edits))


def counts_as(target: Target) -> str:
    """The release that known issues and expectations take a target for: what its files say, of an overlay what those
    under it say; the last adapted one of a checkout that says nothing."""
    release = release_under(target)
    if release != target.sglang:
        return counts_as(Target(release, target.engine))
    if not target.is_checkout:
        return release
    stated = packages.checkout_release(Path(target.sglang).expanduser().absolute())
    return ADAPTED[-1] if re.match(r"0(\.0)*(\.dev.*|\+.*)?$", stated) else stated
