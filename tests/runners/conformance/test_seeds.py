"""The committed seeds: each says on every release what its file expects there."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from oracles.catalogue import ALL, judge_all, overall
from repro.cases import codec
from repro.cases.case import ENGINES, engine_refuses
from repro.cases.release_list import ADAPTED, has_runner
from repro.cases.releases import expected
from repro.cases.runner_facts import WITHOUT_STEPS
from repro.traces.finding import Status
from runners.processes.pool import Pool
from runners.targets.mended import counts_as
from tests.builders.project import PROJECT

SEEDS = sorted(PROJECT.glob("repro/seeds/*.json"))
ORACLES = {judge.__module__.removeprefix("oracles.") for judge in ALL}

every_seed = pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
# Rounds take longest: `make test` runs these alone.
ROUNDS = {"round-plan-without-a-wait", "round-draft-branches-share-a-window", "round-retracted-loses-a-logprob"}


def is_dear(name: str) -> bool:
    """True for most rounds, and for a seed that compiles."""
    return (name.startswith("round-") and name not in ROUNDS) or name == "pr26292-cpu-decode"


each_run = pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.exhaustive if is_dear(path.stem) else ()) for path in SEEDS],
    ids=lambda path: path.stem,
)


def test_there_are_seeds() -> None:
    assert "pr23037-stale-padding" in {path.stem for path in SEEDS}


@every_seed
def test_a_seed_is_small_and_says_what_it_expects_everywhere(path: Path) -> None:
    seed = codec.read(path)
    assert codec.dumps(seed) == path.read_text(), "written as the codec writes it"
    setup = seed.case.setup
    having = [release for release in ADAPTED if has_runner(release, setup.runner, setup.backend)]
    outcomes = {release: expected(seed.about, release) for release in having}
    # An expectation of a release that cannot drive the runner fails there, and `make test` drives no such release.
    lacking = [release for release in ADAPTED if release not in having]
    assert not [release for release in lacking if expected(seed.about, release) is not None]
    later = (
        setup.adaptive,
        setup.rejection,
        setup.swa,
        setup.family,
        setup.prefill_max_bs,
        setup.algorithm in WITHOUT_STEPS,
    )
    if any(later):  # none in the oldest
        outcomes = dict(itertools.dropwhile(lambda each: each[1] is None, outcomes.items()))
    assert None not in outcomes.values(), outcomes
    by_engine = [expected(seed.about, release, engine) for release in outcomes for engine in ENGINES]
    assert {oracle for oracle in [*outcomes.values(), *by_engine] if oracle} <= ORACLES
    assert {"found", "oracle", "where", "fingerprint"} <= seed.about.keys()
    assert len(seed.case.steps) <= 4
    assert max(len(step.requests) for step in seed.case.steps) <= 4
    # One that passes everywhere keeps no bug from coming back.
    assert any(outcomes.values())


def _without_folders(where: str) -> str:
    return re.sub(r"\S+/(?=\w+\.py)", "", where)


@each_run
def test_a_seed_does_what_it_says(path: Path, pool: Pool) -> None:
    seed = codec.read(path)
    oracle = expected(seed.about, counts_as(pool.target), pool.target.engine)
    if oracle is None:
        pytest.skip(f"the seed has no expectation for {pool.target}")
    if engine_refuses(seed.case.setup, pool.target.engine):
        pytest.skip("this runner runs on a CPU")
    trace = pool.run(seed.case)
    assert trace.ended.how.took_place, trace.ended
    verdicts = judge_all(seed.case, trace)
    if oracle:
        mine = {verdict.fingerprint: verdict for verdict in verdicts if verdict.oracle == oracle}
        assert {verdict.status for verdict in mine.values()} == {Status.FAIL}
        if oracle == seed.about["oracle"]:
            same = mine.get(str(seed.about["fingerprint"]))
            # Some files have moved between folders.
            wheres = {same.where} if same else {_without_folders(verdict.where) for verdict in mine.values()}
            assert (seed.about["where"] if same else _without_folders(str(seed.about["where"]))) in wheres
    else:
        assert overall(verdicts) is Status.PASS, verdicts
