"""Commands over a cluster without a cluster: their pieces, what may be lost of them, and that the same comes out."""

from __future__ import annotations

import io
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.__main__ import options_of
from fuzz.cluster import fan as fans
from fuzz.cluster.dispatcher import ALONE_S
from fuzz.cluster.fan import Fan
from fuzz.cluster.nodes import Answer, Event, Left, Refused
from fuzz.cluster.piece import KEPT, RESULT, Piece, PieceWork
from fuzz.cluster.schedule import LOSSES_MAX
from fuzz.cluster.slot import Slot
from fuzz.mutation import equivalents
from fuzz.mutation.command import Tools, mutate
from repro.__main__ import main as repro
from repro.cases.case import Target
from repro.cases.codec import read
from repro.commands import fixes
from repro.ledger.read import read as ledger_of
from repro.traces.finding import Cell, Status, Verdict
from repro.upstream.fixes import SEEDS
from repro.upstream.prove import Result
from runners.__main__ import main as runners
from runners.commands import conform
from runners.conformance.report import Release
from runners.conformance.rows import Row, State
from tests.builders.simulated_cluster import Choose, LossyNodes
from tests.fuzz.mutation.test_mutation_trial import FILE, SOURCE, judge, opened

PIECES = [Piece(name=f"piece {number}", arguments=("repro", "check", str(number))) for number in range(12)]


THERE = ["--cluster", "auto", "--slots", "2"]
Main = Callable[[Sequence[str]], int]


def echoed(piece: Piece) -> dict[str, Any]:
    return {"code": 0, "result": json.dumps(piece.name), "kept": {}}


class PieceNodes(LossyNodes[Piece]):
    """answer: what a slot says of a piece."""

    def __init__(
        self, choose: Choose, losses: int = 0, slots: int = 2, answer: Callable[[Piece], dict[str, Any]] = echoed
    ) -> None:
        super().__init__(choose, losses, slots, 3, answer, lambda piece: {"lost": "interrupted"})


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(0, 12), st.integers(0, 20))
def test_no_loss_costs_or_doubles_a_piece_and_all_come_in_their_order(seed: int, count: int, losses: int) -> None:
    nodes = PieceNodes(random.Random(seed).randrange, min(losses, LOSSES_MAX - 1))
    fan = Fan(nodes, print, nodes.clock)
    assert [done.result for done in fan.work(PIECES[:count])] == [piece.name for piece in PIECES[:count]]
    # Further ones, on the nodes that have come.
    assert [done.piece for done in fan.work(PIECES[count:])] == PIECES[count:]
    assert not fan.errors and fan.slots <= 6


class Deadly(PieceNodes):
    """The node goes down whenever the third piece runs."""

    def wait(self, seconds: float) -> Sequence[Event[Piece]]:
        self.now += seconds
        for node, pieces in self.at.items():
            for piece in pieces[:1]:
                if piece == PIECES[2]:
                    del self.at[node]
                    return [Left(node=node, why="node lost")]
                pieces.remove(piece)
                return [Answer(node=node, chunk=piece, message=echoed(piece))]
        return [self._join()]


def test_a_piece_that_takes_its_node_with_it_is_left_out_and_an_error() -> None:
    nodes = Deadly(lambda most: 0, slots=1)
    fan = Fan(nodes, print, nodes.clock)
    done = [result.piece for result in fan.work(PIECES[:5])]
    assert done == [PIECES[0], PIECES[1], PIECES[3], PIECES[4]]
    assert fan.errors == [f"piece 2 given up after {LOSSES_MAX} losses: node lost"]
    assert fan.losses == f"node lost: {LOSSES_MAX}"


def test_what_was_not_written_or_makes_no_sense_is_done_again() -> None:
    full = {"code": 3, "result": "", "complained": "error: no space left"}
    part = {"code": 3, "result": '{"exit_code": null}', "complained": ""}
    answers: Iterator[dict[str, Any]] = iter([full, part, {"code": 0, "result": "{"}, {"say": "stopped"}])
    nodes = PieceNodes(random.Random(1).randrange, answer=lambda piece: next(answers, None) or echoed(piece))
    fan = Fan(nodes, print, nodes.clock)
    assert [done.piece for done in fan.work(PIECES)] == PIECES
    assert fan.losses.count(": 1") == 4 and "error: no space left" in fan.losses and "to its end" in fan.losses


class Unfit(PieceNodes):
    def wait(self, seconds: float) -> Sequence[Event[Piece]]:
        self.now += seconds
        return [Refused(node="abc", why="0.5.13/emulated: it is not installed")]


def test_without_a_usable_node_it_ends_with_the_reason() -> None:
    lines: list[str] = []
    nodes = Unfit(lambda most: 0)
    fan = Fan(nodes, lines.append, nodes.clock)
    assert list(fan.work(PIECES)) == []
    (error,) = fan.errors
    assert "0.5.13/emulated: it is not installed" in error and nodes.now >= ALONE_S and len(lines) == 1


class Impatient(PieceNodes):
    def wait(self, seconds: float) -> Sequence[Event[Piece]]:
        if sum(self.done.values()) == 5:
            raise KeyboardInterrupt
        return super().wait(seconds)


def test_an_interrupt_gives_what_is_there_first() -> None:
    nodes = Impatient(random.Random(3).randrange)
    done: list[Piece] = []
    with pytest.raises(KeyboardInterrupt):
        for result in Fan(nodes, print, nodes.clock).work(PIECES):
            done.append(result.piece)  # noqa: PERF401 (what came before it was raised)
    assert Counter(piece.id for piece in done) == nodes.done and len(done) == 5


def test_a_piece_is_named_by_what_it_asks_for_and_carried_out_in_its_own_folder(tmp_path: Path) -> None:
    piece = Piece(name="p", arguments=("repro", "x", "a.json", "--json", RESULT, "--out", KEPT), files={"a.json": "1"})
    assert Piece.from_json(json.loads(json.dumps(piece.to_json()))) == piece
    other = Piece(name="p", arguments=piece.arguments, files={"a.json": "2"})
    assert piece.id != other.id

    def main(package: str) -> Any:
        def carry_out(arguments: Sequence[str]) -> int:
            verb, file, _, result, _, kept = arguments
            assert (package, verb) == ("repro", "x")
            Path(result).write_text(json.dumps([Path(file).read_text(), [p.name for p in Path(file).parent.iterdir()]]))
            (Path(kept) / "found").mkdir(parents=True)
            (Path(kept) / "found" / "seed.json").write_text("seed")
            print("not sent")
            return 1

        return carry_out

    work = PieceWork(slot=Slot(io.StringIO(), io.StringIO()), main=main, folder=tmp_path / "piece")
    for carried in (other, piece):
        done = work.do(carried.to_json(), None)
    assert json.loads(done["result"]) == ["1", ["a.json"]]
    assert (done["code"], done["kept"]) == (1, {"found/seed.json": "seed"})


def test_an_interrupted_piece_is_lost(tmp_path: Path) -> None:
    slot = Slot(io.StringIO(), io.StringIO())
    slot.stopped = True
    work = PieceWork(slot=slot, main=lambda package: pytest.fail("it has begun"), folder=tmp_path)
    assert work.do(PIECES[0].to_json(), None) == {"id": PIECES[0].id, "lost": "interrupted"}


MAINS: dict[str, Main] = {"repro": repro, "runners": runners}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PieceNodes:
    """Nodes that carry pieces out within this process, and of which some are lost."""
    slot = Slot(io.StringIO(), io.StringIO())
    work = PieceWork(slot=slot, main=MAINS.__getitem__, folder=tmp_path / "slot")
    nodes = PieceNodes(random.Random(5).randrange, LOSSES_MAX - 1, answer=lambda piece: work.do(piece.to_json(), None))

    @contextmanager
    def connected(place: str, job: Mapping[str, Any], slots: int | None) -> Iterator[PieceNodes]:
        assert (place, slots) == ("auto", 2)
        nodes.at, nodes.late = {}, []  # those of an earlier command are not there any more
        yield nodes

    monkeypatch.setattr(fans, "connected", connected)
    monkeypatch.delenv("EAGLEEYE_LEDGER", raising=False)
    return nodes


def seeds_of(folder: Path) -> list[str]:
    """Six cases of the toy, two of them with the same name in different folders."""
    texts = [path.read_text() for path in sorted(SEEDS.glob("*draft*.json")) if read(path).case.setup.topk == 1][:6]
    paths = [folder / str(number // 2) / f"{number % 2}.json" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace('"runner": "draft"', '"runner": "toy"').replace("flashinfer", "triton"))
    return list(map(str, paths))


def said_of(capsys: pytest.CaptureFixture[str], arguments: Sequence[str], main: Main = repro) -> tuple[int, str]:
    code = main(arguments)
    return code, capsys.readouterr().out


@pytest.mark.slow
def test_stored_seeds_come_out_as_on_one_host(
    tmp_path: Path, cluster: PieceNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", *seeds_of(tmp_path), "--target", "stale_padding/toy", "--target", "clean/toy", "--tries", "2"]
    alone = said_of(capsys, [*words, "--ledger", str(tmp_path / "alone.db")])
    assert said_of(capsys, [*words, *THERE, "--ledger", str(tmp_path / "many.db")]) == alone
    assert "in all" in alone[1]
    forms = []
    for more in ([], THERE):
        code, text = said_of(capsys, [*words, "--json", *more])
        form = json.loads(text)
        for replay in form["replays"]:
            replay["seconds"] = sorted(replay["seconds"])
        forms.append((code, form))
    assert forms[0] == forms[1]
    assert max(cluster.done.values()) >= 1 and len(cluster.done) == 2 * 2
    checks = [
        [(row.subject, row.target, row.status, row.failed, row.tried) for row in ledger_of(tmp_path / name).checks]
        for name in ("alone.db", "many.db")
    ]
    assert checks[0] == checks[1] != []


def shown(target: Target) -> Result:
    """The bug of a release that has it, and of one without its fix."""
    cell = Cell(step=1, buffer="x", row=1, column=0, got="2", want="0")
    bad = Verdict(oracle="slot0_padding", status=Status.FAIL, where="rows of x", cell=cell)
    if target.sglang in ("0.5.10.post1", "0.5.12.post1") or target.is_checkout:
        return Result(status=Status.FAIL, verdict=bad, failed=1, tried=1, seconds=0.5, text="it fails")
    return Result(status=Status.PASS, tried=1, text="it passes")


def test_fixes_come_out_as_on_one_host(
    tmp_path: Path, cluster: PieceNodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixes, "answers", lambda options, target, proofs: [shown(target) for _ in proofs])
    monkeypatch.setattr(fixes, "_without", lambda fix, target: Target(f"/without/{fix.number}", target.engine))
    releases = ["--releases", "0.5.10.post1", "0.5.11", "0.5.12.post1", "0.5.13"]
    # On CUDA, one of them is not covered.
    words = ["fixes", "--fix", "23037", "26292", "--engine", "cuda", *releases, "--json"]
    alone = said_of(capsys, [*words, str(tmp_path / "alone.json")])
    assert said_of(capsys, [*words, str(tmp_path / "many.json"), *THERE]) == alone
    assert (tmp_path / "many.json").read_text() == (tmp_path / "alone.json").read_text()
    assert alone[0] == 2 and "not on the cuda engine" in alone[1] and "5 of 6 proofs hold" in alone[1]
    assert len(cluster.done) == 5


def test_conformance_comes_out_as_on_one_host(
    tmp_path: Path, cluster: PieceNodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def release(target: Target, judge: object, overall: object, tell: Callable[[Row], None], **more: object) -> Release:
        state = State.RED if target.sglang == "0.5.13" else State.GREEN
        rows = (Row(runner="draft", backend="triton", algorithm="EAGLE", state=state, passes=("ended",)),)
        tell(rows[0])
        return Release(name=target.sglang, sglang="x", adapted=True, rows=rows, unnamed={"arguments": ("a", "b")})

    monkeypatch.setattr("runners.conformance.conform.release", release)
    monkeypatch.setattr(conform, "install", lambda *arguments, **named: False)
    words = ["conform", "0.5.11", "0.5.13", "0.5.11", "--log", str(tmp_path / "log"), "--json"]
    alone = said_of(capsys, [*words, str(tmp_path / "alone.json")], runners)
    assert said_of(capsys, [*words, str(tmp_path / "many.json"), *THERE], runners) == alone
    assert (tmp_path / "many.json").read_text() == (tmp_path / "alone.json").read_text()
    assert alone[0] == 1 and len(cluster.done) == 2


@pytest.mark.exhaustive
def test_mutants_come_out_as_on_one_host(
    tmp_path: Path, cluster: PieceNodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text(SOURCE)
    tools = Tools(sessions=opened, judge=judge, sources=lambda target: tmp_path, processor_seconds=time.process_time)

    def main(arguments: Sequence[str]) -> int:
        return mutate(options_of(arguments), tools)

    monkeypatch.setitem(MAINS, "fuzz", main)
    key = (FILE, "f", "return a + b", "return a - b")
    monkeypatch.setattr(equivalents, "read", lambda: equivalents.Equivalents(reasons={key: "b is always zero"}))
    words = [
        "mutate",
        "--target",
        "0.5.13/emulated",
        "--backend",
        "fa3",
        "--cases",
        "2",
        "--out",
        str(tmp_path / "out"),
    ]
    records = []
    for more in ([], THERE, [*THERE, "--try-equivalent"]):
        assert main([*words, "--json", str(tmp_path / "out.json"), *more]) == 0
        record = json.loads((tmp_path / "out.json").read_text())
        for name in ("seconds", "cpu_seconds", "median_seconds", "workers"):
            del record[name]
        records.append([{**mutant, "seconds": 0.0, "cases": 0} for mutant in record.pop("mutants")])
        records.append([record])
    assert records[:2] == records[2:4] == records[4:]
    # What each runner runs, all mutants, and once more.
    assert len(cluster.done) == len(record["sites"]) + 2


def test_what_workers_print_stays_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert repro(["run", "a.json", "--target", "clean/toy", "--cluster", "auto", "--log", "x"]) == 3
    assert "--log: not with --cluster" in capsys.readouterr().err
