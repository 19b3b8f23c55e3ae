"""The names of a release's server arguments, read from its sources: nothing of sglang is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable

from repro.cases.case import Target
from runners.targets.environments import sglang_path

_FILES = ("server_args.py", "arg_groups/fields/*.py")
_FIELD = re.compile(r"^    ([a-z]\w*):", re.MULTILINE)
_FLAG = re.compile(r"[\"']--([a-z][a-z0-9-]*)[\"']")


def argument_names(targets: Iterable[Target]) -> frozenset[str]:
    """Fields of ServerArgs and flags of its command line, with underscores, of all these targets' releases. NotUsable
    if one is not there."""
    names: set[str] = set()
    for target in targets:
        folder = sglang_path(target) / "sglang" / "srt"
        for file in (path for pattern in _FILES for path in folder.glob(pattern)):
            text = file.read_text(errors="replace")
            names.update(_FIELD.findall(text))
            names.update(flag.replace("-", "_") for flag in _FLAG.findall(text))
    return frozenset(names)
