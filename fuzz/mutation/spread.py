"""python -m fuzz mutate --cluster: first what each runner runs, then the mutants, a few at a time, as pieces that nodes
carry out."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from fuzz.cluster.fan import Fan
from fuzz.cluster.piece import KEPT, RESULT, Piece
from fuzz.mutation.scope import Ran
from fuzz.mutation.traced import Drawn, Plans, Traced, from_json, part
from fuzz.mutation.trial import Outcome
from repro.cases.case import Target

# A worker is opened for each piece; and what is lost with a node is done again.
MUTANTS_A_PIECE = 6
PART = "part.json"


def traced_there(fan: Fan, options: argparse.Namespace, target: Target, plans: Plans) -> dict[str, Traced]:
    """The lines that each of these runners runs, by its name with its backend."""
    work = {}
    for name in plans:
        runner, _, backend = name.partition("/")
        words = [*_words(options, target), "--runner", runner, "--backend", backend, "--trace", RESULT]
        work[Piece(name=f"what {name} runs on {target}", arguments=tuple(words))] = name
    return {name: from_json(done.result, plans[name]) for done in fan.work(work) for name in [work[done.piece]]}


def tried_there(
    fan: Fan, options: argparse.Namespace, target: Target, plans: Plans, ran: Ran, drawn: Sequence[Drawn]
) -> Iterator[tuple[Outcome, float]]:
    """The outcome of each mutant, and the processor seconds of its share."""
    # Of one runner together: what the unchanged sglang does in its cases is found out once a piece.
    ordered = sorted(drawn, key=lambda entry: list(plans).index(entry.runners[0]))
    parts = [ordered[start : start + MUTANTS_A_PIECE] for start in range(0, len(ordered), MUTANTS_A_PIECE)]
    work = {_piece(options, target, drawn_part, part(drawn_part, plans, ran)): drawn_part for drawn_part in parts}
    for done in fan.work(work):
        forms = {form["id"]: form for form in done.result["mutants"]}
        for mutant in (entry.mutant for entry in work[done.piece]):
            yield Outcome.from_json(forms[mutant.id], mutant), done.result["cpu_seconds"] / len(forms)


def _piece(options: argparse.Namespace, target: Target, drawn: Sequence[Drawn], text: str) -> Piece:
    words = [*_words(options, target), "--part", PART, "--json", RESULT, "--limit", str(options.limit)]
    words += ["--runner", options.runner] if options.runner else []
    words += ["--backend", options.backend] if options.backend else []
    words += ["--try-equivalent"] if options.try_equivalent else []
    names = ", ".join(entry.mutant.id for entry in drawn)
    return Piece(name=f"{names} on {target}", arguments=tuple(words), files={PART: text})


def _words(options: argparse.Namespace, target: Target) -> list[str]:
    words = [
        "--cases",
        str(options.cases),
        "--timeout",
        str(options.timeout),
        "--workers",
        "1",
        "--out",
        KEPT,
        *(word for option in options.having for word in ("--with", option)),
    ]
    return ["fuzz", "mutate", "--target", str(target), *words]
