"""The record of a campaign against #23037, written by hand, and findings of every other shape."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from reports import html
from reports.records import history_of
from repro.cases.case import Case, Request, Setup, Step, Target
from repro.ledger.known import Issue
from repro.traces.campaign import Campaign, CampaignFinding, Covered, Replay, Transition
from repro.traces.finding import Cell, Status, Verdict

BUGGY, FIXED = Target("0.5.10.post1", "emulated"), Target("0.5.13", "emulated")


def stale_case() -> Case:
    """#23037, as small as it gets: a batch of two, then one in the same bucket, whose row 1 is padding."""
    setup = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(2, 4), slots=8)
    first = Step(requests=(Request(slot=1, seq_len=1, data=0), Request(slot=2, seq_len=1, data=1)))
    return Case(setup=setup, steps=(first, Step(requests=(Request(slot=1, seq_len=1, data=0),))))


def stale_found() -> CampaignFinding:
    where = "padded rows of req_pool_indices, topk_p, topk_index, hidden_states"
    return CampaignFinding(
        target=str(BUGGY),
        fingerprint=Verdict(oracle="slot0_padding", status=Status.FAIL, where=where).fingerprint,
        oracle="slot0_padding",
        where=where,
        detail="Row 1 of req_pool_indices is padding in step 1 (1 request in a bucket of 2) and holds 2 instead of 0.",
        seed="out/findings/slot0_padding-5b0f3e-0.5.10.post1.json",
        failed=5,
        tried=5,
        cases=31,
        at_case=2,
        at_seconds=1.4,
        done_seconds=11.2,
        shrink_runs=38,
        case=stale_case(),
        cell=Cell(step=1, buffer="req_pool_indices", row=1, column=0, got="2", want="0"),
    )


def covered() -> tuple[tuple[Covered, ...], tuple[Transition, ...]]:
    """Transitions of setups with buckets 1, 2, 4 and 2, 4, 8: made (with counts of all sizes), and missing."""
    made, missing = [], []
    for buckets, topk, steps in itertools.product(((1, 2, 4), (2, 4, 8)), (1, 2, 4, 8), (2, 3, 5)):
        for before, after, padded in itertools.product((0, *buckets), buckets, (False, True)):
            if padded and after - max(b for b in (0, *buckets) if b < after) == 1:
                continue
            transition = Transition(
                runner="draft",
                backend="triton",
                topk=topk,
                num_steps=steps,
                before=before,
                after=after,
                padded=padded,
            )
            count = (7 * topk + 5 * steps + 3 * before + 11 * after + 2 * padded) % 9 - 3
            rare = (before, after) == (8, 2) or ((before, after) == (8, 4) and padded) or (topk, steps) == (8, 5)
            if count > 0 and not rare:
                made.append(Covered(transition=transition, count=count * (7 if before == after else 1)))
            else:
                missing.append(transition)
    return tuple({c.transition: c for c in made}.values()), tuple(dict.fromkeys(missing))


def campaign(target: Target = BUGGY, findings: tuple[CampaignFinding, ...] = (), failing: int = 0) -> Campaign:
    made, missing = covered()
    cases = 164
    oracles = ("bucket", "callers_batch", "ended", "graph_equals_eager", "kv_indices", "kv_writes", "metadata_shape")
    verdicts = {oracle: {"pass": cases} for oracle in (*oracles, "staged")}
    verdicts["slot0_padding"] = {"pass": cases - 22 - failing, "unknown": 22, "fail": failing}
    verdicts["graph_equals_eager"] = {"pass": cases - 3, "unknown": 3}
    return Campaign(
        target=target,
        runner="draft",
        backend="triton",
        seed=7,
        started="2026-11-20T22:41:03+00:00",
        ended="2026-11-20T22:41:38+00:00",
        stopped="time",
        seconds=34.9,
        cases=cases,
        judged=cases,
        replays=sum(covering.count for covering in made),
        setups=24,
        verdicts=dict(sorted(verdicts.items())),
        endings={"done": cases},
        unknown={"slot0_padding: no padding exercised": 22, "graph_equals_eager: tie within rounding noise": 3},
        transitions=made,
        transitions_possible=len(made) + len(missing),
        transitions_missing=missing,
        findings=findings,
        stages={
            "draw": 0.8,
            "build": 6.4,
            "graph": 9.1,
            "eager": 8.6,
            "record": 1.2,
            "pass": 0.9,
            "judge": 1.1,
            "store": 0.3,
            "confirm": 4.0,
            "shrink": 2.5,
        },
        facts={
            "release": target.sglang,
            "adapter": "v0_5_10" if target == BUGGY else "v0_5_13",
            "engine": "emulated",
            "torch": "2.13.0+cpu",
            "machine": "Linux 6.1 x86_64, 2 cores, no GPU",
        },
    )


def stale_replays(finding: CampaignFinding) -> tuple[Replay, ...]:
    def replay(target: str, status: Status, failed: int, line: str) -> Replay:
        return Replay(
            seed=finding.seed,
            fingerprint=finding.fingerprint,
            target=target,
            status=status,
            failed=failed,
            tried=5,
            line=line,
        )

    return (
        replay("0.5.13/emulated", Status.PASS, 0, "9 of 9 oracles pass"),
        replay("0.5.11/emulated", Status.PASS, 0, "9 of 9 oracles pass"),
        replay("0.5.15.post1/emulated", Status.UNKNOWN, 0, "unsupported: no adapter fits this release"),
    )


def stale_report(issues: Sequence[Issue] = ()) -> str:
    finding = stale_found()
    history = history_of([campaign(BUGGY, (finding,), 31), campaign(FIXED)], stale_replays(finding))
    return html.render(history, issues=issues)


def large_case(batches: Sequence[int], buckets: tuple[int, ...]) -> Case:
    setup = replace(stale_case().setup, capture_bs=buckets, slots=64)
    steps = tuple(
        Step(requests=tuple(Request(slot=slot + 1, seq_len=3 + slot, data=slot) for slot in range(batch)))
        for batch in batches
    )
    return Case(setup=setup, steps=steps)


def many_findings() -> tuple[CampaignFinding, ...]:
    """Every kind of cell that an oracle gives, small cases and large."""
    stale, large = stale_found(), large_case((32, 1, 8, 20, 7, 30, 18, 19, 21), (1, 8, 32))
    cells = (
        stale.cell,
        None,
        Cell(step=1, buffer="kv_indices", row=1, column=37, got="9999999", want="112"),
        Cell(step=1, buffer="kv_indices guard", row=0, column=37, got="12", want="90"),
        Cell(step=1, buffer="tokens", row=0, column=2, got="7", want="8"),
        Cell(step=1, buffer="kv", row=99, column=0, got="written", want="untouched"),
        Cell(step=0, buffer="bs", row=0, column=0, got="4", want="2"),
        Cell(step=1, buffer="seq_lens", row=-1, column=-1, got="gone", want="shape (1,)"),
        Cell(step=70, buffer="a buffer of tomorrow", row=500, column=-7, got="nan" * 99, want=""),
    )
    kinds = itertools.product(cells, (stale.case, large))
    return tuple(
        replace(stale, fingerprint=f"{n:012x}", cell=cell, case=case, failed=n % 6)
        for n, (cell, case) in enumerate(kinds)
    )
