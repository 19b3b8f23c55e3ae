"""A ledger's history written by hand: fixes, seeds and findings over all releases and both engines, and any number of
cases. What comes out is the same every time."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from repro.cases.case import Target
from repro.cases.codec import Seed, dumps
from repro.ledger.read import History
from repro.ledger.rows import CampaignRow, CaseCount, CheckRow, FindingRow, FixRow, Run
from repro.traces.campaign import CampaignFinding
from repro.traces.excerpt import Excerpt
from repro.traces.finding import Cell
from tests.builders.sample_record import campaign, large_case, stale_found

RELEASES = ("0.5.10.post1", "0.5.11", "0.5.12.post1", "0.5.13", "0.5.13.post1", "0.5.14", "0.5.15.post1")
ENGINES = ("emulated", "cuda")
PROOFS = (
    (23037, "draft", "triton", "0.5.10.post1", "0.5.11", "slot0_padding", "pr23037-stale-padding.json"),
    (26244, "verify", "triton", "0.5.12.post1", "0.5.13", "metadata_once", "pr26244-early-metadata.json"),
    (26292, "draft_extend", "triton", "0.5.12.post1", "0.5.13", "slot0_padding", "pr26292-draft-extend.json"),
    (26292, "decode", "triton", "0.5.12.post1", "0.5.13", "slot0_padding", "pr26292-decode.json"),
    (26335, "kv_move", "triton", "0.5.12.post1", "0.5.13", "kv_moves", "pr26335-uninitialised-tail.json"),
    (27338, "draft", "flashinfer", "0.5.12.post1", "0.5.13", "kv_indices", "pr27338-row-too-narrow.json"),
)
TITLES = {
    23037: "EAGLE draft replay leaves stale rows in the padded part of its input buffers",
    26244: "EAGLE v2 verify without a graph builds attention metadata before the batch is padded",
    26292: "four more runners leave stale req_pool_indices in padded rows",
    26335: "the tail of tgt_cache_loc is uninitialised memory",
    27338: "flashinfer's EAGLE draft kv_indices rows lack the topk factor",
}
RUNS = tuple(
    Run(
        id=hashlib.sha256(b"%d" % number).hexdigest()[:32],
        kind=kind,
        started=f"2026-11-{17 + number:02d}T02:00:00.000000+00:00",
        ended=f"2026-11-{17 + number:02d}T03:10:00.000000+00:00",
        command=f"python -m pytest -m nightly -n 4 --ledger nightly.db --seed {number}",
        host="gpu-7",
        facts={"python": "3.12.3", "device": "NVIDIA H200", "torch": "2.11.0+cu130"},
    )
    for number, kind in enumerate(("seeds", "fixes", "nightly", "nightly"), 1)
)


def at(run: Run, second: int = 0) -> str:
    return run.started.replace("02:00:00", f"02:{second // 60 % 60:02d}:{second % 60:02d}")


def checks() -> Iterator[CheckRow]:
    """Every proof's seed on every target in every run; one comes back, one is flaky, one cannot be run."""
    for run, (number, runner, backend, buggy, _, oracle, seed) in itertools.product(RUNS, PROOFS):
        for release, engine in itertools.product(RELEASES, ENGINES):
            fails = RELEASES.index(release) <= RELEASES.index(buggy)
            failed = 3 if fails else 0
            if (number, release, engine) == (26335, "0.5.14", "cuda") and run is RUNS[-1]:
                failed = 3
            if (runner, release, engine) == ("decode", "0.5.15.post1", "cuda"):
                failed = 1 if run is RUNS[2] else 0
                failed = 2 if run is RUNS[-1] else failed
            refused = backend == "flashinfer" and engine == "emulated"
            yield CheckRow(
                run=run.id,
                target=f"{release}/{engine}",
                subject=f"seed:{seed}",
                runner=runner,
                status="UNSUPPORTED" if refused else "FAIL" if failed else "PASS",
                expected="FAIL" if fails else "PASS",
                fingerprint=f"{number:012x}" if failed and not refused else "",
                oracle=oracle if failed and not refused else "",
                where="padded rows of req_pool_indices" if failed and not refused else "",
                failed=0 if refused else failed,
                tried=0 if refused else 3,
                reason="flashinfer has no kernels for CPU tensors" if refused else "",
                seconds=1.5,
                at=at(run, number % 50),
            )


def fixes() -> Iterator[FixRow]:
    for (number, runner, backend, buggy, fixed, oracle, seed), engine in itertools.product(PROOFS, ENGINES):
        stops = (
            ("buggy", buggy, "FAIL"),
            ("fixed", fixed, "PASS"),
            ("without", fixed, "FAIL"),
            ("newest", RELEASES[-1], "PASS"),
        )
        absent = backend == "flashinfer" and engine == "emulated"
        for role, release, expected in (("", "", ""),) if absent else stops:
            yield FixRow(
                run=RUNS[1].id,
                number=number,
                title=TITLES[number],
                runner=runner,
                backend=backend,
                engine=engine,
                role=role,
                target=f"{release}/{engine}" if role else "",
                expected=expected,
                status=expected,
                oracle=oracle,
                seed=seed,
                seconds=6.2 if role else 0.0,
                detail="not on the emulated engine: it has no flashinfer kernels"
                if absent
                else f"{oracle}: 3 of 3 runs",
                at=at(RUNS[1], number % 50),
            )


def findings(count: int) -> tuple[CampaignFinding, ...]:
    """So many kinds of failure, in turn of every shape."""
    stale = stale_found()
    large = large_case((20, 1, 8, 7), (1, 8, 32))
    shapes = (
        ("slot0_padding", "padded rows of {}", stale.cell, stale.case),
        (
            "graph_equals_eager",
            "draft tree of {}",
            Cell(step=1, buffer="tokens", row=0, column=2, got="7", want="8"),
            stale.case,
        ),
        (
            "kv_indices",
            "guard of {}",
            Cell(step=3, buffer="kv_indices guard", row=0, column=37, got="12", want="90"),
            large,
        ),
        (
            "metadata_shape",
            "width of {}",
            Cell(step=1, buffer="kv_indices", row=1, column=37, got="9", want="1"),
            large,
        ),
        ("ended", "raised in {}", None, stale.case),
    )
    names = (
        "seq_lens",
        "req_pool_indices",
        "out_cache_loc",
        "positions",
        "topk_p",
        "topk_index",
        "hidden_states",
        "kv_indptr",
    )
    rows = []
    for number, (name, shape) in zip(range(count), itertools.cycle(itertools.product(names, shapes)), strict=False):
        oracle, where, cell, case = shape
        rows.append(
            replace(
                stale,
                fingerprint=f"{number:04x}c0ffee{number:02x}",
                oracle=oracle,
                where=where.format(name) + ("" if number < len(names) * len(shapes) else f" {number}"),
                failed=0 if number % 11 == 10 else 5 - number % 2,
                cell=cell,
                case=case,
                cases=1 + number % 7,
                excerpts=excerpts(),
                target=f"{RELEASES[number % 7]}/{ENGINES[number % 2]}",
            )
        )
    return tuple(rows)


def excerpts() -> tuple[Excerpt, ...]:
    """A buffer that holds a stale row, and outputs of which one differs."""

    def row(name: str, graph: str, eager: str) -> Excerpt:
        graph_row, other = tuple(graph.split()), tuple(eager.split())
        return Excerpt(step=1, name=name, row=0, column=0, width=len(graph_row), graph=graph_row, eager=other)

    return (
        row("req_pool_indices", "2", "0"),
        row("tokens", "17 4 90", "17 4 12"),
        row("parents", "-1 0 1 4", "-1 0 1 4"),
        row("scores_index", "0 1 4", "0 1 6"),
    )


def history(count: int, rows: list[tuple[str, str, str, str, int, int, str, str, int, float, str]]) -> History:
    """With so many findings, the last of them new, over four nights."""
    rows_of_findings = findings(count)
    by_target: dict[str, list[CampaignFinding]] = {}
    for finding in rows_of_findings:
        by_target.setdefault(finding.target, []).append(finding)
    campaigns = []
    for number, run in enumerate(RUNS[2:]):
        for release, engine in itertools.product(RELEASES, ENGINES):
            target = Target(release, engine)
            here = tuple(
                finding for finding in by_target.get(str(target), []) if number or finding is not rows_of_findings[-1]
            )
            whole = campaign(target, here, len(here))
            started = at(run, 60)[:19] + "+00:00"
            campaigns.append(
                CampaignRow(
                    run=run.id, campaign=replace(whole, started=started, seconds=30.0 + 9 * number), at=at(run, 100)
                )
            )
    return History(
        path=Path(),
        runs=RUNS,
        cases=counts(rows),
        campaigns=tuple(campaigns),
        findings=tuple(
            FindingRow(
                run=row.run,
                target=finding.target,
                fingerprint=finding.fingerprint,
                runner=finding.case.setup.runner,
                backend=finding.case.setup.backend,
                oracle=finding.oracle,
                where=finding.where,
                detail=finding.detail,
                seed_text=dumps(Seed(case=finding.case)),
                failed=finding.failed,
                tried=finding.tried,
                cell=finding.cell,
                at=row.at,
            )
            for row in campaigns
            for finding in row.campaign.findings
        ),
        checks=tuple(checks()),
        fixes=tuple(fixes()),
    )


def case_rows(count: int) -> list[tuple[str, str, str, str, int, int, str, str, int, float, str]]:
    """So many runs of cases, as a ledger gives them: in the order of CASE_COLUMNS."""
    draw = random.Random(5)
    rows = []
    for number in range(count):
        run = RUNS[2 + 2 * number // max(1, count)]
        status = draw.choices(("PASS", "UNKNOWN", "FAIL", "UNSUPPORTED"), (960, 25, 5, 10))[0]
        rows.append(
            (
                run.id,
                f"{draw.choice(RELEASES)}/{draw.choice(ENGINES)}",
                draw.choice(("draft", "draft_extend", "verify", "decode")),
                draw.choice(("triton", "flashinfer")),
                draw.choice((1, 2, 4, 8)),
                draw.randint(2, 6),
                f"{draw.getrandbits(48):012x}",
                status,
                0 if status == "UNSUPPORTED" else draw.randint(1, 9),
                round(draw.lognormvariate(-1.5, 0.6), 3),
                at(run, number * 3600 // max(1, count) % 3600),
            )
        )
    return rows


def counts(rows: list[tuple[str, str, str, str, int, int, str, str, int, float, str]]) -> tuple[CaseCount, ...]:
    kinds: Counter[tuple[str, str, str, str, int, int, str]] = Counter()
    sums: dict[tuple[str, str, str, str, int, int, str], tuple[int, float]] = {}
    for run, target, runner, backend, topk, steps, _, status, replays, seconds, _ in rows:
        kind = (run, target, runner, backend, topk, steps, status)
        kinds[kind] += 1
        before = sums.get(kind, (0, 0.0))
        sums[kind] = (before[0] + replays, before[1] + seconds)
    names = ("run", "target", "runner", "backend", "topk", "num_steps", "status")
    named: dict[str, Any]
    made = []
    for kind, n in kinds.items():
        named = dict(zip(names, kind, strict=True))
        made.append(CaseCount(**named, count=n, replays=sums[kind][0], seconds=sums[kind][1]))
    return tuple(made)
