"""sglang's own probes: the oracle that reads them, where they are, and that each fires on what it is there for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fuzz import __main__ as fuzz_command
from oracles import probes
from oracles.catalogue import judge_all
from repro import __main__ as repro_command
from repro.cases import codec
from repro.cases.case import Case, Request, Setup, Step, Target, problems
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.finding import Status
from repro.traces.trace import End, Termination, Trace
from runners.processes.pool import Pool
from runners.targets.environments import PROBES, sglang_path, worker_environment
from tests.builders.probe_sites import Site, sites


def ended(detail: str, how: Termination = Termination.RAISED) -> Trace:
    return Trace(ended=End(how=how, step=1, path="graph", what="RuntimeError", detail=detail), facts={"probes": "on"})


def told(trace: Trace) -> tuple[Status, str]:
    verdict = probes.judge(CASES[0], trace)
    return verdict.status, verdict.where


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ("RuntimeError: NaN detected! draft_forward step 2", "NaN at draft_forward step N"),
        ("RuntimeError: Inf detected! draft_extend_for_prefill", "Inf at draft_extend_for_prefill"),
        ("RuntimeError: index < 0 (negative / unmasked sentinel?): set_kv_buffer (MHA)", "set_kv_buffer (MHA)"),
        ("RuntimeError: index >= 528 (out of range): move_kv_cache tgt_loc", "move_kv_cache tgt_loc"),
        (
            "RuntimeError: OOB indices not in [0, 128): draft_forward step 1: topk_index",
            "draft_forward step N: topk_index",
        ),
        ("RuntimeError: page-misaligned indices (page_size=16): here", "page misaligned at here"),
        ("x.cu:1: block: [0,0,0] Assertion `NaN detected! verify: target model logits` failed.", "NaN at verify"),
    ],
)
def test_what_a_probe_said_is_named(message: str, where: str) -> None:
    source = '    torch._assert_async(cond, f"NaN detected! {msg}")\n'
    status, place = told(ended(f"Traceback:\n{source}{message}\nmore"))
    assert status is Status.FAIL
    assert where in place
    assert "{msg}" not in place


def test_without_a_probe_that_fires_it_passes() -> None:
    assert told(ended("", Termination.DONE)) == (Status.PASS, "")


def test_another_end_is_no_probe() -> None:
    assert told(ended("RuntimeError: something else")) == (Status.UNKNOWN, "the run ended before all was probed")


def test_with_probes_off_it_does_not_know() -> None:
    assert told(Trace(ended=End(how=Termination.DONE), facts={})) == (Status.UNKNOWN, probes.OFF)


def test_the_variable_turns_them_on_in_every_release(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("SGLANG_SPEC_NAN_DETECTION", "SGLANG_SPEC_OOB_DETECTION", "SGLANG_ENABLE_ASYNC_ASSERT")
    for name in (PROBES, *names):
        monkeypatch.delenv(name, raising=False)
    toy = Target("1", "toy")
    for value, variable in (("", None), ("0", None), ("1", "1")):
        monkeypatch.setenv(PROBES, value)
        environment = worker_environment(toy)
        assert [environment.get(name) for name in names] == [variable] * 3


@pytest.mark.slow
def test_both_commands_have_an_option_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = tmp_path / "seed.json"
    codec.write(seed, codec.Seed(case=case("toy")))
    for command, arguments in (
        (repro_command.main, ["run", str(seed), "--quiet"]),
        (fuzz_command.main, ["run", "--cases", "1", "--out", str(tmp_path / "out")]),
    ):
        for option, variable in (([], "0"), (["--probes"], "1")):
            monkeypatch.setenv(PROBES, "0")
            assert command([*arguments, "--target", "clean/toy", *option]) == 0, capsys.readouterr()
            assert os.environ[PROBES] == variable


def test_sites_are_found_in_the_source(tmp_path: Path) -> None:
    file = tmp_path / "sglang" / "srt" / "speculative" / "some.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "def maybe_detect_nan(x, msg):\n    maybe_detect_inf(x)\n"
        "class Worker:\n    def run(self):\n        if self.on:\n"
        "            maybe_detect_oob(\n                self.x, 0, 1, 'm')\n"
        "def free():\n    return maybe_detect_nan(1, 'n')\n"
    )
    module = "sglang.srt.speculative.some"
    assert sites(tmp_path) == (
        Site(module=module, function="Worker.run", kind="oob", line=6),
        Site(module=module, function="free", kind="nan", line=9),
    )


def case(runner: str, **changes: Any) -> Case:
    setup = {"topk": 1, "num_steps": 3, "num_draft_tokens": 4, "capture_bs": (1, 2), "slots": 4, "context_len": 128}
    accepted = 1 if RUNNER_FACTS[runner].accepts else 0
    requests = (
        Request(slot=1, seq_len=9, data=2, accepted=accepted),
        Request(slot=3, seq_len=19, data=4, accepted=accepted),
    )
    return Case(setup=Setup(runner=runner, **{**setup, **changes}), steps=(Step(requests=requests),))


CASES = (
    case("draft", topk=2),
    case("kv_move", topk=2, page_size=16),
    case("verify_eager"),
    case("frozen_kv_mtp"),
)
# Why a site is not reached, by the end of its module's name and of its function's.
NOT_REACHED = {
    "MHATokenToKVPoolFP4": "no cache of four bits is driven",
    "MLATokenToKVPool": "no model with latent attention is driven",
    "eagle_info.EagleVerifyInput": "EAGLE's first workers are not driven",
    "EagleVerifyInputV2Mixin.sample": "sampling needs native kernels; a verify is driven up to it",
    "prepare_for_extend_to_fill_draft_kvcache": "prefill is not driven",
    "_draft_extend_for_prefill": "prefill is not driven",
    "_draft_extend_for_decode": "the draft_extend runner is driven below its worker",
    "FrozenKVMTPWorker.verify": "its runner is driven in draft only",
    "MultiLayerEagleDraftWorker.draft_forward": "prefill is not driven",
    "MultiLayerEagleWorkerV2.verify": "attention has no metadata before it: the finding of test_verify_eager.py",
}
# What fires when a variable alone is set; "flag": whether the server has --enable-nan-detection.
BEFORE = {
    "": [],
    "SGLANG_SPEC_NAN_DETECTION": ["nan"],
    "SGLANG_SPEC_OOB_DETECTION": ["oob"],
    "SGLANG_ENABLE_ASYNC_ASSERT": [],
    "flag": ["enable_nan_detection"],
}
SINCE = {
    "": [],
    "SGLANG_SPEC_NAN_DETECTION": [],
    "SGLANG_SPEC_OOB_DETECTION": [],
    "SGLANG_ENABLE_ASYNC_ASSERT": ["nan", "inf", "oob", "page_aligned"],
    "flag": [],
}


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A pool whose sessions plant. good: each case with nothing planted and all probes on."""

    release: str
    pool: Pool
    plan: Path
    good: list[Trace] = field(default_factory=list)

    @property
    def reached(self) -> dict[tuple[str, int, str], Case]:
        """Per site the first case that reaches it."""
        planted: dict[tuple[str, int, str], Case] = {}
        for case, trace in zip(CASES, self.good, strict=True):
            for module, line, kind in json.loads(trace.facts["probed"]):
                planted.setdefault((module, line, kind), case)
        return planted

    def run(self, case: Case, on: bool, *plant: tuple[str, int, str]) -> Trace:
        self.plan.write_text(json.dumps({"on": on, "plant": plant}))
        return self.pool.run_fresh(case)


@pytest.fixture(scope="module", params=["0.5.12.post1", "0.5.13"])
def planted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    folder = tmp_path_factory.mktemp("plan")
    plan, variables = folder / "plan.json", {"EAGLEEYE_PLAN": str(folder / "plan.json")}
    target = Target(request.param, "emulated")
    with Pool(target, log=folder / "log", session="tests.builders.planting_session", variables=variables) as pool:
        planted = Planted(release=request.param, pool=pool, plan=plan)
        planted.good.extend(planted.run(case, True) for case in CASES)
        yield planted


both_sides = pytest.mark.emulated("0.5.12.post1", "0.5.13")


@pytest.mark.exhaustive
@both_sides
def test_good_input_fires_no_probe(planted: Planted) -> None:
    for case, trace in zip(CASES, planted.good, strict=True):
        assert problems(case) == []
        assert trace.ended.how is Termination.DONE, trace.ended
        assert probes.judge(case, trace).status is Status.PASS
    assert {kind for _, _, kind in planted.reached} >= {"nan", "oob"}


@pytest.mark.exhaustive
@both_sides
def test_the_variables_changed_and_the_flag_went(planted: Planted) -> None:
    assert json.loads(planted.good[0].facts["direct"]) == (BEFORE if planted.release == "0.5.12.post1" else SINCE)


@pytest.mark.exhaustive
@both_sides
def test_every_site_is_reached_or_it_is_known_why_not(planted: Planted) -> None:
    source = {(s.module, s.line, s.kind): f"{s.module}.{s.function}" for s in sites(sglang_path(planted.pool.target))}
    reached = planted.reached
    assert reached.keys() <= source.keys()
    unexplained = [
        place
        for site, place in source.items()
        if site not in reached and not any(part in place for part in (*NOT_REACHED, *FIRST_WORKERS))
    ]
    assert unexplained == []


# Workers of before EAGLE v2, of which some releases still have probes.
FIRST_WORKERS = (
    "eagle_worker.EAGLEWorker",
    "multi_layer_eagle_worker.MultiLayerEagleWorker",
    "FrozenKVMTPWorker._run_assistant_seed_step",
)


@pytest.mark.exhaustive
@both_sides
def test_what_is_planted_makes_its_probe_fire_and_name_the_site(planted: Planted) -> None:
    wheres = {}
    for site, case in planted.reached.items():
        trace = planted.run(case, True, site)
        [verdict] = [v for v in judge_all(case, trace) if v.oracle == "probes"]
        assert verdict.status is Status.FAIL, (site, trace.ended)
        assert verdict.where.startswith({"nan": "NaN at ", "inf": "Inf at ", "oob": "out of bounds at "}[site[2]])
        wheres[site] = verdict.where
    # Within a module no two sites of a kind are told alike.
    assert len({(site[0], site[2], where) for site, where in wheres.items()}) == len(wheres)


@pytest.mark.exhaustive
@both_sides
def test_with_probes_off_nothing_fires(planted: Planted) -> None:
    for case in CASES:
        trace = planted.run(case, False, *planted.reached)
        assert trace.ended.how is Termination.DONE, trace.ended
        passed = {(module, line, kind) for module, line, kind in json.loads(trace.facts["planted"])}
        assert passed >= {site for site, first in planted.reached.items() if first is case}
