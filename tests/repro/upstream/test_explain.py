"""Explanation of a failing case by known issues: what an experiment says, and what it leaves; and the backports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path

import pytest

from oracles.catalogue import judge_all, overall
from repro.cases import codec
from repro.cases.case import Case, Target
from repro.cases.release_list import ADAPTED
from repro.ledger.explain import SINGLE_RUNS, Explainer, Mended, to_json
from repro.ledger.known import Issue, load
from repro.shrinking.replay import Outcome
from repro.traces.finding import TIE, Cell, Status, Verdict
from repro.traces.trace import End, Termination
from repro.upstream.backports import edits_for, mends
from repro.upstream.edits import Edit, EditNotFound, edited
from repro.upstream.fixes import SEEDS
from repro.upstream.patch_table import BACKPORTS, BY_NAME
from runners.processes.experiments import experiments
from runners.processes.pool import Pool
from runners.targets.environments import NotUsable, sglang_path
from tests.repro.test_repro_main import CASE

TARGET = Target("0.5.12.post1", "emulated")
KIND = f"{CASE.setup.runner}/{CASE.setup.backend}"
STALE = Verdict(oracle="slot0_padding", status=Status.FAIL, where="padded rows of a")
OTHER = replace(STALE, where="padded rows of b")
ENDED = Verdict(oracle="ended", status=Status.PASS)
EQUAL = Verdict(oracle="graph_equals_eager", status=Status.PASS)
ISSUE = Issue(
    title="rows are stale",
    link="https://example.org/1",
    probes=(),
    targets=("<0.5.13",),
    explains=(f"{KIND} slot0_padding",),
    mended_by=("#26335",),
    expires=date(2099, 1, 1),
)
UNMENDED = replace(
    ISSUE,
    title="nothing mends it",
    mended_by=(),
    setups=("topk > 1",),
    explains=(f"{KIND} slot0_padding: padded rows of b",),
)


@dataclass
class World:
    """A release on which the mended case fails by these. alone: by one backport, what fails with it alone."""

    issues: tuple[Issue, ...] = (ISSUE,)
    left: tuple[Verdict, ...] = ()
    alone: dict[str, tuple[Verdict, ...]] = field(default_factory=dict)
    trouble: str = ""
    can_be_mended: bool = True
    runs: list[tuple[Target, int]] = field(default_factory=list)

    def explainer(self) -> Explainer:
        return Explainer(
            issues=self.issues, mend=self.mend, run=self.run, overall=overall, release_of=lambda target: target.sglang
        )

    def mend(self, target: Target, names: Sequence[str]) -> Mended | None:
        place = f"/mended by {names[0]}" if self.alone and len(names) == 1 else "/mended"
        return Mended(target=Target(place, target.engine), names=tuple(names)) if self.can_be_mended else None

    def run(self, target: Target, case: Case, tries: int) -> tuple[list[tuple[Verdict, ...]], str]:
        self.runs.append((target, tries))
        left = self.alone.get(target.sglang.rpartition(" ")[2], self.left)
        return ([], self.trouble) if self.trouble else ([(ENDED, EQUAL, *left)] * tries, "")


def test_what_passes_where_it_is_mended_is_explained_and_run_once() -> None:
    world = World()
    explainer = world.explainer()
    for _ in range(3):
        explained = explainer.explain(CASE, TARGET, [STALE])
        assert explained.holds and explained.issues == (ISSUE,) and explained.left == ()
    assert (
        str(explained) == "passes where known bugs are mended: rows are stale (https://example.org/1, until 2099-01-01)"
    )
    assert world.runs == [(Target("/mended", "emulated"), 1)]
    assert to_json(explained)["mended"] == ["#26335"]


def test_a_neighbour_with_the_same_identity_is_not_hidden() -> None:
    """The same oracle and where, on the same runner: only the experiment tells the two apart."""
    explained = World(left=(STALE,)).explainer().explain(CASE, TARGET, [STALE])
    assert not explained.holds and explained.left == (STALE,)
    assert str(explained) == "still fails where known bugs are mended: slot0_padding at padded rows of a"


def test_what_is_left_may_be_another_failure() -> None:
    explained = World(left=(OTHER,)).explainer().explain(CASE, TARGET, [STALE, OTHER])
    assert not explained.holds and explained.left == (OTHER,) and explained.issues == (ISSUE,)
    both = World(issues=(ISSUE, UNMENDED), left=(OTHER,)).explainer().explain(CASE, TARGET, [STALE, OTHER])
    assert both.holds and both.issues == (ISSUE, UNMENDED)


def test_what_fails_with_patches_alone_is_no_failure_of_the_target() -> None:
    """A patch that breaks another runner, or a known issue in front of another bug."""
    explained = World(left=(OTHER,)).explainer().explain(CASE, TARGET, [STALE])
    assert explained.holds and explained.left == () and explained.only_mended == (OTHER,)
    assert str(explained).endswith("until 2099-01-01); fails there alone: slot0_padding at padded rows of b")
    assert to_json(explained)["only_mended"] == [{"oracle": "slot0_padding", "where": "padded rows of b", "detail": ""}]


def test_what_a_mended_issue_hid_may_be_one_that_nothing_mends() -> None:
    named = World(issues=(ISSUE, UNMENDED), left=(OTHER,)).explainer().explain(CASE, TARGET, [STALE])
    assert named.holds and named.issues == (ISSUE,) and named.only_mended == ()
    elsewhere = replace(UNMENDED, setups=("topk > 99",))
    hidden = World(issues=(ISSUE, elsewhere), left=(OTHER,)).explainer().explain(CASE, TARGET, [STALE])
    assert hidden.only_mended == (OTHER,)


def test_a_patch_that_ends_the_run_early_explains_nothing_that_was_not_judged() -> None:
    early = Verdict(oracle="ended", status=Status.FAIL, where="raised ValueError in building the workers")

    class Early(World):
        """A world in which the run ends early by all patches together."""

        def run(self, target: Target, case: Case, tries: int) -> tuple[list[tuple[Verdict, ...]], str]:
            made = super().run(target, case, tries)
            return made if target.sglang.startswith("/mended by") else ([(early, *self.left)], "")

    other = replace(ISSUE, title="the patch that ends the run", mended_by=("#2",))
    explained = Early(issues=(ISSUE, other), alone={"#26335": (STALE,), "#2": (early, STALE)}).explainer()
    assert explained.explain(CASE, TARGET, [STALE]).left == (STALE,)
    alone = Early(issues=(other, ISSUE), alone={"#2": (STALE,), "#26335": ()}).explainer()
    assert alone.explain(CASE, TARGET, [STALE]).issues == (ISSUE,)
    judged = Early(left=(replace(STALE, status=Status.PASS),)).explainer().explain(CASE, TARGET, [STALE])
    assert judged.holds and judged.only_mended == (early,)
    # A crash of the target itself hides the rest in both runs.
    assert Early().explainer().explain(CASE, TARGET, [STALE, early]).left == (early,)


def test_in_one_place_of_a_plan_the_first_wrong_buffer_tells_two_apart() -> None:
    plan = replace(STALE, oracle="kv_indices", where="segment of a real row")
    first, other = (replace(plan, cell=Cell(step=0, buffer=b, row=1, column=0, got="2", want="0")) for b in "cd")
    explained = World(left=(other,)).explainer().explain(CASE, TARGET, [first])
    assert explained.holds and explained.only_mended == (other,)
    assert World(left=(replace(first, detail="x"),)).explainer().explain(CASE, TARGET, [first]).left == (first,)


def test_what_goes_away_for_no_known_issue_is_left() -> None:
    """An issue of another runner, or of setups unlike this one, speaks of no failure here: it went by chance."""
    for other in (replace(ISSUE, explains=("decode/triton staged",)), replace(ISSUE, setups=("window",))):
        explained = World(issues=(other,)).explainer().explain(CASE, TARGET, [STALE])
        assert explained.left == (STALE,) and explained.issues == ()


def test_of_several_issues_the_one_that_mends_it_alone_is_named() -> None:
    place = f"{KIND} slot0_padding: padded rows of a"
    named = replace(ISSUE, title="of this place", mended_by=("#1",), explains=(place,))
    other = replace(ISSUE, title="of the oracle", mended_by=("#2",), explains=(f"{KIND} slot0_padding",))
    world = World(issues=(other, named), alone={"#1": (STALE,)})
    assert world.explainer().explain(CASE, TARGET, [STALE]).issues == (named,)
    assert [target.sglang for target, _ in world.runs] == ["/mended"]
    third = replace(other, title="of the oracle, too", mended_by=("#3",))
    world = World(issues=(other, third), alone={"#2": (STALE,)})
    explainer = world.explainer()
    for seq_len in (3, 4):
        case = replace(CASE, steps=tuple(replace(step, layout=seq_len) for step in CASE.steps))
        assert explainer.explain(case, TARGET, [STALE]).issues == (third,)
    # What fails alike is asked for once.
    assert [target.sglang for target, _ in world.runs] == ["/mended", "/mended by #2", "/mended by #3", "/mended"]


def test_issues_that_name_more_of_what_failed_are_tried_first_and_named_where_no_run_is_left() -> None:
    plan = replace(STALE, oracle="kv_indices")
    other = replace(ISSUE, title="of the oracle", mended_by=("#1",))
    both = replace(ISSUE, title="of both", mended_by=("#2",), explains=(*ISSUE.explains, f"{KIND} kv_indices"))
    world = World(issues=(other, both), alone={"#1": (STALE,), "#2": ()})
    explainer = world.explainer()
    assert explainer.explain(CASE, TARGET, [STALE, plan]).issues == (both,)
    assert [target.sglang for target, _ in world.runs] == ["/mended", "/mended by #2"]
    explainer._single_runs = SINGLE_RUNS
    there = replace(STALE, where="padded rows of c")
    assert explainer.explain(CASE, TARGET, [there, plan]).issues == (both,)


def test_what_could_not_be_put_to_the_test_is_not_explained() -> None:
    explained = World(trouble="no memory").explainer().explain(CASE, TARGET, [STALE])
    assert not explained.holds and explained.left == (STALE,) and "no memory" in str(explained)
    doubtful = World(left=(Verdict(oracle="kv_indices", status=Status.UNKNOWN, where="the oracle itself raised"),))
    explained = doubtful.explainer().explain(CASE, TARGET, [STALE])
    assert not explained.holds and explained.left == (STALE,) and "cannot be judged" in str(explained)


def test_a_run_that_could_not_be_made_is_tried_again() -> None:
    class Loaded(World):
        def run(self, target: Target, case: Case, tries: int) -> tuple[list[tuple[Verdict, ...]], str]:
            made = super().run(target, case, tries)
            return made if len(self.runs) > 1 else ([], "no memory")

    loaded = Loaded()
    assert loaded.explainer().explain(CASE, TARGET, [STALE]).holds and len(loaded.runs) == 2
    # A case that cannot be run twice is asked for again with the next failure of the case.
    world = World(trouble="no memory")
    explainer = world.explainer()
    assert not explainer.explain(CASE, TARGET, [STALE]).holds
    world.trouble = ""
    assert explainer.explain(CASE, TARGET, [STALE]).holds


def test_of_a_case_without_a_graph_the_end_is_enough() -> None:
    class Alone(World):
        def run(self, target: Target, case: Case, tries: int) -> tuple[list[tuple[Verdict, ...]], str]:
            return [(ENDED, *self.left)], ""

    failed = replace(STALE, oracle="ended", where="raised AssertionError in eager")
    issue = replace(ISSUE, explains=(f"{KIND} ended",))
    assert Alone(issues=(issue,)).explainer().explain(CASE, TARGET, [failed]).holds
    assert not Alone().explainer().explain(CASE, TARGET, [STALE]).holds
    assert not Alone().explainer().explain(CASE, TARGET, [failed, STALE]).holds
    doubtful = Verdict(oracle="kv_indices", status=Status.UNKNOWN, where="the oracle itself raised")
    assert not Alone(issues=(issue,), left=(doubtful,)).explainer().explain(CASE, TARGET, [failed]).holds
    # Of idle batches: what was wrong is right, and there is nothing else to judge.
    right_again = replace(STALE, status=Status.PASS)
    assert Alone(left=(right_again,)).explainer().explain(CASE, TARGET, [STALE]).holds
    assert not Alone(left=(right_again, doubtful)).explainer().explain(CASE, TARGET, [STALE]).holds
    # Its consequence may tie once it is right; a tie alone shows nothing.
    other = replace(STALE, oracle="graph_equals_eager", where="draft tree")
    tie = replace(other, status=Status.UNKNOWN, where=TIE)
    assert Alone(left=(right_again, tie)).explainer().explain(CASE, TARGET, [STALE, other]).holds
    assert not Alone(left=(tie,)).explainer().explain(CASE, TARGET, [other]).holds
    unlike = replace(STALE, oracle="kv_indices")
    assert not Alone(left=(right_again,)).explainer().explain(CASE, TARGET, [STALE, unlike]).holds


def test_where_nothing_mends_it_only_what_is_named_in_full_is_explained() -> None:
    cell = Cell(step=0, buffer="table", row=1, column=0, got="2", want="0")
    with_cell = replace(STALE, cell=cell)
    for explains, holds in (
        (f"{KIND} slot0_padding", False),
        (f"{KIND} slot0_padding: padded rows of b", False),
        (f"{KIND} slot0_padding: padded rows of a", False),
        (f"{KIND} slot0_padding: padded rows of a [b]", False),
        (f"{KIND} slot0_padding: padded rows of a [table]", True),
        ("decode/triton slot0_padding: padded rows of a [table]", False),
    ):
        for setups in (("topk > 1",), ("topk > 1", "window"), ()):
            world = World(issues=(replace(ISSUE, explains=(explains,), setups=setups),), can_be_mended=False)
            explained = world.explainer().explain(CASE, TARGET, [with_cell])
            assert explained.holds is (holds and setups == ("topk > 1",)), (explains, setups)
            assert world.runs == []
    # A place that names its buffer is enough, and one where there is none.
    for seen in (STALE, replace(STALE, cell=replace(cell, buffer="a"))):
        issue = replace(ISSUE, explains=(f"{KIND} slot0_padding: padded rows of a",), setups=("topk > 1",))
        assert World(issues=(issue,), can_be_mended=False).explainer().explain(CASE, TARGET, [seen]).holds
    elsewhere = World().explainer().explain(CASE, Target("0.5.13", "emulated"), [STALE])
    assert not elsewhere.holds and elsewhere.issues == ()


def test_of_an_outcome_each_failure_is_asked_for_once() -> None:
    ended = End(how=Termination.DONE)
    seen = Outcome(
        seed=Path("a.json"), case=CASE, target=TARGET, runs=((ENDED, STALE), (ENDED, STALE)), statuses=(), ended=ended
    )
    world = World()
    explained = world.explainer().of_outcome(seen)
    assert explained is not None and explained.holds and explained.issues == (ISSUE,)
    # As often as it was run.
    assert world.runs == [(Target("/mended", "emulated"), 2)]
    assert world.explainer().of_outcome(replace(seen, runs=((ENDED, EQUAL),))) is None


def test_of_several_forms_the_first_that_is_there_is_taken() -> None:
    first_edit, second_edit = (Edit(file="f.py", function="f", old=f"{name}()", new=f"{name}(1)") for name in "ab")
    backport = replace(BACKPORTS[0], forms=((first_edit, second_edit), (second_edit,)))
    assert edits_for(backport, lambda file: "def f():\n    b()\n") == (second_edit,)
    assert edits_for(backport, lambda file: "def f():\n    a()\n    b()\n") == (first_edit, second_edit)
    assert edits_for(backport, lambda file: "def f():\n    pass\n") == ()


def content(folder: Path, name: str) -> str:
    return (folder / name).read_text()


@pytest.mark.exhaustive
def test_every_known_issue_can_be_mended_where_it_holds_or_names_what_fails() -> None:
    """Installed releases are asked; and all of a release can be mended together."""
    tried = 0
    for release in ADAPTED:
        try:
            source = sglang_path(Target(release, "emulated"))
        except NotUsable:
            continue
        tried += 1
        holding = [issue for issue in load() if issue.holds_on(release, "emulated")]
        names = dict.fromkeys(name for issue in holding for name in issue.mended_by)
        made = mends(names, partial(content, source))
        for issue in holding:
            named = issue.setups and all(": " in text for text in issue.explains)
            assert named or set(issue.mended_by) & made.keys(), f"{issue.title} cannot be mended on {release}"
        edits = [edit for some in made.values() for edit in some]
        for file in {edit.file for edit in edits}:
            try:
                edited((source / file).read_text(), [edit for edit in edits if edit.file == file])
            except EditNotFound as error:
                pytest.fail(f"{release}: {error}")
    if not tried:
        pytest.skip("no release is installed")


def test_every_backport_is_one_of_a_known_issue() -> None:
    assert {name for issue in load() for name in issue.mended_by} == BY_NAME.keys()


@pytest.mark.exhaustive
@pytest.mark.emulated("0.5.12.post1")
def test_a_known_issue_explains_its_seed_and_not_its_neighbour() -> None:
    """kv_move has two bugs by one oracle: with only the one mended, the other one's seed still fails."""
    case = codec.read(SEEDS / "kv-move-branches-page-boundary.json").case
    every = load()
    tail = tuple(issue for issue in every if issue.mended_by == ("#26335",))
    with Pool(TARGET) as pool:
        failures = [v for v in judge_all(case, pool.run(case)) if v.status is Status.FAIL]
    assert [v.oracle for v in failures] == ["kv_moves"]
    for issues, holds in ((every, True), (tail, False)):
        with experiments(issues, judge_all, overall, timeout_s=120) as explainer:
            assert explainer.explain(case, TARGET, failures).holds is holds
