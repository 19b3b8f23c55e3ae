"""The cost of a case: the setup and the cases that are measured, and the figures in words."""

from __future__ import annotations

from collections.abc import Iterator

from fuzz.aiming import aim_of
from fuzz.draw.rounds import EVERY, SHORT_ROUNDS, different, round_cases
from fuzz.draw.strategies import cases
from fuzz.draw.swarm import EVERYTHING
from fuzz.stats import Plan
from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case, Setup
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.campaign import Campaign

NAMES = {"small": "small setup", "rounds": "random mix"}
# A campaign's first rounds are short, so that it meets many setups soon: its speed is that of those behind them.
WHOLE_ROUNDS = EVERY[SHORT_ROUNDS:]
STAGES = ("draw", "build", "graph", "eager", "record", "reference", "pass", "judge", "store")


def small_setup(runner: str, backend: str) -> Setup:
    """The setup of the speed figures: small enough that overhead shows."""
    facts, kernels = RUNNER_FACTS[runner], BACKEND_FACTS[backend]
    topk = 2 if facts.speculative and facts.branches and not kernels.chains else 1
    num_steps, num_draft_tokens = (3, 4) if facts.speculative else (1, 2)
    return Setup(
        runner=runner,
        backend=backend,
        topk=topk,
        num_steps=num_steps,
        num_draft_tokens=num_draft_tokens,
        capture_bs=(1, 2, 4),
        slots=6,
        page_size=min(kernels.page_sizes, default=1),
        head_dim=kernels.drawn_head_dims[0],
        dtype=kernels.drawn_dtypes[0],
    )


def small_cases(runner: str, backend: str, seed: int, count: int) -> Iterator[Case]:
    """Different cases on the small setup."""
    return different(f"bench {seed}", cases(small_setup(runner, backend), EVERYTHING), count)


def small_round(runner: str, backend: str, seed: int, number: int, count: int) -> Iterator[Case]:
    """Some of these, others for every number: a round for one of several workers."""
    return different(f"bench {seed} {number}", cases(small_setup(runner, backend), EVERYTHING), count)


def a_round(plan: Plan, mix: str, number: int, count: int) -> Iterator[Case]:
    """The cases of a round of this mix."""
    if mix == "small":
        return small_round(plan.runner, plan.backend, plan.seed, number, count)
    return round_cases(plan.seed, number, plan.runner, plan.backend, count, aim_of(plan.aim))


def enough(cases: int, workers: int, a_round: int) -> int:
    """So many cases, or so many that whole rounds come out about even."""
    return max(cases, 4 * workers * a_round) if workers > 1 else cases


def measured(campaign: Campaign) -> bool:
    """True if the campaign gives figures: it was not ended from outside, and has run a case."""
    return campaign.stopped not in ("interrupted", "error") and campaign.cases > 0 and campaign.seconds > 0


def rate(campaign: Campaign) -> float:
    """Cases a second, of a campaign that was measured."""
    return campaign.cases / campaign.seconds


def speed_up(alone: Campaign, together: Campaign) -> list[str]:
    """The speed of several workers as a multiple of one; no line where one of the two was not measured."""
    if not (measured(alone) and measured(together)):
        return []
    return [f"  {together.workers} workers are {rate(together) / rate(alone):.2f} times as fast as one"]


def ratio(campaign: Campaign) -> float | None:
    """The whole time of all workers over that of graph and eager alone; None if nothing was replayed."""
    replaying = campaign.stages.get("graph", 0.0) + campaign.stages.get("eager", 0.0)
    return campaign.seconds * campaign.workers / replaying if replaying else None


def against_bare(campaign: Campaign, bare: float) -> list[str]:
    """The speed, compared with a loop in one process that only replays the graph and runs eager; no line where one of
    the two was not measured.

    bare: seconds that the loop takes for a batch, 0 if that is not known.
    """
    if not (bare and campaign.replays and measured(campaign)):
        return []
    times = bare * campaign.replays / campaign.seconds
    workers = f"{campaign.workers} workers" if campaign.workers > 1 else "one worker"
    return [f"  bare loop of graph + eager: {1000 * bare:.2f} ms a batch; {workers}: bare / whole = {times:.2f}"]


def figures(name: str, campaign: Campaign) -> list[str]:
    """Cases a second, time per stage, the ratio; or why there are no figures."""
    if not measured(campaign):
        return [f"{name}: not measured: {campaign.error or campaign.stopped} after {campaign.cases} cases"]
    seconds, count = campaign.seconds, campaign.cases
    lines = [
        f"{name}: {rate(campaign):.2f} cases/s "
        f"(cases: {campaign.cases}, setups: {campaign.setups}, {60 * campaign.setups / seconds:.0f} a minute, "
        f"replays: {campaign.replays}, seconds: {seconds:.2f})"
    ]
    for stage in STAGES:
        spent = campaign.stages.get(stage, 0.0)
        lines.append(f"  {stage:9}{1000 * spent / count:9.2f} ms a case {spent / (seconds * campaign.workers):6.1%}")
    if whole := ratio(campaign):
        lines.append(f"  whole / (graph + eager) = {whole:.2f}")
    failures = sum(counts.get("fail", 0) for counts in campaign.verdicts.values())
    if failures or campaign.judged < campaign.cases:
        lines.append(f"  {campaign.judged} of {campaign.cases} cases could be judged; {failures} verdicts were FAIL")
    return lines
