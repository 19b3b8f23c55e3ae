"""A move of KV rows writes allocated slots, or reserved slot 0. Every row ends where a plain model of the move puts it,
no other slot changes, the freed slots are those after the kept ones, and each request is as long as its kept rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from oracles.trace_index import Record, Wrong, conclude, equal, first_difference
from repro.cases.case import Case, Request, Setup
from repro.cases.kv_move_model import accepted_nodes, accepted_pairs, branch_pairs, finishes, freed, verified
from repro.cases.layout import Ints, draft_positions
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "kv_moves"
PATHS: dict[Recorded, Callable[[Setup, Ints, Request], Ints]] = {
    Recorded.VERIFY: accepted_pairs,
    Recorded.VERIFY_TAIL: accepted_pairs,
    Recorded.ACCEPT: accepted_pairs,
    Recorded.BRANCHES: branch_pairs,
}
RESERVED = 0
TARGET = "a target is neither allocated nor 0"
ROW = "a row is not where it belongs"
OTHER = "another slot changed"
ORDER = tuple(f"{path}: {what}" for what in (TARGET, ROW, OTHER) for path in PATHS)


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """Each wrong move is a separate failure."""
    record = Record(trace)
    table = record.path(-1, Recorded.INPUT).get("req_to_token")
    wrongs: list[Wrong] = []
    compared = 0
    for number, step in enumerate(case.steps):
        for path, model in PATHS.items():
            seen = record.path(number, path)
            if table is None or not seen:
                continue
            move = MoveCheck(case.setup, table.astype(np.int64), step.requests, number, path, record)
            pairs = np.concatenate([model(case.setup, move.table, request) for request in step.requests])
            compared += len(pairs)
            wrongs += move.targets()
            wrongs += move.rows(pairs)
            wrongs += move.lists()
    wrong_by_path = ([wrong for wrong in wrongs if wrong.where.startswith(f"{path}: ")] for path in PATHS)
    return tuple(
        conclude(ORACLE, some, compared, nothing="no move recorded", order=ORDER)
        for some in filter(None, wrong_by_path)
    ) or (conclude(ORACLE, (), compared, nothing="no move recorded"),)


class MoveCheck:
    """One move of one step."""

    def __init__(
        self, setup: Setup, table: Ints, requests: Sequence[Request], number: int, path: Recorded, record: Record
    ) -> None:
        self.setup, self.table, self.requests, self.number, self.path = setup, table, requests, number, path
        self.before: Mapping[str, Array] = record.path(number, Recorded.BEFORE)
        self.seen: Mapping[str, Array] = record.path(number, path)

    def targets(self) -> Iterator[Wrong]:
        targets = self.seen.get("targets")
        if targets is None:
            return
        room = RUNNER_FACTS[self.setup.runner].room
        spans = [self.table[r.slot, r.seq_len : room(self.setup, r.seq_len)] for r in self.requests]
        lost = np.flatnonzero(~np.isin(targets, np.concatenate([*spans, [RESERVED]])))
        if lost.size:
            first = int(lost[0])
            cell = self._cell("targets", first, str(targets[first]), "an allocated slot or 0")
            detail = f"{lost.size} of {targets.size} targets of the {self.path} move of step {self.number} are"
            yield self._wrong(TARGET, f"{detail} neither allocated nor 0, the first is {targets[first]}.", cell)

    def rows(self, pairs: Ints) -> Iterator[Wrong]:
        """Each target has its source's contents, and nothing else has changed."""
        changed = self.seen.get("kv_slots")
        if changed is None:
            return
        contents = dict(zip(self.before["kv_slots"].tolist(), self.before["kv_rows"], strict=True))
        holds = contents | dict(zip(changed.tolist(), self.seen["kv_rows"], strict=True))
        for target, source in pairs.tolist():
            cell = first_difference(self.number, "kv", holds[target][None], contents[source][None], first_row=target)
            if cell:
                detail = f"After the {self.path} move of step {self.number} slot {target} does not hold what"
                yield self._wrong(ROW, f"{detail} slot {source} held.", cell)
                break
        others = np.setdiff1d(changed, np.append(pairs[:, 0], RESERVED))
        if others.size:
            cell = self._cell("kv", int(others[0]), "changed", "untouched")
            detail = f"The {self.path} move of step {self.number} changed {others.size} slots that are not targets"
            yield self._wrong(OTHER, f"{detail}, the first is {others[0]}.", cell)

    def lists(self) -> Iterator[Wrong]:
        """The lists of slots and lengths that come with a move."""
        for name, want in self._wanted().items():
            got = self.seen.get(name)
            if got is not None and not equal(got, want):
                cell = first_difference(self.number, name, got, want)
                assert cell is not None
                detail = f"The list {name} of the {self.path} move of step {self.number} is {cell.got} at {cell.row}"
                yield self._wrong(f"the list {name} is wrong", f"{detail}, expected {cell.want}.", cell)

    def _wanted(self) -> dict[str, Ints]:
        setup, table = self.setup, self.table
        going_on = [r for r in self.requests if not finishes(r)]
        none = np.empty(0, dtype=np.int64)
        drafts = [table[r.slot, draft_positions(setup, r.seq_len)].reshape(-1) for r in self.requests]
        accepted = [verified(setup, table, r)[: accepted_nodes(setup, r).size] for r in going_on]
        return {
            "freed": np.concatenate([freed(setup, table, r) for r in self.requests]),
            "left": np.concatenate([none, *accepted]),
            "lengths": np.array([r.seq_len + accepted_nodes(setup, r).size for r in self.requests]),
            "draft_slots": np.concatenate(drafts),
        }

    def _wrong(self, what: str, detail: str, cell: Cell) -> Wrong:
        return Wrong(where=f"{self.path}: {what}", detail=detail, cell=cell)

    def _cell(self, buffer: str, row: int, got: str, want: str) -> Cell:
        return Cell(step=self.number, buffer=buffer, row=row, column=0, got=got, want=want)
