"""A campaign over a cluster without a cluster: whatever is lost, each case counts once and each failure is settled
once; and what goes wrong is an error, never a finding."""

from __future__ import annotations

import dataclasses
import random
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz import __main__ as fuzz
from fuzz.campaign import OVERTIME_S
from fuzz.cluster.chunk import Chunk, Cutter, settling
from fuzz.cluster.dispatcher import ALONE_S
from fuzz.cluster.fan import connected, job_on
from fuzz.cluster.nodes import Answer, Event, Left, Refused
from fuzz.cluster.schedule import LOSSES_MAX, LOSSES_SUSPECT, Schedule
from fuzz.exits import exit_code
from fuzz.stats import CampaignStats
from repro.cases.codec import digest
from repro.commands.cli import BadInput, ended
from repro.ledger.rows import CaseRow
from tests.builders.simulated_cluster import (
    A_ROUND,
    FAILING_ROUNDS,
    PLAN,
    SimulatedNodes,
    Told,
    counted,
    expected,
    first_case,
    interrupted,
    result,
    run,
)


@pytest.fixture(scope="module", autouse=True)
def drawn() -> None:
    """Hypothesis draws these cases, and its tests must not do so within a test of its own."""
    for number in range(0, 20, FAILING_ROUNDS):
        first_case(number)


@dataclasses.dataclass(frozen=True)
class Piece:
    id: str


@pytest.mark.slow
@given(st.randoms(use_true_random=False), st.integers(1, 30), st.integers(0, 25))
def test_every_chunk_is_merged_once_or_given_up(choices: random.Random, count: int, losses: int) -> None:
    fresh = iter([Piece(str(number)) for number in range(count)])
    schedule: Schedule[Piece] = Schedule(lambda: next(fresh, None))
    at: dict[str, list[Piece]] = {}
    merged: Counter[str] = Counter()
    late: list[tuple[str, Piece]] = []
    names = 0
    for _ in range(10_000):
        while sent := schedule.next():
            at[sent[0]].append(sent[1])
        assert all(len(pieces) <= 4 for pieces in at.values())
        if at and schedule.idle and not late:
            break
        if len(at) < 3 and (not at or choices.random() < 0.3):
            names += 1
            at[str(names)] = []
            schedule.join(str(names), 2)
            continue
        node = choices.choice(list(at))
        kind = choices.random()
        if losses and kind < 0.3:
            losses -= 1
            gone = at.pop(node)
            schedule.leave(node, "node lost")
            late += [(node, piece) for piece in gone if choices.random() < 0.2]
        elif losses and kind < 0.5 and at[node]:
            losses -= 1
            schedule.lose(node, at[node].pop(0), "SIGKILL")
        elif late and kind < 0.6:
            node, piece = late.pop()
            merged[piece.id] += schedule.finish(node, piece)
        elif at[node]:
            piece = at[node].pop(choices.randrange(min(2, len(at[node]))))
            merged[piece.id] += schedule.finish(node, piece)
    given_up = {work.chunk.id for work in schedule.given_up}
    assert set(merged.values()) <= {0, 1}
    assert {name for name, times in merged.items() if times} | given_up == {str(number) for number in range(count)}
    assert not {name for name, times in merged.items() if times} & given_up
    assert all(len(work.losses) == LOSSES_MAX for work in schedule.given_up)


def test_only_what_had_begun_counts_as_lost() -> None:
    fresh = iter([Piece("a"), Piece("b"), Piece("c")])
    schedule: Schedule[Piece] = Schedule(lambda: next(fresh, None))
    for number in range(3 * LOSSES_MAX):
        node = str(number)
        schedule.join(node, 1)
        first, second = schedule.next(), schedule.next()
        if not (first and second) or schedule.next():
            break
        schedule.leave(node, "lost")
    # Each time one was running and one waited behind it.
    assert sum(schedule.lost.values()) == number
    assert all(len(work.losses) == LOSSES_MAX for work in schedule.given_up)


def test_what_was_lost_twice_waits_until_all_others_are_done() -> None:
    fresh = iter([Piece(name) for name in "abcd"])
    schedule: Schedule[Piece] = Schedule(lambda: next(fresh, None))
    schedule.join("n", 1)
    order = []
    while sent := schedule.next():
        piece = sent[1]
        order.append(piece.id)
        if piece.id == "a" and order.count("a") <= LOSSES_SUSPECT:
            schedule.lose("n", piece, "SIGKILL")
        else:
            assert schedule.finish("n", piece)
    assert order == ["a", "a", "b", "c", "d", "a"] and schedule.idle and not schedule.given_up


@pytest.mark.slow
def test_chunks_are_disjoint_named_by_their_plan_and_the_whole() -> None:
    cutter = Cutter(PLAN, A_ROUND, 40, seconds=4)
    chunks = []
    while chunk := cutter.next():
        chunks.append(chunk)
        cutter.ran(chunk, len(list(chunk.rounds())), seconds=float(chunk.last - chunk.first))
    assert [number for chunk in chunks for number in range(chunk.first, chunk.last)] == list(range(14))
    assert chunks[0].last == 1 and max(chunk.last - chunk.first for chunk in chunks) == 4
    assert len({chunk.id for chunk in chunks}) == len(chunks)
    assert [Chunk.from_json(chunk.to_json()).id for chunk in chunks] == [chunk.id for chunk in chunks]
    cases = [digest(case) for chunk in chunks for case in chunk.rounds()]
    assert len(cases) == 40


def test_a_failure_is_settled_behind_what_its_session_had_run() -> None:
    chunk = Chunk(plan=PLAN, cases_per_setup=5, first=1, last=4)
    cases = list(chunk.rounds())
    failing = cases[7]
    before = settling(chunk, "x", failing).up_to_the_case()
    assert before == cases[5:8] and len({case.setup for case in before}) == 1
    with pytest.raises(ValueError, match="no case"):
        dataclasses.replace(chunk, settle="x", case="other").up_to_the_case()


@pytest.mark.slow
@given(st.randoms(use_true_random=False), st.integers(1, 60), st.integers(0, 20))
def test_no_loss_costs_or_doubles_a_case_or_a_finding(choices: random.Random, limit: int, losses: int) -> None:
    # No chunk is lost so often that it is given up: that is another test.
    nodes = SimulatedNodes(choices.randrange, min(losses, LOSSES_MAX - 1))
    campaign, ledger = run(nodes, limit)
    cases, failures = expected(limit)
    assert (campaign.stopped, campaign.error, dict(campaign.errors)) == ("cases", "", {})
    assert campaign.cases == len(cases) and sorted(ledger.rows) == sorted(cases)
    assert counted(campaign) == dict(failures)
    for finding in campaign.findings:
        assert (finding.failed, finding.tried, finding.seed) == (5, 5, f"{finding.fingerprint}.json")
    # Kept when it was seen, and when it was settled: by one chunk.
    assert Counter(ledger.kept) == Counter({(name, failed): 1 for name in failures for failed in (0, 5)})


@pytest.mark.exhaustive
@given(st.randoms(use_true_random=False), st.integers(20, 60))
def test_many_losses_cost_at_most_what_is_given_up(choices: random.Random, losses: int) -> None:
    nodes = SimulatedNodes(choices.randrange, losses)
    campaign, ledger = run(nodes, 30)
    cases, failures = expected(30)
    assert len(ledger.rows) == len(set(ledger.rows)) == campaign.cases
    assert counted(campaign).keys() <= failures.keys()
    if campaign.errors:
        assert all("given up after" in why for why in campaign.errors)
        assert exit_code([campaign]) == 3
    else:
        assert sorted(ledger.rows) == sorted(cases) and counted(campaign) == dict(failures)


class Deadly(SimulatedNodes):
    """The node goes down whenever this round runs."""

    deadly = 4

    def wait(self, seconds: float) -> Sequence[Event[Chunk]]:
        self.now += seconds
        for node, chunks in self.at.items():
            for chunk in chunks[:1]:
                if self.deadly in range(chunk.first, chunk.last) and not chunk.settle:
                    del self.at[node]
                    return [Left(node=node, why="node lost")]
                chunks.remove(chunk)
                return [Answer(node=node, chunk=chunk, message=result(chunk))]
        return [self._join()]


def test_a_chunk_that_takes_its_node_with_it_is_an_error_and_no_finding() -> None:
    campaign, ledger = run(Deadly(lambda most: 0, 0, slots=1), 30, seconds=1)
    cases, failures = expected(30)
    assert sorted(ledger.rows) == sorted(name for name in cases if not name.startswith("4."))
    assert counted(campaign) == dict(failures)
    assert list(campaign.errors) == [f"round 4 given up after {LOSSES_MAX} losses: node lost"]
    assert exit_code([campaign]) == 3


class Breaking(SimulatedNodes):
    """Slots that die at once, until there is no time left."""

    def wait(self, seconds: float) -> Sequence[Event[Chunk]]:
        events = super().wait(seconds)
        return [self._break(event) if isinstance(event, Answer) else event for event in events]

    def _break(self, event: Answer[Chunk]) -> Answer[Chunk]:
        if self.now < 30:
            return dataclasses.replace(event, message={"lost": "exit 1: no such module"})
        nothing = CampaignStats(event.chunk.plan, self.clock).campaign("time")
        return dataclasses.replace(event, message={"campaign": nothing.to_json(), "rows": [], "seconds": 0.0})


def test_what_was_lost_until_time_was_up_is_an_error() -> None:
    nodes = Breaking(random.Random(3).randrange, 0)
    campaign, ledger = run(nodes, None, dataclasses.replace(PLAN, seconds=30), seconds=6)
    assert ledger.said == ["lost, and done again: exit 1: no such module"]
    reasons = {text.partition(" lost and not done ")[2] for text in campaign.errors}
    assert reasons == {"before time was up: exit 1: no such module"}
    assert (campaign.stopped, campaign.cases, exit_code([campaign])) == ("time", 0, 3)


@pytest.mark.slow
def test_time_ends_the_campaign_and_what_was_sent_still_counts() -> None:
    nodes = SimulatedNodes(random.Random(3).randrange, 0)
    campaign, ledger = run(nodes, None, dataclasses.replace(PLAN, seconds=40), seconds=6)
    assert campaign.stopped == "time" and campaign.cases == len(ledger.rows) == len(set(ledger.rows)) > 20
    assert all(finding.failed == 5 for finding in campaign.findings)


class Settling(SimulatedNodes):
    """A finding is never settled."""

    def wait(self, seconds: float) -> Sequence[Event[Chunk]]:
        events = super().wait(seconds)
        answers = [event for event in events if isinstance(event, Answer) and event.chunk.settle and not self.stopped]
        for answer in answers:
            self.at[answer.node].append(answer.chunk)
        return [event for event in events if event not in answers]


def test_a_finding_that_is_not_settled_in_time_is_left() -> None:
    nodes = Settling(random.Random(3).randrange, 0)
    campaign, _ = run(nodes, None, dataclasses.replace(PLAN, seconds=40), seconds=6)
    assert campaign.stopped == "time" and nodes.stopped and campaign.findings
    assert campaign.seconds < 40 + OVERTIME_S + ALONE_S


class Starting(SimulatedNodes):
    """Workers need a while until anything comes of what they were sent."""

    def wait(self, seconds: float) -> Sequence[Event[Chunk]]:
        if self.at and self.now < 60:
            self.now += seconds
            return []
        return super().wait(seconds)


def test_what_workers_need_to_start_is_none_of_the_time() -> None:
    nodes = Starting(random.Random(3).randrange, 0)
    campaign, _ = run(nodes, None, dataclasses.replace(PLAN, seconds=10), seconds=6)
    assert (campaign.stopped, campaign.cases > 0, campaign.seconds > 69) == ("time", True, True)


def test_the_first_confirmed_finding_stops_all() -> None:
    nodes = SimulatedNodes(random.Random(3).randrange, 0)
    campaign, _ = run(nodes, None, dataclasses.replace(PLAN, stop_at_first=True))
    assert campaign.stopped == "first finding" and nodes.stopped
    assert any(finding.failed == 5 for finding in campaign.findings)


class Impatient(SimulatedNodes):
    def wait(self, seconds: float) -> Sequence[Event[Chunk]]:
        if sum(self.done.values()) == 3 and not self.stopped:
            raise KeyboardInterrupt
        return super().wait(seconds)


def test_an_interrupt_stops_all_and_keeps_what_is_there() -> None:
    nodes = Impatient(random.Random(3).randrange, 0)
    campaign, ledger = run(nodes, None)
    assert (campaign.stopped, campaign.error) == ("interrupted", "")
    assert campaign.cases == len(ledger.rows) > 0 and nodes.stopped


def test_an_interrupt_while_a_chunk_is_counted_counts_it_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def note(self: Told, row: CaseRow) -> None:
        self.rows.append(row.digest)
        if len(self.rows) == 1:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Told, "note", note)
    nodes = SimulatedNodes(random.Random(3).randrange, 0)

    def work() -> int:
        campaign, ledger = run(nodes, None)
        return int(campaign.stopped == "interrupted" and nodes.stopped and campaign.cases == len(ledger.rows) > 1)

    assert ended(work) == 1


class Unfit(SimulatedNodes):
    def wait(self, seconds: float) -> Sequence[Event[Chunk]]:
        self.now += seconds
        return [Refused(node="abc", why="its eagleeye or Hypothesis version differs from the driver's")]


def test_a_cluster_without_a_usable_node_is_an_error_with_its_reason() -> None:
    nodes = Unfit(lambda most: 0, 0)
    campaign, ledger = run(nodes, 10)
    assert campaign.stopped == "error" and "its eagleeye or Hypothesis version differs" in campaign.error
    assert nodes.now >= ALONE_S and len(ledger.said) == 1
    assert exit_code([campaign]) == 3


class Garbled(SimulatedNodes):
    """The first answers make no sense; one slot is interrupted by somebody else."""

    wrong = 2

    def wait(self, seconds: float) -> Sequence[Event[Chunk]]:
        return [self._garbled(event) for event in super().wait(seconds)]

    def _garbled(self, event: Event[Chunk]) -> Event[Chunk]:
        if not isinstance(event, Answer) or not self.wrong:
            return event
        self.wrong -= 1
        odd = {"campaign": {"cases": "many"}} if self.wrong else interrupted(event.chunk)
        return dataclasses.replace(event, message=odd)


def test_what_makes_no_sense_is_done_again() -> None:
    campaign, ledger = run(Garbled(random.Random(1).randrange, 0), 30)
    cases, failures = expected(30)
    assert sorted(ledger.rows) == sorted(cases) and counted(campaign) == dict(failures)
    assert "its result makes no sense" in campaign.facts["chunks lost and done again"]


class NotAgain(SimulatedNodes):
    """Nodes on which a failure to be settled is not seen again."""

    def wait(self, seconds: float) -> Sequence[Event[Chunk]]:
        return [self._not_again(event) for event in super().wait(seconds)]

    def _not_again(self, event: Event[Chunk]) -> Event[Chunk]:
        if not isinstance(event, Answer) or not event.chunk.settle:
            return event
        message = dict(event.message)
        message["campaign"] = {**message["campaign"], "findings": []}
        return dataclasses.replace(event, message=message)


def test_a_failure_that_does_not_come_back_is_tried_from_other_cases_and_told_as_such() -> None:
    nodes = NotAgain(random.Random(2).randrange, 0, slots=1, most=1)
    campaign, _ = run(nodes, 90, seconds=1)
    assert counted(campaign) == dict(expected(90)[1])
    assert all((finding.failed, finding.tried) == (0, 1) and finding.seed for finding in campaign.findings)
    # Three rounds each show a failure, and each is tried.
    assert sum(nodes.done.values()) == 30 + sum(min(3, count) for count in expected(90)[1].values())


def test_without_ray_one_line_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fuzz.cluster.on_ray", raising=False)
    arguments = ["run", "--target", "clean/toy", "--cases", "16", "--cluster", "local:2", "--out", str(tmp_path)]
    assert fuzz.main(arguments) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --cluster needs Ray: pip install 'eagleeye[ray]'")


@pytest.mark.parametrize("place", ["local:0", "somewhere", "local:", "host:"])
def test_what_is_no_cluster_is_refused(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["run", "--target", "clean/toy", "--cluster", place]) == 3
    assert "is neither auto nor HOST:PORT nor local:N" in capsys.readouterr().err


def test_a_cluster_on_this_machine_has_no_gpus() -> None:
    with pytest.raises(BadInput, match="--cluster local:2 has no GPUs: start Ray on this host"):
        connected("local:2", job_on({"cuda"}), None)


@pytest.mark.parametrize("more", [["--workers", "2"], ["--shard", "1/2"], ["--keep-traces"]])
def test_what_a_cluster_has_no_part_in_is_refused(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["run", "--target", "clean/toy", "--cluster", "local:2", *more]) == 3
    assert f"{more[0]}: not with --cluster" in capsys.readouterr().err
