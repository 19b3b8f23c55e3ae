"""python -m fuzz bench --openings: where the seconds of a session's opening go."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from itertools import islice

from fuzz.commands.context import CommandContext
from fuzz.draw.rounds import round_cases
from fuzz.openings import Opening, table
from fuzz.stats import Plan
from repro.cases.atomic_file import write_text
from repro.cases.case import Target
from repro.traces.exit_codes import ExitCode
from runners.processes.pool import Pool
from runners.processes.served import setups_per_session

_SESSION = "runners.sessions.opening"


def command(context: CommandContext, targets: Sequence[Target]) -> ExitCode:
    """So many openings on each target, one after the other; openings.json beside the logs has what was timed so far.
    UNKNOWN if none of a target ran its case."""
    timings: list[tuple[str, list[Opening]]] = []
    worst = ExitCode.PASS
    for target in targets:
        plan = context.plan(target)
        name = f"{target} {plan.runner} {plan.backend}"
        openings: list[Opening] = []
        timings.append((name, openings))
        for opening in _timed(context, plan):
            openings.append(opening)
            rows = [{"name": of, "openings": [each.to_json() for each in timed]} for of, timed in timings]
            write_text(context.out / "openings.json", json.dumps(rows, indent=1))
        context.say(*table(name, openings))
        if not any(opening.ran for opening in openings):
            worst = ExitCode.UNKNOWN
    return worst


def _timed(context: CommandContext, plan: Plan) -> Iterator[Opening]:
    """Setups of rounds, each with its first two cases in a session of its own; the first, which starts the worker and
    may compile kernels, is not counted."""
    options = context.options
    log, served = context.log(plan.target), options.setups_per_session or setups_per_session(plan.target.engine)
    with Pool(plan.target, timeout_s=options.timeout, log=log, session=_SESSION, setups_per_session=served) as pool:
        for number in range(1 + options.openings):
            cases = list(islice(round_cases(plan.seed, number, plan.runner, plan.backend, 2), 2))
            start = time.monotonic()
            trace = pool.run(cases[0])
            whole = time.monotonic() - start
            start = time.monotonic()
            pool.run(cases[-1])
            if number:
                yield Opening.of(str(cases[0].setup), trace, whole, time.monotonic() - start)
