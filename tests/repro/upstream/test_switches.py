"""python -m repro explain: each switch by itself, what the runs of all of them come to, and one real seed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from repro.__main__ import main
from repro.cases import codec
from repro.cases.case import Case, Request, Step, Target, problems
from repro.cases.codec import Seed
from repro.cases.release_list import NEWEST
from repro.cases.runner_facts import RUNNER_FACTS
from repro.commands.bisect import wanted_of
from repro.commands.explain import _stored, known_patches
from repro.traces.finding import Status, Verdict, fingerprint
from repro.traces.trace import End, Termination, Trace
from repro.upstream.edits import Edit
from repro.upstream.explain import Row, Runs, State, conclusion, failure_of, runs_of, summary, try_all, try_patches
from repro.upstream.fixes import SEEDS
from repro.upstream.patch_table import CANDIDATE_PATCHES
from repro.upstream.rig import Wanted
from repro.upstream.switches import BASE, Kind, Patch, Subject, Switch, Variant, patch_switch, switches
from runners.targets.environments import sglang_path
from tests.builders import rigs
from tests.repro.test_repro_main import CASE

HERE = Target("0.5.13", "emulated")
WANTED = Wanted(oracle="slot0_padding", where="rows")
SUBJECT = Subject(case=CASE, target=HERE, failure=WANTED, step=2, releases=("0.5.12.post1", "0.5.13"))
FAILED = Verdict(oracle="slot0_padding", status=Status.FAIL, where="rows")
OTHER = Verdict(oracle="reference", status=Status.FAIL, where="outputs")
PASSED = Verdict(oracle="slot0_padding", status=Status.PASS)
UNJUDGED = Verdict(oracle="slot0_padding", status=Status.UNKNOWN, detail="nothing compared")
DONE = Trace(ended=End(how=Termination.DONE))


def switched(name: str, subject: Subject = SUBJECT) -> Variant | str:
    (switch,) = (switch for switch in switches(subject.case.setup) if switch.name == name)
    return switch.change(subject)


def case_of(name: str, subject: Subject = SUBJECT) -> Case:
    variant = switched(name, subject)
    assert isinstance(variant, Variant), variant
    assert problems(variant.case) == []
    return variant.case


def with_setup(**fields: object) -> Subject:
    case = replace(CASE, setup=replace(CASE.setup, **fields))  # type: ignore[arg-type]  # fields are passed by name
    return replace(SUBJECT, case=case)


def test_without_padding_buckets_are_the_batches() -> None:
    assert case_of("padding off").setup.capture_bs == (2, 3, 4)
    assert switched("padding off", with_setup(capture_bs=(2, 3, 4))) == "no batch is padded already"
    idle = replace(SUBJECT, case=replace(CASE, steps=(*CASE.steps, Step(requests=()))))
    assert all(step.requests for step in case_of("padding off", idle).steps)


def test_without_a_graph_no_batch_is_replayed() -> None:
    setup = case_of("graph off").setup
    assert not any(setup.replays(len(step.requests)) for step in CASE.steps)
    six = (1, 2, 3, 4, 5, 6)
    every = tuple(Step(requests=tuple(Request(slot=s, seq_len=4, data=0) for s in six[:size])) for size in six)
    full = case_of("graph off", replace(SUBJECT, case=replace(CASE, steps=every))).setup
    assert (full.capture_bs, full.slots) == ((7,), 7)
    assert "in each case" in str(switched("graph off", replace(SUBJECT, in_capture=True)))
    moves = replace(CASE, setup=replace(CASE.setup, runner="kv_move"))
    assert "replays no graph" in str(switched("graph off", replace(SUBJECT, case=moves)))


def test_history_and_requests_are_taken_from_the_step_that_goes_wrong() -> None:
    assert case_of("history off", replace(SUBJECT, step=1)).steps == CASE.steps[1:2]
    slots = [[request.slot for request in step.requests] for step in case_of("one request").steps]
    assert slots == [[2], [3], [2]]  # slot 2 goes wrong in the last step


def test_options_go_back_by_their_rows() -> None:
    assert case_of("topk 1").setup.topk == 1
    assert switched("page size 1") == "page_size is 1 already"
    assert case_of("page size 1", with_setup(page_size=4)).setup.page_size == 1
    assert case_of("window off", with_setup(window=7)).setup.window == 0
    assert case_of("logit_cap at its default", with_setup(logit_cap=5)).setup.logit_cap == 0
    assert not any("logit_cap" in switch.name for switch in switches(CASE.setup))
    lone = replace(CASE, steps=(replace(CASE.steps[0], mirrored=False),))
    assert all(step.mirrored for step in case_of("lengths on the host", replace(SUBJECT, case=lone)).steps)
    assert switched("lengths on the host") == "lengths are on the host already"


def test_another_backend_gets_the_sizes_that_it_has_kernels_for() -> None:
    variant = switched("backend fa3")
    assert isinstance(variant, Variant) and problems(variant.case) == []
    assert (variant.case.setup.backend, variant.case.setup.head_dim) == ("fa3", 64)
    assert variant.note == "with head_dim 64, with dtype float16"
    # Quantised keys and values are driven on Triton alone.
    refused = switched("backend fa3", with_setup(kv_dtype="fp8_e5m2", head_dim=64))
    assert str(refused).startswith("refused: setup: ")


def test_neighbours_are_installed_releases() -> None:
    older = switched("older release")
    assert isinstance(older, Variant) and older.target == Target("0.5.12.post1", "emulated")
    assert switched("newer release") == "no newer release is installed"
    checkout = replace(SUBJECT, target=Target("/src/python", "emulated"), counts_as="0.5.13")
    assert "no neighbours" in str(switched("older release", checkout))
    base = switched(BASE, checkout)
    assert isinstance(base, Variant) and base.target == HERE


def test_a_patch_is_made_or_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    return 1\n")
    used = rigs.rig(lambda target, case: (DONE, [PASSED]), source=tmp_path, overlays=tmp_path / "over")

    def of(old: str) -> Variant | str:
        edit = Edit(file="a.py", function="f", old=old, new="return 2")
        return patch_switch(Patch(name="mend", why="because", edits=(edit,)), used).change(SUBJECT)

    mended = of("return 1")
    assert isinstance(mended, Variant) and mended.target != HERE
    assert "return 2" in (tmp_path / "over" / "a.py").read_text()
    assert str(of("return 3")).startswith("refused: a.py: ")


@pytest.mark.parametrize(
    ("verdicts", "how", "state"),
    [
        ([FAILED, OTHER], Termination.DONE, State.FAILS),
        ([PASSED, OTHER], Termination.DONE, State.OTHERWISE),
        ([PASSED], Termination.DONE, State.PASSES),
        ([PASSED, replace(OTHER, status=Status.UNKNOWN)], Termination.DONE, State.PASSES),
        ([UNJUDGED], Termination.DONE, State.UNKNOWN),
        ([], Termination.UNSUPPORTED, State.UNSUPPORTED),
        ([], Termination.ERROR, State.ERROR),
    ],
)
def test_each_end_has_a_state(verdicts: Sequence[Verdict], how: Termination, state: State) -> None:
    used = rigs.rig(lambda target, case: (Trace(ended=End(how=how, what="why")), verdicts))
    with used.opened(HERE) as run:
        runs = runs_of(used, run, CASE, SUBJECT, 3)
    assert runs.state is state
    assert runs.failed == (3 if state is State.FAILS else 0)
    assert runs.judged == (3 if how.took_place else 0)


def test_another_bug_of_the_same_case_is_no_result_of_a_switch() -> None:
    used = rigs.rig(lambda target, case: (DONE, [PASSED, OTHER]))
    with used.opened(HERE) as run:
        besides = replace(SUBJECT, besides=frozenset({"reference at outputs"}))
        assert runs_of(used, run, CASE, besides, 1).state is State.PASSES
        assert runs_of(used, run, CASE, SUBJECT, 1).others == ("reference at outputs",)


@pytest.mark.parametrize(
    ("verdicts", "gone"),
    [
        ([PASSED, OTHER], True),
        ([UNJUDGED, OTHER], False),
        ([replace(FAILED, where="elsewhere")], False),
        ([PASSED], True),
        ([UNJUDGED], False),
        ([FAILED], False),
    ],
)
def test_a_failure_is_gone_where_its_oracle_judged_and_did_not_fail(verdicts: Sequence[Verdict], gone: bool) -> None:
    used = rigs.rig(lambda target, case: (DONE, verdicts))
    with used.opened(HERE) as run:
        assert runs_of(used, run, CASE, SUBJECT, 2).gone is gone


def test_what_must_be_on_is_what_passes_without() -> None:
    """A world with one bug: padding, an earlier step and the older release make it; topk does not matter."""

    def world(target: Target, case: Case) -> tuple[Trace, Sequence[Verdict]]:
        padded = any(len(step.requests) not in case.setup.capture_bs for step in case.steps)
        if case.setup.backend == "flashinfer":
            return DONE, [PASSED, OTHER]
        if not case.setup.padded:
            return DONE, [UNJUDGED]
        fails = padded and len(case.steps) > 1 and target == HERE
        return DONE, [FAILED if fails else PASSED]

    used = rigs.rig(world)
    with used.opened(HERE) as run:
        rows = list(try_all(used, SUBJECT, list(switches(CASE.setup)), run, 2))
    line, left_out = summary(rows)
    assert line == (
        "needs: padding, history; independent of: more than one request, topk > 1, num_steps > 2; "
        "cannot be judged without: graph; fails so on: fa3; not on: 0.5.12.post1/emulated; "
        "fails otherwise on: flashinfer"
    )
    assert left_out.startswith("so already: page size 1, window off, ")
    assert left_out.endswith("newer release (no newer release is installed)")


def row(name: str, state: State, kind: Kind = Kind.PATCH) -> Row:
    switch = Switch(name=name, needed="", change=lambda subject: "", kind=kind)
    runs = Runs(state=state, failed=int(state is State.FAILS), judged=1, gone=state is State.PASSES)
    return Row(switch=switch, runs=runs, target="0.5.12/emulated")


@pytest.mark.parametrize(
    ("mending", "names"), [("", ["a + b + c + d"]), ("c", ["a + b", "c", "d"]), ("ad", ["a", "b", "c", "d"])]
)
def test_patches_that_leave_the_failure_are_tried_at_once(mending: str, names: list[str], tmp_path: Path) -> None:
    """A world in which the text of a file says which patches were made."""
    (tmp_path / "f.py").write_text("def f():\n" + "".join(f"    {name} = 0\n" for name in "abcd"))
    over = tmp_path / "over"

    def world(target: Target, case: Case) -> tuple[Trace, Sequence[Verdict]]:
        text = (over / "f.py").read_text() if target != HERE else ""
        return DONE, [PASSED if any(f"{name} = 1" in text for name in mending) else FAILED]

    used = rigs.rig(world, source=tmp_path, overlays=over)
    patches = [
        Patch(name=name, why=name, edits=(Edit(file="f.py", function="f", old=f"{name} = 0", new=f"{name} = 1"),))
        for name in "abcd"
    ]
    with used.opened(HERE) as run:
        rows = list(try_patches(used, SUBJECT, patches, run, 1))
    assert [each.switch.name for each in rows] == [f"patch {name}" for name in names]
    assert {each.switch.name[-1] for each in rows if each.runs.gone} == set(mending)


def test_the_cause_is_a_patch_that_mends_it_or_is_not_known() -> None:
    edit = Edit(file="a.py", function="f", old="x")
    patches = [Patch(name=name, why=f"why {name}", edits=(edit,), title="t", link="l") for name in "ab"]
    once = Runs(state=State.FAILS, failed=1, judged=1)
    text = conclusion([row("patch a", State.PASSES), row("patch b", State.FAILS)], patches, once)
    assert text == "Cause: a mends it (0 of 1 runs fail so with it): why a; at a.py, f. Known issue: t (l)."
    both = conclusion([row("patch a", State.PASSES), row("patch b", State.PASSES)], patches, once)
    assert "do not say which of them is the cause" in both
    none = conclusion([row("patch a + b", State.FAILS)], patches, once)
    assert none == "The cause is not known: no known patch that was tried mends it (a + b)."
    assert conclusion([], [], once) == "The cause is not known: no known patch concerns it here."
    newer = [row("older release", State.PASSES, Kind.RELEASE)]
    assert "does not fail so on 0.5.12/emulated" in conclusion(newer, [], once)
    base = [row(BASE, State.PASSES, Kind.RELEASE), row("patch a", State.FAILS)]
    assert conclusion(base, patches, once) == "A change of the checkout brings it: 0.5.12/emulated does not fail so."
    assert "with a chance of 33%" in conclusion([], [], replace(once, failed=1, judged=5))


def test_the_failure_of_the_seed_is_followed_if_it_is_there() -> None:
    runs = [[OTHER, FAILED], [OTHER]]
    assert failure_of([WANTED], runs) == FAILED
    assert failure_of([Wanted(oracle="ended"), WANTED], runs) == FAILED
    assert failure_of([], runs) == OTHER
    assert failure_of([WANTED], [[OTHER]]) == OTHER
    assert failure_of([WANTED], [[PASSED]]) is None


def test_a_crash_of_a_gpu_is_followed_elsewhere_by_the_oracle_that_the_seed_expects() -> None:
    seed = codec.read(SEEDS / "pr27338-illegal-access.json")
    crash, elsewhere = _stored(seed, Target("0.5.12.post1", "emulated"))
    assert crash.oracle == "ended" and elsewhere == Wanted(oracle="kv_indices")


def test_the_command_on_the_toy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "seed.json", tmp_path / "out.json"
    codec.write(path, Seed(about={}, case=CASE))
    assert main(["explain", str(path), "--target", "stale_req_pool/toy", "--json", str(out)]) == 1
    output = capsys.readouterr().out
    assert "needs: padding" in output and "req_pool_indices[3" in output and "The cause is not known" in output
    form = json.loads(out.read_text())
    states = {entry["switch"]: entry["state"] for entry in form["switches"]}
    assert states["padding off"] == "passes" and states["topk 1"] == "still fails"
    assert form["failure"]["oracle"] == "slot0_padding" and form["exit_code"] == 1
    assert main(["explain", str(path), "--target", "clean/toy"]) == 0
    assert main(["explain", str(path)]) == 3
    assert "--target T" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_the_patch_of_a_seed_is_tried_whatever_the_file_is_called() -> None:
    """Known issues lead to it: the oracle, the setup and the release say enough."""
    used = replace(rigs.rig(lambda target, case: (DONE, [])), source=sglang_path)
    target = Target(NEWEST, "emulated")
    seeds = [patch.seed for patch in CANDIDATE_PATCHES if patch.release == NEWEST]
    assert len(seeds) > 8
    for name in seeds:
        seed = codec.read(SEEDS / f"{name}.json")
        setup, failure = seed.case.setup, wanted_of(seed)
        # In rounds a launch is judged as one of the runner whose graph it is of, which the fingerprint knows.
        wrong = re.match(r"step -?\d+ (.+?)\[", str(seed.about.get("cell", "")))
        named = (failure.oracle, failure.where, wrong[1] if wrong else "")
        runners = (setup.runner, *RUNNER_FACTS[setup.runner].launches)
        runner = next(name for name in runners if fingerprint(name, setup.backend, *named) == seed.about["fingerprint"])
        verdict = replace(FAILED, oracle=failure.oracle, where=failure.where, runner=runner, backend=setup.backend)
        subject = Subject(case=seed.case, target=target, failure=failure, step=0, counts_as=NEWEST)
        tried = [patch.name for patch in known_patches(Path("mine.json"), subject, verdict, used)]
        assert name in tried[:5], (name, tried)


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_a_seed_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The patch is known to be the cause: the seed passes with it alone (python -m repro repairs)."""
    name = "multi-layer-stale-padding"
    out = tmp_path / "out.json"
    options = ["--target", f"{NEWEST}/emulated", "--json", str(out)]
    assert main(["explain", str(SEEDS / f"{name}.json"), *options]) == 1
    form = json.loads(out.read_text())
    assert form["summary"][0].startswith("needs: padding, history, more than one request;")
    assert form["conclusion"].startswith(f"Cause: {name} mends it (0 of 1 runs fail so with it)")
    assert any("multi_layer_eagle.py" in line for line in form["first"])
