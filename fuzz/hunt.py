"""After the campaigns: whether what one target showed is in another, and the story of it in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fuzz.triage import Means
from repro.cases.case import Target
from repro.shrinking.confirm import failure
from repro.traces.campaign import Campaign, Found, Replay
from repro.traces.finding import Status
from repro.traces.trace import How


def elsewhere(found: Found, target: Target, means: Means, tries: int) -> Replay:
    """Run a found case on another target, in fresh processes, and say whether the same failure is there."""
    failed = tried = errors = 0
    statuses = [Status.UNKNOWN]
    others: Counter[str] = Counter()
    reason = "no run took place"
    for _ in range(tries):
        trace = means.run_fresh(found.case)
        if not trace.ended.how.took_place:
            errors += trace.ended.how is How.ERROR
            reason = (trace.ended.what or trace.ended.detail).partition("\n")[0]
            continue
        tried += 1
        verdicts = means.judge(found.case, trace)
        statuses.append(means.overall(verdicts))
        other = failure(verdicts)
        if failure(verdicts, found.fingerprint):
            failed += 1
        elif other:
            others[f"{other.oracle}: {other.where}"] += 1
        elif statuses[-1] is Status.UNKNOWN:
            reason = "it could not be judged"
    # The first entry stands for the doubt before anything was run; a run that took place replaces it.
    status = max(statuses[1:], default=Status.UNKNOWN)
    return Replay(
        seed=found.seed,
        fingerprint=found.fingerprint,
        target=str(target),
        status=status,
        failed=failed,
        tried=tried,
        line=_line(target, status, failed, tried, others, reason),
        errors=errors,
    )


def _line(target: Target, status: Status, failed: int, tried: int, others: Counter[str], reason: str) -> str:
    if failed:
        return f"{target} has it too: failed {failed} of {tried} runs"
    if others:
        other, count = others.most_common(1)[0]
        return f"{target} fails in another way: {other}, {count} of {tried} runs"
    if status is Status.PASS:
        return f"{target} does not have it: the same case passed {tried} of {tried} runs"
    return f"{target}: cannot tell, {reason}"


def story(campaigns: Sequence[Campaign], replays: Sequence[Replay]) -> list[str]:
    """Which target has what and which has not, one line each."""
    lines = []
    for found in (found for campaign in campaigns for found in campaign.findings):
        sure = f"failed {found.failed} of {found.tried} runs" if found.failed else "did not fail again on its own"
        lines.append(
            f"{found.target} has {found.oracle} ({found.where}): {sure}, settled in {found.done_seconds:.0f} s"
        )
        lines.append(f"  smallest case: {batches(found)}; {found.seed}")
        if found.cell:
            lines.append(f"  {found.cell}")
        lines += [
            f"  {replay.line}"
            for replay in replays
            if (replay.seed, replay.fingerprint) == (found.seed, found.fingerprint)
        ]
    if not lines:
        lines.append("no oracle failed on " + ", ".join(str(campaign.target) for campaign in campaigns))
    return lines


def batches(found: Found) -> str:
    """The batch sizes of a case: 2 steps with 2 then 1 requests on buckets 1 2."""
    sizes = [len(step.requests) for step in found.case.steps]
    steps = "1 step" if len(sizes) == 1 else f"{len(sizes)} steps"
    return f"{steps} with {' then '.join(map(str, sizes))} requests on buckets {_spaced(found.case.setup.capture_bs)}"


def _spaced(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))
