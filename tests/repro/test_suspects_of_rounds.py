"""Suspects behind what only a whole round can get wrong: collectives, leaks, counts, padding, late reads, inputs of the
next draft, refused batches."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from repro.suspects.ranking import suspects
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.trace import PASSED, End, Termination, Trace
from tests.repro.test_suspects import CASE

WORKER, SCHEDULER = "sglang/srt/speculative/worker.py", "sglang/srt/managers/scheduler.py"
SOURCES = {
    WORKER: """
def sample(logits, group):
    drawn = torch.multinomial(logits, 1)
    if group.size > 1:
        group.broadcast(drawn)
    return drawn


def keep(batch, group):
    batch.topk_p = batch.best
    group.all_gather(batch.topk_p)


def can_run(batch):
    return batch.size < 2
""",
    SCHEDULER: """
class Scheduler:
    def end(self, request):
        self.tree.dec_lock_ref(request.node)
        self.allocator.free(request.slots)

    def count(self, request):
        request.spec_verify_ct += 1

    def post_forward_mlp_sync_batch(self, batch):
        batch.lists = batch.lists[: batch.size]

    def read(self, output):
        return output.cpu()

    def serve(self, output):
        self.read(output)
""",
}
# Functions in the order of their calls, with the lines that ran; of `sample` not the one that sends.
RAN = (
    ((WORKER, "sample"), [3, 4, 6]),
    ((WORKER, "keep"), [10, 11]),
    ((WORKER, "can_run"), [15]),
    ((SCHEDULER, "Scheduler.end"), [4, 5]),
    ((SCHEDULER, "Scheduler.count"), [8]),
    ((SCHEDULER, "Scheduler.post_forward_mlp_sync_batch"), [11]),
    ((SCHEDULER, "Scheduler.read"), [14]),
    ((SCHEDULER, "Scheduler.serve"), [17]),
)


def named(oracle: str, buffer: str, got: str = "", want: str = "", detail: str = "") -> list[str]:
    """The functions that are named for a failure of this oracle."""
    functions = [list(function) for function, _ in RAN]
    rows: list[Sequence[object]] = [[n, n, lines, []] for n, (_, lines) in enumerate(RAN)]
    rows[6] = [6, 6, RAN[6][1], [[7, 17]]]
    text = json.dumps({"functions": functions, "phases": {"0 graph": rows}})
    trace = Trace(ended=End(how=Termination.DONE), seen=(), facts={PASSED: text})
    cell = Cell(step=-1, buffer=buffer, row=0, column=0, got=got, want=want)
    failure = Verdict(oracle=oracle, status=Status.FAIL, where="it", detail=detail, cell=cell)
    return [each.function[1] for each in suspects(CASE, trace, [failure], [failure], SOURCES.__getitem__)]


@pytest.mark.parametrize(
    ("failure", "first"),
    [
        (("collectives", "broadcast", "none", "one"), "sample"),
        (("collectives", "calls", "no call", "all_gather of torch.float32 [n, 8] to all"), "keep"),
        (("leaks", "locked KV slots", "3", "0"), "Scheduler.end"),
        (("leaks", "free KV slots", "srt/managers/scheduler.py count:8", "not free"), "Scheduler.count"),
        (("reported", "spec_verify_ct", "3", "2"), "Scheduler.count"),
        (("padded", "lists", "4", "2"), "Scheduler.post_forward_mlp_sync_batch"),
        (("handed_on", "topk_p", "0.5", "0.25"), "keep"),
        (("fallback", "decode", "eager", "graph"), "can_run"),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, tuple) else value,
)
def test_a_failure_of_a_round_leads_to_who_does_such(failure: tuple[str, str, str, str], first: str) -> None:
    assert named(*failure)[0] == first


def test_a_late_read_leads_to_the_reader_and_its_caller() -> None:
    detail = "An output of draft is read at srt/managers/scheduler.py read:14, when verify had been replayed."
    assert named("lifetime", "output of draft", detail=detail)[:2] == ["Scheduler.read", "Scheduler.serve"]
