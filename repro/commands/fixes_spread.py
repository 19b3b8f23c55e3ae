"""python -m repro fixes --cluster: the proofs of each fix on each runner, as pieces that nodes carry out."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from fuzz.cluster.fan import Done, fan_out
from fuzz.cluster.piece import KEPT, RESULT, Piece
from repro.cases.atomic_file import write_text
from repro.cases.case import Target
from repro.cases.releases import release_order
from repro.traces.exit_codes import ExitCode
from repro.upstream import prove
from repro.upstream.prove import ProofRow, There
from runners.targets.environments import lacks


def spread(
    options: argparse.Namespace, rows: Sequence[ProofRow], newest: str, there: There, on_row: Callable[[ProofRow], None]
) -> tuple[list[ProofRow], list[ExitCode]]:
    """The rows with their stops, in order, as far as they could be made; and the exit codes of what could not. on_row
    is given each of them."""
    rows = [prove.with_what_is_there(row, newest, there) for row in rows]
    groups = [list(group) for _, group in groupby(rows, key=lambda row: (row.fix.number, row.proof.runner))]
    releases = sorted(_used(rows, newest, there), key=release_order)
    work = {_piece(options, group[0], releases): group for group in groups if not all(row.reason for row in group)}
    made: list[ProofRow] = []

    def make(more: Iterable[ProofRow]) -> None:
        for row in more:
            made.append(row)
            on_row(row)

    if not work:
        make(rows)
        return made, []
    # What is not here is missing there, too, or would be on one host.
    targets = [target for release in releases if not lacks(target := Target(release, options.engine))]
    with fan_out(options.cluster, options.slots, targets) as fan:
        waiting = iter(groups)
        for done in fan.work(work):
            # What is not covered stands where it would stand on one host; what was given up is left out.
            for group in waiting:
                if group is work[done.piece]:
                    break
                make(row for row in group if row.reason)
            _keep(options, done)
            make(_answered(row, done.result["rows"], newest, there) for row in work[done.piece])
        make(row for group in waiting for row in group if row.reason)
        return made, [ExitCode.ERROR] * bool(fan.errors)


def _used(rows: Iterable[ProofRow], newest: str, there: There) -> set[str]:
    """The releases that proofs are made of."""
    return {stop.release for row in rows if not row.reason for stop in prove.checkpoints(row.fix, newest, there)}


def _piece(options: argparse.Namespace, row: ProofRow, releases: Sequence[str]) -> Piece:
    words = ["repro", "fixes", "--fix", str(row.fix.number), "--runner", row.proof.runner, "--engine", row.engine]
    words += ["--tries", str(options.tries), "--timeout", str(options.timeout), "--json", RESULT]
    words += ["--releases", *releases]
    if options.fresh:
        words += ["--fresh", "--seconds", str(options.seconds), "--seed", str(options.seed), "--out", KEPT]
    return Piece(name=f"#{row.fix.number} on {row.proof.runner}", arguments=tuple(words))


def _answered(row: ProofRow, forms: Iterable[dict[str, Any]], newest: str, there: There) -> ProofRow:
    """The row with what the node says of it."""
    of_proof = next(form for form in forms if (form["backend"], form["seed"]) == (row.proof.backend, row.proof.seed))
    return prove.with_stops_from_json(row, of_proof, newest, there)


def _keep(options: argparse.Namespace, done: Done) -> None:
    """Seeds that a search has kept, where they would be on one host."""
    for name, text in done.kept.items():
        path = options.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
