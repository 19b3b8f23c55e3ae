"""python -m fuzz check: red is what a change brings, known is what was there, nothing unjudged is green, and nothing
depends on the time."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fuzz.__main__ import options_of
from fuzz.check import command
from fuzz.check.command import Tools, command_check, published, stored_seeds
from fuzz.check.compare import Explain
from fuzz.check.guard import Ways
from fuzz.check.plan import Item, Plan, pairs, plan
from fuzz.commands.check import checkout
from repro.cases.case import Case, Setup, Target
from repro.cases.codec import loads
from repro.cases.runner_facts import RUNNER_FACTS
from repro.commands.cli import BadInput
from repro.ledger.explain import Explained
from repro.ledger.known import load
from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Cell, Status, Verdict
from repro.traces.trace import End, Termination, Trace
from repro.upstream.fixes import SEEDS

BRANCH, BASE = Target("/src/branch", "emulated"), Target("0.5.23", "emulated")
DRAFT_BACKENDS = RUNNER_FACTS["draft"].backends
# What a target does with a case: how its run ended, and which oracles fail, each in a step and a buffer.
Failure = tuple[str, int, str]
Behaviour = Callable[[Case], tuple[Termination, tuple[Failure, ...]]]
STAGED: Failure = ("staged", 0, "seq_lens")


def good(case: Case) -> tuple[Termination, tuple[Failure, ...]]:
    return Termination.DONE, ()


def failing(runner: str, *failures: Failure) -> Behaviour:
    return lambda case: (Termination.DONE, failures or (STAGED,)) if case.setup.runner == runner else good(case)


def ending(runner: str, how: Termination) -> Behaviour:
    return lambda case: (how, ()) if case.setup.runner == runner else good(case)


def judge(case: Case, trace: Trace) -> tuple[Verdict, ...]:
    """The verdicts that the trace's facts name."""
    setup = case.setup
    if not trace.ended.how.took_place:
        return (Verdict(oracle="ended", status=Status.UNKNOWN),)
    return tuple(
        Verdict(
            oracle=oracle,
            status=Status.FAIL,
            where=f"rows of {buffer}",
            detail="It is wrong.",
            cell=Cell(step=step, buffer=buffer, row=2, column=0, got="7", want="1"),
            runner=setup.runner,
            backend=setup.backend,
        )
        for oracle, step, buffer in json.loads(trace.facts["fails"])
    ) or (Verdict(oracle="ended", status=Status.PASS),)


def ignored(ahead: object) -> None:
    """Ignore what comes next: it makes no difference here."""


def overall(verdicts: Sequence[Verdict]) -> Status:
    return max(verdict.status for verdict in verdicts)


@functools.cache
def whole_plan() -> Plan:
    return plan(stored_seeds(SEEDS))


@functools.cache
def small_plan() -> Plan:
    """The plain setup of each pair."""
    return Plan(items=plan((), budget=0.0).items, left_out=whole_plan().left_out[:2])


class World:
    """Targets that behave as they are told, and what they were asked."""

    def __init__(self, folder: Path, branch: Behaviour = good, base: Behaviour = good) -> None:
        self.folder = folder
        self.behaviours = {BRANCH: branch, BASE: base}
        self.runs: list[tuple[Target, Case]] = []
        self.fresh: list[tuple[Target, Case]] = []
        self.explained: list[Case] = []
        self.foreseen: list[list[Case]] = []  # behind each of these
        self.expected: list[list[Setup]] = []  # on the base, at each case that it is asked about
        self.failures: list[Verdict] = []  # that sessions were told of
        self.identity = "1"
        self.judge: Callable[[Case, Trace], tuple[Verdict, ...]] = judge

    def run(self, target: Target, case: Case) -> Trace:
        self.runs.append((target, case))
        how, fails = self.behaviours[target](case)
        return Trace(ended=End(how=how, what="because"), facts={"sglang": "0.5.23", "fails": json.dumps(fails)})

    @contextmanager
    def pool(self, target: Target, log: Path, noting: bool) -> Iterator[Ways]:
        def run_fresh(case: Case) -> Trace:
            self.fresh.append((target, case))
            return self.run(target, case)

        run = functools.partial(self.run, target)

        def expect(setups: Sequence[Setup]) -> None:
            self.expected.append(list(setups))

        yield Ways(
            run=run, run_fresh=run_fresh, expect=expect, foresee=ignored, send=ignored, renew=self.failures.extend
        )

    @contextmanager
    def explaining(self, log: Path) -> Iterator[Explain]:
        """Only stale rows of seq_lens are known."""

        def explain(case: Case, target: Target, failures: Sequence[Verdict], coming: Sequence[Case]) -> Explained:
            self.explained.append(case)
            self.foreseen.append(list(coming))
            left = tuple(verdict for verdict in failures if verdict.oracle != "slot0_padding")
            return Explained(issues=load()[:1], left=left)

        yield explain

    def tools(self) -> Tools:
        return Tools(
            pool=self.pool,
            lacks=lambda target: "" if target in self.behaviours else "is not installed",
            judge=self.judge,
            overall=overall,
            explaining=self.explaining,
            version=lambda target: "0.5.23",
            kept=lambda target: self.folder / "kept" / self.identity,
            source=lambda target: Path(target.sglang),
            tracing=lambda target, log: self.pool(target, log, False),
        )

    def check(self, *words: str, checked: Target = BRANCH) -> tuple[ExitCode, str]:
        """The exit code, and the page that was written."""
        page = self.folder / "page.md"
        page.unlink(missing_ok=True)
        options = options_of(["check", "0.5.23", "--out", str(self.folder / "out"), "--markdown", str(page), *words])
        options.checked = checked
        return command_check(options, self.tools()), page.read_text()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "plan", lambda stored: small_plan())


def test_a_good_change_is_green_and_every_runner_was_judged(tmp_path: Path) -> None:
    code, page = World(tmp_path).check("--base", "0.5.23")
    assert code is ExitCode.PASS and page.startswith("## eagleeye: nothing new fails\n")
    assert f"on {len(pairs())} runner/backend pairs" in page
    assert all(item.name in page for item in small_plan().left_out)


def test_one_mistake_is_one_row_with_its_consequences_and_a_case_to_store(tmp_path: Path) -> None:
    world = World(tmp_path, branch=failing("draft", ("kv_reads", 1, "kv"), STAGED))
    code, page = world.check("--base", "0.5.23")
    assert code is ExitCode.FAIL and page.startswith("## eagleeye: 1 new failure\n")
    assert {(verdict.runner, verdict.oracle) for verdict in world.failures} == {
        ("draft", "kv_reads"),
        ("draft", "staged"),
    }
    rows = [line for line in page.splitlines() if line.startswith("| draft")]
    assert len(rows) == 1 and f"| {', '.join(DRAFT_BACKENDS)} | staged | step 0 seq_lens[2,0] is 7" in rows[0]
    assert "Then also: kv_reads at rows of kv." in page
    name = "draft-triton-staged-rows-of-seq_lens"
    assert f"<details><summary>Case {name}.json</summary>" in page
    stored = loads(page.partition("```json\n")[2].partition("\n```")[0])
    seed = loads((tmp_path / "out" / f"{name}.json").read_text())
    assert stored == dataclasses.replace(seed, about={**seed.about, "found": "./branch@emulated"})
    # Steps behind the first wrong value are left out.
    assert len(stored.case.steps) == 1 and f"repro run {name}.json --target ./branch@emulated" in page


def test_files_and_log_are_for_a_reader_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = {name: tmp_path / name for name in ("junit", "sarif", "summary")}
    words = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    world = World(tmp_path, branch=failing("draft"))
    code, page = world.check("--base", "0.5.23", "--annotate", *words, "--runners", "draft", "decode")
    assert code is ExitCode.FAIL and paths["summary"].read_text() == page
    assert {case.setup.runner for _, case in world.runs} == {"draft", "decode"}
    root = ElementTree.fromstring(paths["junit"].read_text())
    assert root.get("failures") == str(len(DRAFT_BACKENDS))
    assert len(json.loads(paths["sarif"].read_text())["runs"][0]["results"]) == 1
    log = capsys.readouterr().out
    assert "\n::error title=eagleeye%3A staged::draft on triton" in log
    assert "\npython -m repro run draft-triton-staged-rows-of-seq_lens.json --target ./branch@emulated\n" in log
    assert str(tmp_path) not in log
    with pytest.raises(BadInput, match="there is no such folder"):
        world.check("--junit", str(tmp_path / "none" / "junit.xml"))


def test_two_causes_of_the_same_name_have_a_file_each(tmp_path: Path) -> None:
    def twice(case: Case) -> tuple[Termination, tuple[Failure, ...]]:
        buffer = "first" if case.setup.backend == "triton" else "second"
        return (Termination.DONE, (("staged", 0, buffer),)) if case.setup.runner == "draft" else good(case)

    world = World(tmp_path, branch=twice)
    world.judge = lambda case, trace: tuple(
        dataclasses.replace(verdict, where="a plan", backend="triton") for verdict in judge(case, trace)
    )
    page = world.check("--base", "0.5.23")[1]
    name = "draft-triton-staged-a-plan"
    assert f"Case {name}.json" in page and f"repro run {name}-2.json" in page
    stored = [loads((tmp_path / "out" / f"{name}{end}.json").read_text()) for end in ("", "-2")]
    assert [seed.case.setup.backend for seed in stored] == ["triton", "flashinfer"]


def test_what_the_base_shows_in_the_same_case_is_not_red_and_is_folded_away(tmp_path: Path) -> None:
    world = World(tmp_path, branch=failing("draft"), base=failing("draft"))
    code, page = world.check("--base", "0.5.23")
    assert code is ExitCode.PASS
    old = page.partition(f"<details><summary>Failures that are not the change's: {len(DRAFT_BACKENDS)}</summary>")[2]
    assert f"{BASE} fails in the same way: draft/triton staged at rows of seq_lens; draft/flashinfer" in old
    # The base is asked about what failed and nothing else, and its sessions are opened ahead in that order.
    setups = [case.setup for target, case in world.runs if target == BASE]
    assert {setup.runner for setup in setups} == {"draft"}
    assert world.expected == [setups[number:] for number in range(1, len(setups) + 1)]


def test_another_failure_on_the_base_or_the_same_in_another_buffer_does_not_excuse_it(tmp_path: Path) -> None:
    for other in (("staged", 0, "positions"), ("slot0_padding", 0, "seq_lens")):
        world = World(tmp_path, branch=failing("draft"), base=failing("draft", other))
        world.identity = other[0]
        assert world.check("--base", "0.5.23")[0] is ExitCode.FAIL


def test_a_failure_that_the_base_has_in_one_case_is_red_in_another_that_the_base_passes(tmp_path: Path) -> None:
    plain = small_plan().items[0].cases[0]

    def old(case: Case) -> tuple[Termination, tuple[Failure, ...]]:
        return (Termination.DONE, (STAGED,)) if case == plain else good(case)

    code, page = World(tmp_path, branch=failing("draft"), base=old).check("--base", "0.5.23")
    assert code is ExitCode.FAIL and "Failures that are not the change's: 1" in page


def test_a_tree_is_held_against_its_release_and_a_release_against_the_known_issues(tmp_path: Path) -> None:
    stale = failing("draft", ("slot0_padding", 1, "seq_lens"))
    code, page = World(tmp_path, branch=stale).check()
    assert code is ExitCode.FAIL and f"./branch@emulated against {BASE}" in page
    world = World(tmp_path, base=stale)
    code, page = world.check(checked=BASE)
    assert code is ExitCode.PASS and load()[0].title in page
    # One experiment for each kind of failure, where every case of the runner fails.
    assert [case.setup.backend for case in world.explained] == list(DRAFT_BACKENDS)
    assert world.foreseen == [world.explained[number:] for number in range(1, len(DRAFT_BACKENDS) + 1)]
    code, page = World(tmp_path, base=failing("draft")).check(checked=BASE)
    assert code is ExitCode.FAIL


def test_a_checkout_is_held_against_the_newest_release_that_is_here_and_not_newer() -> None:
    def lacks(target: Target) -> str:
        return "" if target.sglang in ("0.5.13", "0.5.16") else "is not installed"

    versions = ("0.5.15", "0.5.16+gabc", "of its own", "0.5.12")
    bases = {version: published(version, "emulated", lacks) for version in versions}
    assert bases["0.5.15"] == Target("0.5.13", "emulated") and bases["0.5.12"] is None
    assert bases["0.5.16+gabc"] == bases["of its own"] == Target("0.5.16", "emulated")


def test_a_failure_that_does_not_come_back_is_uncertain_and_unknown_says_what_that_means(tmp_path: Path) -> None:
    seen: list[Case] = []

    def once(case: Case) -> tuple[Termination, tuple[Failure, ...]]:
        seen.append(case)
        return Termination.DONE, (STAGED,) if len(seen) == 1 else ()

    for words, expected in (((), 2), (("--unknown", "pass"), 0), (("--unknown", "fail"), 1)):
        seen.clear()
        code, page = World(tmp_path, branch=once).check("--base", "0.5.23", *words)
        assert code == expected and "failed once, not in a fresh process" in page
        assert page.startswith("## eagleeye: nothing new fails, and not all of it could be judged\n")


def test_a_release_without_a_runner_is_no_doubt_and_a_runner_that_cannot_be_run_is(tmp_path: Path) -> None:
    code, page = World(tmp_path, branch=ending("frozen_kv_mtp", Termination.UNSUPPORTED)).check("--base", "0.5.23")
    assert code is ExitCode.PASS and "frozen_kv_mtp/triton plain: because" in page
    code, page = World(tmp_path, branch=ending("frozen_kv_mtp", Termination.ERROR)).check("--base", "0.5.23")
    assert code is ExitCode.UNKNOWN and "### Could not be run\n\n- frozen_kv_mtp/triton: because" in page
    code, page = World(tmp_path, branch=lambda case: (Termination.ERROR, ())).check("--base", "0.5.23")
    assert code is ExitCode.ERROR and page.startswith("## eagleeye: nothing could be run\n")


@pytest.mark.parametrize("how", [Termination.ERROR, Termination.HUNG])
def test_an_end_that_a_busy_machine_may_make_is_tried_again_in_a_process_of_its_own(
    tmp_path: Path, how: Termination
) -> None:
    seen: list[Case] = []

    def shaky(case: Case) -> tuple[Termination, tuple[Failure, ...]]:
        seen.append(case)
        return (how, (STAGED,)) if len(seen) == 5 else good(case)

    world = World(tmp_path, branch=shaky)
    assert world.check("--base", "0.5.23")[0] is ExitCode.PASS
    assert world.fresh == [(BRANCH, seen[4])]


def test_what_the_base_could_not_be_asked_about_is_uncertain_and_not_kept(tmp_path: Path) -> None:
    world = World(tmp_path, branch=failing("draft"), base=ending("draft", Termination.ERROR))
    code, page = world.check("--base", "0.5.23")
    assert code is ExitCode.UNKNOWN and f"not run on {BASE}: because" in page
    assert not (tmp_path / "kept").exists()


def test_an_interrupt_ends_it_with_what_there_is_and_an_error(tmp_path: Path) -> None:
    seen: list[Case] = []

    def stopping(case: Case) -> tuple[Termination, tuple[Failure, ...]]:
        seen.append(case)
        if len(seen) == 10:
            raise KeyboardInterrupt
        return Termination.DONE, (STAGED,) if len(seen) == 1 else ()

    code, page = World(tmp_path, branch=stopping).check("--base", "0.5.23")
    assert code is ExitCode.ERROR
    assert page.startswith(f"## eagleeye: stopped after 3 of {len(small_plan().items)} setups\n")
    assert "### Fails, and was not compared\n\n- draft/triton plain\n" in page


def test_a_target_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"0\.5\.22/emulated: is not installed"):
        World(tmp_path).check("--base", "0.5.22")


def test_a_seed_that_passes_where_it_failed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "multi-layer-stale-padding.json"
    seed = dict(stored_seeds(SEEDS))[name]
    single = Plan(items=(Item(name=name, cases=(seed.case,), seed=seed),))
    monkeypatch.setattr(command, "plan", lambda stored: single)
    assert f"failed in this release: 1</summary>\n\n- {name}\n" in World(tmp_path).check("--base", "0.5.23")[1]
    stale = failing("multi_layer", ("slot0_padding", 1, "req_pool_indices"))
    assert "Seeds that pass now" not in World(tmp_path, branch=stale).check("--base", "0.5.23")[1]


def test_the_base_is_not_asked_again_until_something_that_its_verdicts_depend_on_changes(tmp_path: Path) -> None:
    world = World(tmp_path, branch=failing("draft"), base=failing("draft"))
    pages = []
    for _ in range(2):
        world.runs.clear()
        pages.append(world.check("--base", "0.5.23")[1])
    assert pages[0] == pages[1] and BASE not in {target for target, _ in world.runs}
    world.identity = "2"
    world.check("--base", "0.5.23")
    assert BASE in {target for target, _ in world.runs}


def test_a_kept_file_that_was_cut_is_made_again(tmp_path: Path) -> None:
    world = World(tmp_path, branch=failing("draft"), base=failing("draft"))
    world.check("--base", "0.5.23")
    kept = sorted((tmp_path / "kept" / "1").iterdir())
    whole = kept[0].read_text()
    kept[0].write_text(whole[:20])
    world.runs.clear()
    assert world.check("--base", "0.5.23")[0] is ExitCode.PASS
    assert [target for target, _ in world.runs].count(BASE) == 1 and kept[0].read_text() == whole
    assert not any(world.expected[-len(kept) :])


def test_a_repository_is_checked_where_its_package_lies(tmp_path: Path) -> None:
    (tmp_path / "python" / "sglang" / "srt").mkdir(parents=True)
    inner = Target(str(tmp_path / "python"), "emulated")
    assert checkout(str(tmp_path)) == checkout(str(tmp_path / "python")) == inner
    assert checkout("0.5.23") == Target("0.5.23", "emulated")
