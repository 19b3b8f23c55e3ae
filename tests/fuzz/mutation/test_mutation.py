"""Mutants: every operator at the places that it fits, as text that can be put back, and which of them are drawn."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.mutation import equivalents
from fuzz.mutation.directed import CASES_MAX, plan, setups
from fuzz.mutation.mutant import Mutant, sampled
from fuzz.mutation.scope import REACHING_MIN, lines_of, mutants_of, ordered, traced_cases
from fuzz.mutation.sites import mutants
from repro.cases.case import BACKENDS, HAPPENINGS, problems, seq_len_max
from repro.cases.runner_facts import RUNNER_FACTS
from repro.traces.trace import End, RecordedArray, Termination, Trace
from runners.sessions.mutation import edited

pytestmark = pytest.mark.emulated

SOURCE = '''
import bisect
import torch

class Runner:
    def __init__(self, max_bs):
        """Text."""
        self.buffer = torch.zeros((max_bs, 2), dtype=torch.int64)
        self.starts = torch.arange(0, max_bs + 1, step=2)

    @property
    def size(self):
        return len(self.buffer)

    def replay(self, batch, raw_bs, bs):
        if raw_bs > bs:
            raise ValueError("too many")
        index = bisect.bisect_left(self.sizes, raw_bs)
        self.buffer[:raw_bs].copy_(
            batch.seq_lens
        )
        logger.info(f"{raw_bs + 1}")
        if bs != raw_bs and self.padded:
            self.kv_indptr[1 : bs + 1] = max(index, 3)
        for step in range(bs):
            self.call(raw_bs, bs)
        batch.bs = raw_bs * self.topk

@triton.jit
def kernel(x_ptr, stride, N: tl.constexpr):
    at = tl.program_id(0) * stride + tl.arange(0, N)
    x = tl.load(x_ptr + at, mask=at < N, other=0).to(tl.int64)
    tl.store(x_ptr + at, x)
'''
EXPECTED = {
    ("allocation", "self.buffer = torch.zeros((max_bs - 1, 2), dtype=torch.int64)"),
    ("allocation", "self.starts = torch.arange(0, max_bs + 1 - 1, step=2)"),
    ("dtype", "self.buffer = torch.zeros((max_bs, 2), dtype=torch.int32)"),
    ("skipped restore", "pass"),
    ("dropped write", "pass"),
    ("bucket", "index = bisect.bisect_right(self.sizes, raw_bs)"),
    ("raw for padded", "self.buffer[:bs].copy_(batch.seq_lens)"),
    ("slice", "self.buffer[:raw_bs - 1].copy_(batch.seq_lens)"),
    ("guard", "if True:"),
    ("guard", "if bs != raw_bs:"),
    ("indptr", "self.kv_indptr[:bs + 1] = max(index, 3)"),
    ("min for max", "self.kv_indptr[1:bs + 1] = min(index, 3)"),
    ("bound", "for step in range(bs - 1):"),
    ("argument order", "self.call(bs, raw_bs)"),
    ("factor", "batch.bs = raw_bs"),
    ("bound", "x = tl.load(x_ptr + at, mask=at <= N, other=0).to(tl.int64)"),
    ("mask", "x = tl.load(x_ptr + at).to(tl.int64)"),
    ("dtype", "x = tl.load(x_ptr + at, mask=at < N, other=0)"),
    ("term", "at = tl.program_id(0) * stride"),
    ("factor", "at = tl.program_id(0) + tl.arange(0, N)"),
    ("constant", "at = tl.program_id(1) * stride + tl.arange(0, N)"),
}


@pytest.fixture(scope="module")
def everything() -> list[Mutant]:
    return mutants("sglang/srt/x.py", SOURCE)


def test_every_operator_is_at_work(everything: list[Mutant]) -> None:
    assert {(mutant.operator, mutant.new) for mutant in everything} >= EXPECTED
    assert not any("ValueError" in mutant.old or "logger" in mutant.old for mutant in everything)


def test_each_is_a_module_of_as_many_lines_that_differs_in_that_statement(everything: list[Mutant]) -> None:
    for mutant in everything:
        text = edited(SOURCE, mutant.change())
        assert text.count("\n") == SOURCE.count("\n")
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(SOURCE)), mutant
    assert len({mutant.id for mutant in everything}) == len({(m.start, m.end, m.text) for m in everything})


def test_functions_are_named_as_they_are_found_again(everything: list[Mutant]) -> None:
    lines = SOURCE.splitlines()
    begins = {(mutant.function, lines[mutant.first_line - 1].strip()) for mutant in everything}
    assert ("Runner.replay", "def replay(self, batch, raw_bs, bs):") in begins
    assert ("kernel", "@triton.jit") in begins


def test_groups_and_operators_take_turns_and_no_mutant_is_drawn_twice(everything: list[Mutant]) -> None:
    groups = {"a": everything, "b": everything[:10]}
    drawn = list(sampled(groups, 14, seed=3))
    assert drawn == list(sampled(groups, 14, seed=3)) != list(sampled(groups, 14, seed=4))
    assert Counter(name for name, _ in drawn) == {"a": 7, "b": 7}
    assert len({mutant.id for _, mutant in drawn}) == 14
    assert len({mutant.operator for name, mutant in drawn if name == "a"}) == 7
    assert len(list(sampled(groups, None, seed=3))) == len({mutant.id for mutant in everything})


def test_only_what_ran_is_mutated() -> None:
    def seen(path: str, file: str, line: int) -> RecordedArray:
        import numpy as np

        return RecordedArray(step=-1, path=path, name=file, array=np.array([line]))

    backend, runner = "sglang/srt/layers/attention/x.py", "sglang/srt/model_executor/y.py"
    trace = Trace(
        ended=End(how=Termination.DONE),
        seen=(seen("built_lines", backend, 8), seen("built_lines", runner, 8), seen("lines", runner, 19)),
    )
    groups = mutants_of({"draft/triton": {plan("draft", "triton")[0].setup: lines_of([trace])}}, lambda file: SOURCE)
    assert {(mutant.file, mutant.lines[0]) for mutant in groups["draft/triton"]} == {(backend, 8), (runner, 19)}


def test_cases_on_setups_that_run_the_line_come_first(everything: list[Mutant]) -> None:
    mutant = next(mutant for mutant in everything if mutant.function == "kernel")
    plans = {name: plan(name, "triton") for name in ("draft", "decode")}
    setups = {name: list(traced_cases(cases)) for name, cases in plans.items()}
    nowhere, there = {mutant.file: frozenset({1})}, {mutant.file: frozenset({mutant.lines[0]})}
    ran = {
        name: {setup: there if n == 1 else nowhere for n, setup in enumerate(of_runner)}
        for name, of_runner in setups.items()
    }
    tried = ordered(mutant, plans, ran)
    rest = [case for _, case in tried if case.setup not in (setups["draft"][1], setups["decode"][1])]
    assert len(tried) - len(rest) == 2 * REACHING_MIN  # more than the plans have
    assert rest and tried[-len(rest) :] == [entry for entry in tried if entry[1] in rest]
    reaching = [(name, case.setup) for name, case in tried[:2]]
    assert reaching == [("draft", setups["draft"][1]), ("decode", setups["decode"][1])]
    others = [case.setup for _, case in tried[2:]]
    last = max(n for n, setup in enumerate(others) if setup in (setups["draft"][1], setups["decode"][1]))
    assert last < len([case for _, case in tried[2:] if case.setup in (setups["draft"][1], setups["decode"][1])])


def test_what_several_runners_run_is_soon_tried_on_different_setups(everything: list[Mutant]) -> None:
    mutant = next(mutant for mutant in everything if mutant.function == "kernel")
    plans = {name: plan(name, "triton") for name in ("draft", "decode", "verify")}
    there = {mutant.file: frozenset({mutant.lines[0]})}
    ran = {name: {case.setup: there for case in cases} for name, cases in plans.items()}
    setups = {name: list(traced_cases(cases)) for name, cases in plans.items()}
    tried = ordered(mutant, plans, ran)
    assert [setups[name].index(case.setup) for name, case in tried[:6]] == [0, 1, 2, 1, 2, 3]
    assert len({id(case) for _, case in tried}) == sum(len(cases) for cases in plans.values())


def test_setups_that_take_another_way_through_a_function_come_soon(everything: list[Mutant]) -> None:
    mutant = next(mutant for mutant in everything if mutant.function == "Runner.replay")
    cases = plan("draft", "triton")
    usual, last = frozenset({mutant.lines[0]}), list(traced_cases(cases))[-1]
    ran = {"draft": {case.setup: {mutant.file: usual} for case in cases}}
    assert [case.setup for _, case in ordered(mutant, {"draft": cases}, ran)].index(last) > 10
    ran["draft"][last] = {mutant.file: usual | {mutant.last_line}}
    assert ordered(mutant, {"draft": cases}, ran)[1][1].setup == last
    # What differs outside of the function is another matter.
    ran["draft"][last] = {mutant.file: usual | {mutant.last_line + 1}}
    assert [case.setup for _, case in ordered(mutant, {"draft": cases}, ran)].index(last) > 10


@pytest.mark.slow
@pytest.mark.parametrize("runner", [name for name in RUNNER_FACTS if name != "toy"])
def test_each_runner_has_directed_cases(runner: str) -> None:
    for backend in RUNNER_FACTS[runner].backends:
        assert backend in BACKENDS
        cases = plan(runner, backend)
        assert 15 <= len(cases) <= CASES_MAX
        assert not any(problems(case) for case in cases)
        first = cases[0]
        # The full bucket with everybody at the longest length, and then fewer.
        assert {r.seq_len + r.further for r in first.steps[0].requests} == {seq_len_max(first.setup)}
        # A prompt's first token needs no round.
        further = [any(r.further for r in step.requests) for step in first.steps]
        assert further == [RUNNER_FACTS[runner].serves] * len(first.steps)
        assert [len(step.requests) for step in first.steps][:2] == [first.setup.max_bs, 1]
        assert len({case.setup for case in cases}) == len(traced_cases(cases)) >= 3
        assert {case.setup for case in cases} >= set(setups(runner, backend)), "each setup has one"
        assert max(seq_len_max(case.setup) for case in cases) > 512


def test_requests_that_are_served_are_retracted_aborted_and_joined() -> None:
    cases = plan("round", "triton", fits=lambda setup: setup.disagreement > 0)
    firsts = {case.setup: case for case in reversed(cases)}
    assert {setup.overlap for setup in firsts} == {setup.page_size > 1 for setup in firsts} == {False, True}
    assert any(setup.pool and setup.chunk for setup in firsts)
    for case in firsts.values():
        happens = {step.happens: step for step in case.steps}
        assert happens.keys() == {"", *HAPPENINGS}
        assert not happens["retract"].requests, "an iteration that prefills retracts nothing"


def test_what_is_kept_as_equivalent_is_whole_and_has_reasons(tmp_path: Path) -> None:
    for reason in equivalents.read().reasons.values():
        assert len(reason) > 10
    bad = tmp_path / "bad.toml"
    entry = '[[equivalent]]\nfile = "f"\nfunction = "g"\nold = "a"\nnew = "b"\n'
    bad.write_text(entry)
    with pytest.raises(equivalents.BadEquivalents, match="no reason"):
        equivalents.read(bad)
    bad.write_text(2 * (entry + 'reason = "because"\n'))
    with pytest.raises(equivalents.BadEquivalents, match="twice"):
        equivalents.read(bad)


def test_what_holds_of_a_kernel_holds_where_its_file_lay_before() -> None:
    """One of 0.5.23 by an entry for 0.5.15's file, and by a family of such files."""
    file = "kernels/ops/attention/extend_attention.py"
    text = "def f():\n    if SLIDING_WINDOW_SIZE > 0:\n        g()\n"
    wider = next(m for m in mutants(f"sglang/{file}", text) if m.text.strip() == "(SLIDING_WINDOW_SIZE >= 0)")
    assert "no window" in equivalents.read().reason(wider)
    key = ("sglang/srt/layers/attention/triton_ops/extend_attention.py", *wider.key[1:])
    assert equivalents.Equivalents(reasons={key: "because"}).reason(wider) == "because"
    assert not equivalents.Equivalents(reasons={key: "because"}).reason(replace(wider, file="sglang/other.py"))


FEATURES = """
def replay(self, batch, raw_bs):
    if self.pp_size > 1:
        batch.x = raw_bs
    if self.padded and batch.encoder_lens is not None:
        pass_on(batch)
    lens = batch.encoder_lens[:raw_bs] if batch.is_encoder_decoder else None
    batch.rids_int = lens
    torch.cuda.synchronize()
    kwargs["pp_proxy_tensors"] = raw_bs
    if config := hisparse_config(batch):
        torch.cuda.synchronize()
"""


def test_code_that_is_about_a_feature_of_no_setup_alone_is_not_mutated() -> None:
    made = {(mutant.line, mutant.operator, mutant.text.strip()) for mutant in mutants("x.py", FEATURES)}
    assert {line for line, *_ in made} == {4, 5, 6}
    # A condition that is half about it can still be true or false as a whole.
    assert {text for line, _, text in made if line == 5} == {"(True)", "(False)", "(batch.encoder_lens is not None)"}


def test_expressions_that_are_never_evaluated_are_not_mutated() -> None:
    source = "def f(self, a, b):\n    x = self.y[a + 1] if self.on else a + b\n"
    every = {mutant.part for mutant in mutants("x.py", source)}
    assert {"a + 1", "a + b"} <= every
    setup = plan("draft", "triton")[0].setup
    ran = {"draft/triton": {setup: {"x.py": frozenset({2})}}}
    line = source.splitlines()[1]
    first, last = line.index("a + b"), len(line)
    places = {"x.py": frozenset({(2, line.index("self.on"), 2, line.index(" else")), (2, first, 2, last)})}
    kept = {mutant.part for mutant in mutants_of(ran, lambda file: source, places)["draft/triton"]}
    assert kept == {"a + b", line.removeprefix("    x = ")}
    assert {mutant.part for mutant in mutants_of(ran, lambda file: source)["draft/triton"]} == every


def test_a_family_gives_its_reason_for_each_of_its_mutants(tmp_path: Path, everything: list[Mutant]) -> None:
    none, families = tmp_path / "none.toml", tmp_path / "families.toml"
    none.write_text("")
    families.write_text("[[family]]\noperator = 'dtype'\npart = 'torch\\.int64'\nreason = 'why'\n")
    kept = equivalents.read(none, families)
    assert {mutant.operator for mutant in everything if kept.reason(mutant) == "why"} == {"dtype"}
    for text, problem in (("operator = 'dtype'", "needs a reason"), ("reason = 'why'\nplace = 'x'", "asks for some")):
        families.write_text(f"[[family]]\n{text}\n")
        with pytest.raises(equivalents.BadEquivalents, match=problem):
            equivalents.read(none, families)
    assert all(family.reason.endswith(".") for family in equivalents.read().families)
