"""python -m fuzz check: red is what a change brings, known is what was there, and nothing unjudged is green."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from fuzz.check import guard
from fuzz.check.command import command_check, published
from fuzz.check.guard import Check, Checked, Ways, stored_seeds
from fuzz.check.summary import exit_code, markdown
from fuzz.draw.directed import directed, places
from fuzz.options import checkout, options_of
from repro.cases.case import Case, Target, problems
from repro.cases.codec import Seed
from repro.cases.runner_facts import RUNNER_FACTS
from repro.commands.cli import BadInput
from repro.ledger.known import load
from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.trace import End, Termination, Trace
from repro.upstream.fixes import SEEDS

DRAFT_BACKENDS = RUNNER_FACTS["draft"].backends
BRANCH, BASE = Target("/src/branch", "emulated"), Target("0.5.23", "emulated")
# What a target does with a case: how its run ended, and which oracle fails, if one does.
Behaviour = Callable[[Case], tuple[Termination, str]]
BACKENDS = set(RUNNER_FACTS["draft"].backends)
CELL = Cell(step=1, buffer="seq_lens", row=2, column=0, got="7", want="1")


def good(case: Case) -> tuple[Termination, str]:
    return Termination.DONE, ""


def failing(runner: str, oracle: str = "slot0_padding") -> Behaviour:
    return lambda case: (Termination.DONE, oracle if case.setup.runner == runner else "")


def ending(runner: str, how: Termination) -> Behaviour:
    return lambda case: (how, "") if case.setup.runner == runner else (Termination.DONE, "")


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    oracle = trace.facts.get("fails", "")
    if not trace.ended.how.took_place:
        return (Verdict(oracle="ended", status=Status.UNKNOWN),)
    if oracle:
        return (Verdict(oracle=oracle, status=Status.FAIL, where="here", detail="It is wrong.", cell=CELL),)
    return (Verdict(oracle="ended", status=Status.PASS),)


def overall(verdicts: Sequence[Verdict]) -> Status:
    return max(verdict.status for verdict in verdicts)


@functools.cache
def drawn(runner: str, backend: str, seed: int, number: int, count: int) -> tuple[Case, ...]:
    """As directed() draws them, once for all tests: every check draws the same cases."""
    return tuple(directed(runner, backend, seed, number, count))


@pytest.fixture(autouse=True)
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "directed", drawn)


class World:
    """Targets that behave as they are told."""

    def __init__(self, out: Path, **behaviours: Behaviour) -> None:
        self.out = out
        self.behaviours = {BRANCH: behaviours.get("branch", good), BASE: behaviours.get("base", good)}
        self.release = "0.5.23"
        self.published: Target | None = BASE
        self.runs: list[tuple[Target, Case]] = []
        self.now = 0.0
        self.told: list[str] = []

    @contextmanager
    def opened(self, target: Target) -> Iterator[Ways]:
        def run(case: Case) -> Trace:
            self.now += 1
            self.runs.append((target, case))
            how, fails = self.behaviours[target](case)
            facts = {"sglang": self.release, "fails": fails}
            return Trace(ended=End(how=how, what="because"), facts=facts)

        yield Ways(run=run, run_fresh=run, expect=lambda setups: None)

    def check(self, *, base: Target | None = None, seconds: float = 10_000.0, seeds: Sequence[str] = ()) -> Checked:
        stored = [(name, seed) for name, seed in stored_seeds(SEEDS) if name in seeds]
        return Check(
            checked=Checked(target=BRANCH, base=base),
            opened=self.opened,
            judge=judge,
            overall=overall,
            issues=load(),
            out=self.out,
            seconds=seconds,
            published=lambda release: self.published,
            clock=lambda: self.now,
            tell=self.told.append,
        ).run(stored)


@pytest.mark.slow
def test_a_good_change_is_green_and_every_runner_was_judged(tmp_path: Path) -> None:
    done = World(tmp_path).check()
    assert exit_code(done) == ExitCode.PASS
    assert set(done.judged) == set(places()) and not done.unjudged
    assert markdown(done).startswith("## eagleeye: nothing new fails\n")


def test_what_a_change_breaks_is_red_with_buffer_row_and_the_command(tmp_path: Path) -> None:
    done = World(tmp_path, branch=failing("draft")).check(base=BASE)
    assert exit_code(done) == ExitCode.FAIL
    assert {failure.finding.case.setup.backend for failure in done.brought} == set(DRAFT_BACKENDS)
    text = markdown(done)
    assert "| draft | triton | slot0_padding | here | seq_lens | 2 | 1 | drawn |" in text
    stored = done.brought[0].finding.seed
    assert all(Path(failure.finding.seed).is_file() for failure in done.brought)
    assert len({failure.finding.seed for failure in done.brought}) == len(DRAFT_BACKENDS)
    assert f"python -m repro run {stored} --target {BRANCH}" in text


def test_what_the_base_has_too_is_not_red(tmp_path: Path) -> None:
    world = World(tmp_path, branch=failing("draft"), base=failing("draft"))
    done = world.check(base=BASE)
    assert exit_code(done) == ExitCode.PASS
    assert [failure.known for failure in done.known] == [f"{BASE} fails in the same way"] * len(DRAFT_BACKENDS)
    # The base is asked about what failed and nothing else.
    assert sum(target == BASE for target, _ in world.runs) == len(DRAFT_BACKENDS)


def test_another_failure_on_the_base_does_not_excuse_it(tmp_path: Path) -> None:
    done = World(tmp_path, branch=failing("draft"), base=failing("draft", "staged")).check(base=BASE)
    assert exit_code(done) == ExitCode.FAIL and not done.known


def test_without_a_base_known_issues_of_its_release_are_not_red(tmp_path: Path) -> None:
    stale = failing("multi_layer")
    done = World(tmp_path, branch=stale, base=stale).check()
    assert exit_code(done) == ExitCode.PASS and "req_pool_indices" in done.known[0].known
    assert exit_code(World(tmp_path, branch=failing("multi_layer", "kv_writes")).check()) == ExitCode.FAIL


def test_a_known_issues_place_that_the_release_as_published_does_not_fail_in_is_red(tmp_path: Path) -> None:
    world = World(tmp_path, branch=failing("multi_layer"))
    assert exit_code(world.check()) == ExitCode.FAIL
    assert any(line.startswith("FAIL multi_layer") and "passes the same case" in line for line in world.told)
    world.published = None
    done = world.check()
    assert exit_code(done) == ExitCode.UNKNOWN and "known by name alone" in done.unsure[0]


def test_a_checkout_is_held_against_the_newest_release_that_is_here_and_not_newer() -> None:
    def lacks(target: Target) -> str:
        return "" if target.sglang in ("0.5.13", "0.5.16") else "is not installed"

    found = {
        version: published(version, "emulated", lacks) for version in ("0.5.15", "0.5.16+gabc", "0.0.0.dev0", "0.5.12")
    }
    assert found["0.5.15"] == Target("0.5.13", "emulated") and found["0.5.12"] is None
    assert found["0.5.16+gabc"] == found["0.0.0.dev0"] == Target("0.5.16", "emulated")


def test_a_failure_that_does_not_come_back_is_uncertain(tmp_path: Path) -> None:
    seen: list[Case] = []

    def once(case: Case) -> tuple[Termination, str]:
        seen.append(case)
        return Termination.DONE, "staged" if len(seen) == 1 else ""

    done = World(tmp_path, branch=once).check()
    assert (exit_code(done), done.brought) == (ExitCode.UNKNOWN, [])
    assert "failed once, not in a fresh process" in markdown(done)


def test_what_a_release_does_not_have_is_no_doubt_and_what_we_cannot_run_is(tmp_path: Path) -> None:
    refused = World(tmp_path, branch=ending("frozen_kv_mtp", Termination.UNSUPPORTED)).check()
    assert exit_code(refused) == ExitCode.PASS
    assert "frozen_kv_mtp triton: because" in markdown(refused)
    error = World(tmp_path, branch=ending("frozen_kv_mtp", Termination.ERROR)).check()
    assert exit_code(error) == ExitCode.UNKNOWN
    assert "### Could not be run" in markdown(error)
    nothing = World(tmp_path, branch=lambda case: (Termination.ERROR, "")).check()
    assert exit_code(nothing) == ExitCode.ERROR


def checked(world: World, *words: str, lacking: str = "") -> ExitCode:
    """The command, of which no more than a second's worth of cases fits in."""
    options = options_of(["check", "0.5.23", "--minutes", "20", "--out", str(world.out), *words])
    options.checked = BRANCH

    @contextmanager
    def pool(target: Target, *, timeout_s: float, log: Path) -> Iterator[Ways]:
        assert log.parent == world.out
        with world.opened(target) as ways:
            yield ways

    return command_check(options, pool, lambda target: lacking if target == BASE else "", judge, overall)


def test_the_command_prints_its_summary_and_adds_it_to_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, out = tmp_path / "page.md", tmp_path / "out"
    page.write_text("written before\n")
    assert checked(World(out), "--markdown", str(page)) is ExitCode.PASS
    said = capsys.readouterr().out
    assert said.startswith("## eagleeye: nothing new fails\n") and page.read_text() == f"written before\n{said}"
    assert checked(World(out, branch=failing("draft"))) is ExitCode.FAIL
    assert "| draft | triton | slot0_padding | here | seq_lens | 2 | 1 | " in capsys.readouterr().out
    with pytest.raises(BadInput, match=r"0\.5\.23/emulated: its files are gone"):
        checked(World(out), "--base", "0.5.23", lacking="its files are gone")


def test_when_time_is_up_what_was_not_judged_is_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    done = world.check(seconds=20.0)
    assert exit_code(done) == ExitCode.UNKNOWN and done.unjudged
    assert world.told[-1].startswith("out of time:")
    assert f"Time was over before {done.untried} of the drawn setups were tried" in markdown(done)
    assert len(world.runs) <= 24


def test_a_seed_that_passes_where_it_failed_is_told(tmp_path: Path) -> None:
    name = "multi-layer-stale-padding.json"
    done = World(tmp_path).check(seeds=[name])
    assert done.gone == [name] and done.seeds == 1
    stale = failing("multi_layer")
    still = World(tmp_path, branch=stale, base=stale).check(seeds=[name])
    assert still.gone == [] and exit_code(still) == ExitCode.PASS


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize(("runner", "backend"), places())
def test_directed_cases_are_valid_and_the_same_every_time(runner: str, backend: str, number: int) -> None:
    cases = list(directed(runner, backend, 3, number, 4))
    assert cases == list(directed(runner, backend, 3, number, 4))
    assert all(problems(case) == [] for case in cases) and cases
    assert {(case.setup.runner, case.setup.backend) for case in cases} == {(runner, backend)}


def test_a_repository_is_checked_where_its_package_lies(tmp_path: Path) -> None:
    (tmp_path / "python" / "sglang" / "srt").mkdir(parents=True)
    inner = Target(str(tmp_path / "python"), "emulated")
    assert checkout(str(tmp_path)) == checkout(str(tmp_path / "python")) == inner
    assert checkout("0.5.23") == Target("0.5.23", "emulated")


def test_seeds_are_read_with_their_names() -> None:
    seeds = dict(stored_seeds(SEEDS))
    assert "pr23037-stale-padding.json" in seeds
    assert all(isinstance(seed, Seed) for seed in seeds.values())
