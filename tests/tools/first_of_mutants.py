"""The first wrong value is of the buffer that was broken: python -m tests.tools.first_of_mutants --sample N.

A mutant whose statement writes a buffer (copies into it, fills it, stores through its pointer) says itself which one
is wrong first. Such mutants are drawn from what a runner runs, tried on its first cases until an oracle fails, and the
case that killed one is run once more with writes noted, as `repro first` does it. Right: the buffer of the first wrong
value is one of those that the statement writes. Also told: whether the line that it names is the changed one's. What
ends in an exception of sglang's names a line and no buffer, and is counted for itself.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzz.mutation import equivalents
from fuzz.mutation.command import running
from fuzz.mutation.directed import plan
from fuzz.mutation.mutant import Mutant, sampled
from fuzz.mutation.scope import Lines, lines_of, mutants_of, places_of
from fuzz.mutation.trial import KILLED, Clean, Run, Trial
from oracles.catalogue import judge_all
from repro.cases.case import Case, Setup, Target
from repro.cases.codec import digest, read
from repro.shrinking.first_divergence import of_run
from repro.shrinking.origin import Origin, origin
from repro.suspects.ranking import MOST, suspects
from repro.suspects.way import outer
from repro.traces.finding import Status
from repro.traces.trace import Trace
from repro.upstream.fixes import SEEDS
from runners.processes.pool import Pool
from runners.targets.environments import sglang_path

RUNNERS = "draft/triton,draft_extend/triton,multi_layer/triton,verify/triton,decode/triton"
RAISED = "raised"
_AROUND = ("cuda_graph_", "_ptr", "_buf", "_buffer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The result of a killed mutant. buffers: that its statement writes, before or after. named: what the first
    wrong value is of, RAISED if sglang raised first, empty if no oracle named one. at_line: whether the line that
    wrote it or that raised is the statement's. rank: of the changed function among those that are likeliest to hold the
    mistake, 0 if it is not there."""

    mutant: Mutant
    runner: str
    oracle: str
    buffers: frozenset[str]
    named: str
    at_line: bool
    rank: int

    @property
    def right(self) -> bool:
        """Oracles of memory name a buffer in a few words: store outside kv_indices in ..."""
        return bool({_bare(word) for word in re.findall(r"\w+", self.named)} & self.buffers)

    def __str__(self) -> str:
        m = self.mutant
        verdict = "right" if self.right else self.named if self.named == RAISED else "WRONG"
        verdict += ", at the line" * self.at_line + f", function {self.rank or 'not named'}"
        names = f"{self.named or 'nothing'} of {', '.join(sorted(self.buffers))}"
        return f"{verdict} {self.runner} {self.oracle}: {names}: {m.file}:{m.line} {m.old} -> {m.new} ({m.id})"


def written(statement: str) -> frozenset[str]:
    """The buffers that it writes, by their names; empty for what makes, reads or hands on."""
    try:
        tree = ast.parse(statement)
    except SyntaxError:  # the head of a block
        return frozenset()
    return frozenset(name for node in tree.body for name in _written(node) if name)


def _written(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (_name(target) for target in targets if isinstance(target, ast.Subscript))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        if ast.unparse(function) == "tl.store":
            pointers = [pointer for pointer in ast.walk(node.value.args[0]) if isinstance(pointer, ast.Name)]
            yield from (_bare(pointer.id) for pointer in pointers)
        elif isinstance(function, ast.Attribute) and function.attr.endswith("_"):
            yield _name(function.value)


def _name(node: ast.expr) -> str:
    """The name of the tensor that this is a part or a view of."""
    if isinstance(node, ast.Subscript):
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return _bare(key) if isinstance(key, str) else _name(node.value)
    if isinstance(node, ast.Call):
        return _name(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    return _bare(node.attr) if isinstance(node, ast.Attribute) else _bare(node.id) if isinstance(node, ast.Name) else ""


def _bare(name: str) -> str:
    for part in _AROUND:
        name = name.removeprefix(part).removesuffix(part)
    return name


def recorded(trace: Trace) -> frozenset[str]:
    """The buffers that a trace has: what a graph is launched with, and attention's metadata."""
    return frozenset(_bare(array.name) for array in trace.seen if array.path in ("launch", "metadata"))


def drawn(
    runner: str, cases: Sequence[Case], run: Run, root: Path, seed: int
) -> tuple[Mapping[Setup, Lines], list[tuple[Mutant, frozenset[str]]]]:
    """The lines that each setup runs, and in a drawn order the mutants of statements there that write a recorded
    buffer."""
    firsts = list({case.setup: case for case in reversed(cases)}.values())
    traces = {case.setup: run(case, {"trace": ["sglang/srt/", "sglang/kernels/"]}) for case in firsts}
    ran = {setup: lines for setup, trace in traces.items() if (lines := lines_of([trace]))}
    known = frozenset().union(*(recorded(run(case, {})) for case in firsts))
    groups = mutants_of({runner: ran}, lambda file: (root / file).read_text(), places_of(traces.values()))
    kept = equivalents.read()
    mutants = []
    for _, mutant in sampled(groups, None, seed):
        buffers = (written(mutant.old) | written(mutant.new)) & known
        if buffers and not kept.reason(mutant):
            mutants.append((mutant, buffers))
    return ran, mutants


def first_of(
    mutant: Mutant, case: Case, usual: frozenset[tuple[str, str]], run: Run, root: Path
) -> tuple[str, bool, int]:
    """The buffer of the first wrong value of what the unchanged sglang does not do, whether it is of this line, and
    the place of the changed function among the likeliest."""
    trace = run(case, {"edit": mutant.change()})
    verdicts = judge_all(case, trace)
    new = [
        verdict
        for verdict in verdicts
        if verdict.status is Status.FAIL and (verdict.oracle, verdict.where) not in usual
    ]
    likeliest = suspects(case, trace, new, new, lambda file: (root / file).read_text())
    functions = [suspect.function for suspect in likeliest]
    changed = (mutant.file, outer(mutant.function))
    rank = functions.index(changed) + 1 if changed in functions else 0
    if any(verdict.oracle == "ended" for verdict in new) or not trace.ended.how.took_place:
        return RAISED, _is_at(of_run(trace, new).place, mutant), rank
    if first := origin(case, trace, new):
        return first.cell.buffer, _is_of(first, mutant), rank
    cell = of_run(trace, new).cell
    return cell.buffer if cell else "", False, rank


def _is_of(first: Origin, mutant: Mutant) -> bool:
    """True if the writer that it names, or for a dropped write none of this call, is the changed statement."""
    place = first.writer.place if first.writer else first.left_at
    return _is_at(place, mutant) or (first.writer is None and mutant.new == "pass")


def _is_at(place: str, mutant: Mutant) -> bool:
    """True if this line (FILE:LINE in FUNCTION) is one of the statement's."""
    file, _, line = place.partition(" in ")[0].rpartition(":")
    return file == mutant.file and line.isdigit() and mutant.lines[0] <= int(line) <= mutant.lines[1]


def named(runner: str, target: Target, options: argparse.Namespace, count: int) -> Iterator[Named]:
    """Killed mutants of a runner and its backend, until so many of them ended in no exception, or all there are."""
    stored = [read(path).case for path in sorted(SEEDS.glob("*.json"))]
    setups: dict[Setup, None] = {}
    name, _, backend = runner.partition("/")
    every = plan(name, backend, stored)
    for case in every:
        setups.setdefault(case.setup)
    some = list(setups)[: options.setups]
    cases = [case for case in every if case.setup in some]
    by_digest = {digest(case): case for case in cases}
    variables = {"EAGLEEYE_WRITES": "1", "EAGLEEYE_REFERENCE": "1"}
    with Pool(target, timeout_s=options.timeout, variables=variables) as pool:
        run = running(pool)
        ran, mutants = drawn(runner, cases, run, sglang_path(target), options.seed)
        print(f"{runner}: {len(mutants)} mutants of statements that write a recorded buffer", flush=True)
        clean = Clean(judge_all)
        trial = Trial(
            plans={runner: cases},
            ran={runner: ran},
            clean=clean,
            judge=judge_all,
            clock=time.monotonic,
            limit_s=options.limit,
        )
        for mutant, buffers in mutants:
            if count <= 0 or time.monotonic() > options.ends:
                return
            outcome = trial.of(mutant, [runner], run)
            if outcome.state != KILLED:
                print(f"{outcome.state} {mutant.file}:{mutant.line} {mutant.old} -> {mutant.new}", flush=True)
                continue
            case = by_digest[outcome.case]
            usual = clean.failures(case, run) or frozenset()
            buffer, at_line, rank = first_of(mutant, case, usual, run, sglang_path(target))
            count -= buffer != RAISED
            yield Named(
                mutant=mutant,
                runner=runner,
                oracle=outcome.oracle,
                buffers=buffers,
                named=buffer,
                at_line=at_line,
                rank=rank,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="0.5.13/emulated")
    parser.add_argument("--runners", default=RUNNERS, help="each with its backend")
    parser.add_argument(
        "--sample",
        type=int,
        default=40,
        help="killed mutants that do not end in an exception, shared out among the runners",
    )
    parser.add_argument("--setups", type=int, default=5, help="of each runner's plan")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds for one mutant")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all of them")
    parser.add_argument("--timeout", type=float, default=120.0)
    options = parser.parse_args()
    options.ends = time.monotonic() + 60 * options.minutes
    release, _, engine = options.target.rpartition("/")
    runners = options.runners.split(",")
    done: list[Named] = []
    for runner in runners:
        for row in named(runner, Target(release, engine), options, -(-options.sample // len(runners))):
            done.append(row)
            print(row, flush=True)
    silent, raised = ([row for row in done if (row.named == RAISED) is which] for which in (False, True))
    right = [row for row in silent if row.right]
    print(
        f"{len(right)} of {len(silent)} killed mutants are named by the buffer that they write, "
        f"{sum(row.at_line for row in right)} of these with the changed line as its writer; {len(raised)} more end in "
        f"an exception, {sum(row.at_line for row in raised)} of them at the changed line; the changed function is "
        f"named first of {sum(result.rank == 1 for result in done)}, among the first {MOST} of "
        f"{sum(result.rank > 0 for result in done)}"
    )
    return 0 if silent and len(right) >= 0.9 * len(silent) else 1


if __name__ == "__main__":
    sys.exit(main())
