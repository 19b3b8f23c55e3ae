"""Proofs of fixes: the answer of each release, and the result of a search for the failure."""

from __future__ import annotations

import dataclasses
import io
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from fuzz.search import search
from fuzz.triage import Hooks
from oracles.catalogue import judge_all, overall
from reports.fixes import lines, show_fixes
from repro.cases.case import Target
from repro.cases.codec import read
from repro.shrinking.replay import Outcome
from repro.shrinking.store import keep
from repro.traces.finding import Status, Verdict
from repro.traces.trace import End, Termination, Trace
from repro.upstream.fixes import SEEDS, Fix, Proof
from repro.upstream.prove import (
    ProofRow,
    Result,
    TargetUnavailable,
    answer_of,
    answer_of_search,
    exit_code,
    first_failures,
    prove,
    to_json,
    totals,
)
from runners.processes.pool import Pool

pytestmark = pytest.mark.slow

A = Proof(runner="draft", seed="pr1-a.json", oracle="staged")
B = Proof(runner="draft", seed="pr1-b.json", oracle="bucket")
FIX = Fix(number=1, title="one", buggy="0.1", fixed="0.2", proofs=(A, B), removals=())
SECOND = dataclasses.replace(FIX, number=2)


def failing(oracle: str, where: str = "here", seconds: float = 1.0) -> Result:
    verdict = Verdict(oracle=oracle, status=Status.FAIL, where=where)
    return Result(status=Status.FAIL, verdict=verdict, failed=1, tried=1, seconds=seconds, text=f"FAIL {oracle}")


PASSED = Result(status=Status.PASS, tried=1, text="PASS")


class World:
    """Targets that answer as planned; what was asked is remembered."""

    def __init__(self, **planned: Result) -> None:
        self.planned = planned
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.told: list[ProofRow] = []

    def ask(self, target: Target, proofs: Sequence[Proof]) -> list[Result]:
        self.asked.append((str(target), tuple(proof.seed for proof in proofs)))
        here = {"0.1": "buggy", "0.2": "fixed", "0.9": "newest"}.get(target.sglang, "without")
        usual = {"buggy": True, "without": True}
        return [
            self.planned.get(f"{here}_{proof.oracle}", failing(proof.oracle) if usual.get(here) else PASSED)
            for proof in proofs
        ]

    def without(self, fix: Fix, target: Target) -> Target:
        if "no_overlay" in self.planned:
            raise TargetUnavailable("no such place")
        return Target(f"/overlays/{target.sglang}-{fix.number}", target.engine)

    def prove(
        self, rows: Sequence[ProofRow], *, exact: bool = True, newest: str = "0.9", lacking: tuple[str, ...] = ()
    ) -> list[ProofRow]:
        def there(release: str) -> bool:
            return release not in lacking

        return prove(rows, newest, self.ask, self.without, self.told.append, exact=exact, there=there)


def rows(*fixes: Fix, reason: str = "") -> list[ProofRow]:
    return [
        ProofRow(fix=fix, proof=proof, engine="emulated", reason=reason)
        for fix in fixes or (FIX,)
        for proof in fix.proofs
    ]


def problems(row: ProofRow) -> dict[str, str]:
    return {stop.checkpoint.name: stop.problem for stop in row.stops if stop.problem}


def test_a_fix_holds_and_each_target_is_asked_once() -> None:
    world = World()
    done = world.prove(rows(FIX, SECOND))
    assert all(row.holds for row in done)
    assert world.told == done
    assert exit_code(done) == 0
    both, each = ("pr1-a.json", "pr1-b.json"), ["0.1/emulated", "0.2/emulated", "/overlays/0.2-1@emulated"]
    each += ["0.9/emulated", "/overlays/0.2-2@emulated"]
    assert world.asked == [(target, both) for target in each]
    assert [stop.checkpoint.name for stop in done[0].stops] == ["buggy", "fixed", "without", "newest"]


@pytest.mark.parametrize(
    ("newest", "lacking", "visited", "missing"),
    [
        ("0.9", ("0.1",), ["fixed 0.2", "without 0.2 without #1", "newest 0.9"], ("buggy 0.1",)),
        ("0.9", ("0.2",), ["buggy 0.1", "without 0.9 without #1", "newest 0.9"], ("fixed 0.2",)),
        ("0.9", ("0.1", "0.2"), ["without 0.9 without #1", "newest 0.9"], ("buggy 0.1", "fixed 0.2")),
        ("0.2", (), ["buggy 0.1", "fixed 0.2", "without 0.2 without #1", "newest 0.2"], ()),
    ],
)
def test_a_proof_is_made_of_the_releases_that_are_there(
    newest: str, lacking: tuple[str, ...], visited: list[str], missing: tuple[str, ...]
) -> None:
    world = World()
    (done, _) = world.prove(rows(), newest=newest, lacking=lacking)
    assert [f"{stop.checkpoint.name} {stop.checkpoint.sglang}" for stop in done.stops] == visited
    assert (done.holds, done.missing) == (True, missing), problems(done)
    assert len({target for target, _ in world.asked}) == len(world.asked)
    assert totals(world.told) == "2 of 2 proofs hold"
    texts = lines(done)
    assert any("not installed here: " + ", ".join(missing) in text for text in texts) is bool(missing)


@pytest.mark.parametrize("newest", ["0.1", "0.0"])
def test_what_no_release_here_can_show_is_not_possible_and_no_failure(newest: str) -> None:
    world = World()
    done = world.prove(rows(), newest=newest, lacking=tuple({"0.1", "0.2"} - {newest}))
    assert world.asked == [] and exit_code(done) == 2
    assert totals(done).startswith("0 of 2 proofs hold, 2 not possible here: not installed: ")
    assert "not possible here" in lines(done[0])[0]
    assert to_json(done, fresh=False, whole=True)["exit_code"] == 2


@pytest.mark.parametrize(
    ("planned", "reasons"),
    [
        ({"buggy_staged": PASSED}, {"buggy": "staged does not fail: PASS"}),
        # Another oracle's failure shows another bug, or nothing of this one.
        (
            {"buggy_staged": Result(status=Status.FAIL, text="FAIL ended")},
            {"buggy": "staged does not fail: FAIL ended"},
        ),
        ({"fixed_staged": failing("staged")}, {"fixed": "does not pass: FAIL staged"}),
        ({"newest_staged": Result(status=Status.UNKNOWN, text="a tie")}, {"newest": "does not pass: a tie"}),
        ({"without_staged": PASSED}, {"without": "staged does not fail: PASS"}),
        (
            {"without_staged": failing("staged", "there")},
            {"without": "fails in another way: at there, not at here"},
        ),
    ],
)
def test_a_fix_does_not_hold(planned: dict[str, Result], reasons: dict[str, str]) -> None:
    done = World(**planned).prove(rows())
    assert problems(done[0]) == reasons
    assert done[1].holds
    assert (done[0].exit_code, exit_code(done)) == (1, 1)


def test_another_case_need_not_show_the_same_buffers() -> None:
    assert World(without_staged=failing("staged", "there")).prove(rows(), exact=False)[0].holds


def test_trouble_of_ours_is_no_answer() -> None:
    done = World(newest_bucket=Result(status=None, text="not installed")).prove(rows())
    assert (done[0].holds, problems(done[1])) == (True, {"newest": "not installed"})
    assert (done[1].exit_code, exit_code(done)) == (3, 3)
    unmade = World(no_overlay=PASSED).prove(rows())
    assert problems(unmade[0]) == {"without": "no such place"}
    assert exit_code(unmade) == 3


def test_what_is_not_covered_is_not_asked() -> None:
    world = World()
    done = world.prove([*rows(SECOND, reason="no runner"), *rows()])
    assert exit_code(done) == 2
    assert [target for target, _ in world.asked].count("/overlays/0.2-2@emulated") == 0
    assert [row.holds for row in done] == [False, False, True, True]
    # What does not hold says more than what is not covered.
    assert exit_code([*World(buggy_staged=PASSED).prove(rows()), *rows(reason="no runner")]) == 1


def test_the_rows_as_lines_table_and_json() -> None:
    done = World(newest_bucket=failing("bucket")).prove([*rows(), *rows(SECOND, reason="no runner")])
    texts = [text for row in done for text in lines(row)]
    assert texts == [
        "#1 on draft, triton, emulated: HOLDS: 0.1 FAIL, 0.2 PASS, 0.2 without #1 FAIL, 0.9 PASS (staged)",
        "#1 on draft, triton, emulated: DOES NOT HOLD: 0.1 FAIL, 0.2 PASS, 0.2 without #1 FAIL, 0.9 FAIL (bucket)",
        "  newest 0.9: does not pass: FAIL bucket",
        "#2 on draft, triton, emulated: no runner",
        "#2 on draft, triton, emulated: no runner",
    ]
    screen, pipe = (Console(file=io.StringIO(), force_terminal=watched, width=140) for watched in (True, False))
    show_fixes(screen, done)
    show_fixes(pipe, done)
    assert isinstance(screen.file, io.StringIO)
    assert isinstance(pipe.file, io.StringIO)
    assert "does not hold" in screen.file.getvalue()
    assert all(word in screen.file.getvalue() for word in ("without it", "FAIL", "1 of 1", "✗", "not covered"))
    assert pipe.file.getvalue() == ""
    assert to_json(done[:1], fresh=False, whole=False)["exit_code"] is None
    form = json.loads(json.dumps(to_json(done, fresh=False, whole=True)))
    assert (form["exit_code"], [row["holds"] for row in form["rows"]]) == (1, [True, False, False, False])
    assert [stop["status"] for stop in form["rows"][1]["stops"]] == ["FAIL", "PASS", "FAIL", "FAIL"]
    assert form["rows"][0]["stops"][0]["verdict"]["status"] == "FAIL"
    assert (form["rows"][2]["covered"], form["rows"][2]["reason"]) == (False, "no runner")


def test_what_a_known_neighbour_does_to_a_seed_is_not_asked_and_what_another_does_is() -> None:
    proof = dataclasses.replace(A, neighbours=("memory",))

    def answer(*oracles: str) -> Result:
        failures = tuple(Verdict(oracle=oracle, status=Status.FAIL, where="here") for oracle in oracles)
        outcome = Outcome(
            seed=Path("x"),
            case=read(SEEDS / "pr26244-early-metadata.json").case,
            target=Target("0.2", "emulated"),
            runs=(failures,),
            statuses=(Status.FAIL,),
            ended=End(how=Termination.DONE),
        )
        return answer_of(outcome, proof, 1.0)

    assert answer("memory").status is Status.PASS
    assert answer("memory", "staged").status is Status.FAIL
    assert answer("bucket", "memory").status is Status.FAIL


def test_the_time_to_the_first_failure() -> None:
    done = World(buggy_staged=failing("staged", seconds=4), buggy_bucket=failing("bucket", seconds=2)).prove(rows())
    assert first_failures(done) == "time to the first failure: median 1.5 s, worst 4.0 s, of 4 searches"
    assert first_failures(rows(reason="no runner")) == ""


def searched(bug: str, oracle: str, seconds: float, folder: Path) -> Result:
    """The result of a search for a failure by this oracle on the toy."""
    target, proof = Target(bug, "toy"), Proof(runner="toy", seed="", oracle=oracle)
    with Pool(target) as pool:
        hooks = Hooks(
            run=pool.run,
            run_fresh=pool.run_fresh,
            judge=judge_all,
            overall=overall,
            keep=lambda finding: str(keep(folder, finding)),
            tell=lambda progress: None,
            clock=time.monotonic,
        )
        return answer_of_search(search(target, proof, hooks, seed=1, seconds=seconds), proof)


def test_a_search_ends_with_the_failure_that_it_is_for(tmp_path: Path) -> None:
    start = time.monotonic()
    answer = searched("stale_req_pool", "slot0_padding", 60, tmp_path)
    assert time.monotonic() - start < 50
    assert answer.verdict is not None
    assert (answer.status, answer.failed, answer.tried) == (Status.FAIL, 3, 3)
    assert answer.verdict.where == "padded rows of req_pool_indices"
    assert 0 < answer.seconds < 50
    assert list(tmp_path.rglob("slot0_padding-*.json"))


def test_another_failure_is_no_answer_but_no_pass_either(tmp_path: Path) -> None:
    start = time.monotonic()
    answer = searched("stale_req_pool", "staged", 3, tmp_path)
    assert (answer.status, answer.verdict) == (Status.FAIL, None)
    # It is told, but neither confirmed nor shrunk: that would take far longer than the search.
    assert answer.text.startswith("failures by kv_indices, slot0_padding alone: ")
    assert time.monotonic() - start < 8


def test_a_search_that_finds_nothing_passes(tmp_path: Path) -> None:
    answer = searched("clean", "slot0_padding", 0.2, tmp_path)
    assert (answer.status, answer.verdict) == (Status.PASS, None)
    assert answer.text.startswith("nothing found: ")


def test_a_search_in_which_nothing_ran_is_no_answer(tmp_path: Path) -> None:
    target, proof = Target("clean", "toy"), Proof(runner="toy", seed="", oracle="staged")
    refused = Trace(ended=End(how=Termination.UNSUPPORTED, what="no such kernel"))
    hooks = Hooks(
        run=lambda case: refused,
        run_fresh=lambda case: refused,
        judge=judge_all,
        overall=overall,
        keep=lambda finding: "",
        tell=lambda progress: None,
        clock=time.monotonic,
    )
    answer = answer_of_search(search(target, proof, hooks, seed=1, seconds=0.2), proof)
    assert (answer.status, answer.text) == (None, "nothing could be run: no such kernel")
