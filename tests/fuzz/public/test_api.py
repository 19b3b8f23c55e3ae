"""The public API and the pytest plugin, used by a test suite outside of this project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from eagleeye import api
from repro.cases import codec
from repro.cases.case import problems
from repro.cases.codec import Seed
from tests.builders.project import PROJECT
from tests.repro.test_repro_main import CASE

PUBLIC = PROJECT / "fuzz" / "public"
SUITE = """
from hypothesis import HealthCheck, given, settings
from eagleeye.api import Status, Target, cases

def test_the_target(target):
    assert isinstance(target, Target) and target.engine == "toy"

def test_a_stored_case(replay):
    run = replay("seed.json")
    assert run.passed, run

@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases("toy", page_size=1, capture_bs=[2, 4]))
def test_drawn_cases(run_case, case):
    assert case.setup.capture_bs == (2, 4)
    run = run_case(case)
    assert not run.failures, run

def test_nothing_of_eagleeye():
    assert True
"""


def suite(folder: Path, *words: str, ini: str = "") -> subprocess.CompletedProcess[str]:
    """pytest on the suite, in a process that knows eagleeye as one that has it installed does."""
    codec.write(folder / "seed.json", Seed(about={}, case=CASE))
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "eagleeye.pytest_plugin", "-p", "no:cacheprovider", *words]
    variables = {**os.environ, "PYTHONPATH": f"{PROJECT}:{PUBLIC}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)


def test_an_outside_suite_fails_on_a_broken_target_alone(tmp_path: Path) -> None:
    done = suite(tmp_path, "--target", "clean/toy", "--target", "stale_req_pool/toy", "-k", "target or stored")
    assert done.returncode == 1 and "1 failed, 3 passed" in done.stdout, done.stdout
    assert "FAILED test_suite.py::test_a_stored_case[stale_req_pool/toy]" in done.stdout
    assert "stale_req_pool/toy: FAIL" in done.stdout and "slot0_padding at padded rows" in done.stdout


def test_the_target_may_be_in_the_ini_file_and_must_be_somewhere(tmp_path: Path) -> None:
    done = suite(tmp_path, ini="eagleeye_target = clean/toy")
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout
    done = suite(tmp_path)
    assert done.returncode == 1 and "--target RELEASE/ENGINE or PATH@ENGINE" in done.stdout
    assert "1 passed, 3 errors" in done.stdout
    absent = suite(tmp_path, "--target", "0.5.99/emulated", "-k", "stored")
    assert absent.returncode == 1 and "to install it:" in absent.stdout, absent.stdout


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=api.cases(backend="fa3", page_size=16, speculative_eagle_topk=4, having=["enable_dp_attention"]))
def test_strategies_are_narrowed_by_sglangs_names(case: api.Case) -> None:
    setup = case.setup
    assert problems(case) == [] and setup.backend == "fa3" and setup.dp_attention
    assert (setup.page_size, setup.topk) == (16, 4)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=api.cases(near=PROJECT / "repro/seeds/draft-sum-of-raw-batch.json"))
def test_a_strategy_around_a_seed(case: api.Case) -> None:
    assert problems(case) == [] and (case.setup.runner, case.setup.backend) == ("draft", "flashinfer")


def test_what_no_setup_has_is_refused_when_the_strategy_is_made() -> None:
    with pytest.raises(api.BadOption, match="page_sise: no such option"):
        api.cases(page_sise=16)
    with pytest.raises(api.HarnessError, match="to install it"):
        api.run_case(CASE, "0.5.99/emulated")


def test_a_run_says_what_it_came_to() -> None:
    with api.opened("stale_req_pool/toy") as session:
        run = session.run_case(CASE)
        assert not run.passed and run.status is api.Status.FAIL and run.failures
        assert str(run).startswith("stale_req_pool/toy: FAIL\n")
    assert api.run_case(CASE, "clean/toy").passed
    assert all(hasattr(api, name) for name in api.__all__) and (PUBLIC / "eagleeye" / "py.typed").exists()
