"""Known bugs mended where they are: the forms of repro/patches that have a place in a release's sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from repro.upstream.edits import Edit, EditNotFound, edited
from repro.upstream.patch_table import BY_NAME, Backport

# The text of a file of a release, by its path relative to the import path. OSError if it is missing.
Source = Callable[[str], str]


def edits_for(backport: Backport, source: Source) -> tuple[Edit, ...]:
    """The first form whose places are all in these sources; empty if no form fits."""
    for form in backport.forms:
        if _is_there(form, source):
            return form
    return ()


def _is_there(form: Sequence[Edit], source: Source) -> bool:
    try:
        for file in {edit.file for edit in form}:
            edited(source(file), [edit for edit in form if edit.file == file])
    except (EditNotFound, OSError):
        return False
    return True


def mends(names: Iterable[str], source: Source) -> Mapping[str, tuple[Edit, ...]]:
    """The edits of these backports, by name; those that cannot be made here are left out. Edits of the same
    place by two of them are made once."""
    edits_by_name: dict[str, tuple[Edit, ...]] = {}
    taken: set[Edit] = set()
    for name in names:
        edits = edits_for(BY_NAME[name], source)
        if edits:
            edits_by_name[name] = tuple(edit for edit in edits if edit not in taken)
            taken |= set(edits)
    return edits_by_name
