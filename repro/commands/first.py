"""python -m repro first: the first wrong value of a failing seed, and the line of sglang that it comes from."""

from __future__ import annotations

import argparse

from repro.cases.codec import read
from repro.commands.cli import BadInput, say
from repro.shrinking.first_divergence import of_run
from repro.shrinking.origin import lines, origin
from repro.shrinking.replay import trouble
from repro.traces.exit_codes import ExitCode, of_status
from repro.traces.finding import Status
from repro.upstream.rig import Rig


def go(options: argparse.Namespace, rig: Rig) -> ExitCode:
    """The exit code of the run's status. BadInput, BadSeed."""
    case = read(options.seed).case
    if lack := rig.lacks(options.target):
        raise BadInput(f"{options.target}: {lack}")
    with rig.noting(options.target) as run:
        trace = run(case)
        if not trace.ended.how.took_place:
            raise BadInput(f"{options.target}: the case could not be run: {trouble(trace.ended)}")
        verdicts = rig.judge(case, trace)
    status = rig.overall(verdicts)
    source = origin(case, trace, verdicts) if status is Status.FAIL else None
    if source:
        for text in lines(source):
            say(text)
    elif status is Status.FAIL:
        say(str(of_run(trace, verdicts)) or "it fails, and no oracle names a first wrong value")
    else:
        say(f"{options.seed} on {options.target}: {status.name}: there is no wrong value to be named")
    return of_status(status)
