"""A rig whose targets behave as a test says, for what repro/upstream asks of one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from repro.cases.case import Case, Target
from repro.traces.finding import Status, Verdict
from repro.traces.trace import Trace
from repro.upstream.rig import Contents, Refused, Rig

# What a run on a target comes to: its trace, and what the oracles say of it.
World = Callable[[Target, Case], tuple[Trace, Sequence[Verdict]]]


def rig(
    world: World,
    lines: list[str] | None = None,
    *,
    releases: Sequence[str] = (),
    source: Path = Path(),
    overlays: Path | None = None,
    lacking: str = "",
) -> Rig:
    """overlays: a folder that an overlay's files are written to; its target is named after the change."""
    lists: list[Sequence[Verdict]] = []

    @contextmanager
    def opened(target: Target) -> Iterator[Callable[[Case], Trace]]:
        def run(case: Case) -> Trace:
            trace, verdicts = world(target, case)
            lists.append(verdicts)
            return trace

        yield run

    def overlay(target: Target, change: str, contents: Contents) -> Target:
        if overlays is None:
            raise Refused("no overlays here")
        for name, text in contents.items():
            (overlays / name).parent.mkdir(parents=True, exist_ok=True)
            if text is not None:
                (overlays / name).write_text(text)
        return Target(f"{overlays}/{change}", target.engine)

    return Rig(
        lacks=lambda target: lacking if target.sglang == "absent" else "",
        opened=opened,
        noting=opened,
        judge=lambda case, trace: lists[-1],
        overall=lambda verdicts: max((verdict.status for verdict in verdicts), default=Status.UNKNOWN),
        source=lambda target: source,
        overlay=overlay,
        releases=lambda engine: tuple(releases),
        alone=lambda target: (Path(sys.executable), {"PYTHONPATH": target.sglang}),
        patience=120.0,
        named=str,
        tell=(lines if lines is not None else []).append,
    )
