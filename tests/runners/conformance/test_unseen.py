"""A release that no adapter was made for: what works works, what does not is an error that names the adapter."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracles.catalogue import judge_all, overall
from repro.cases.case import Target
from repro.traces.finding import Status
from repro.traces.trace import Termination
from runners.conformance.jobs import jobs
from runners.processes.pool import Pool
from runners.releases.catalogue import UNKNOWN, is_adapted, numbered

pytestmark = pytest.mark.emulated

# One that is as it was, and some that have changed since.
ASKED = ("kv_move", "decode", "draft", "verify_eager")


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.5.23", "0.5.23"),
        ("0.5.15.post1", "0.5.15.post1"),
        ("0.5.24.dev12+gabc", "0.5.24.dev12"),
        ("0.5.24rc1.dev3+g1", "0.5.24rc1.dev3"),
        ("0.0.0.dev0", UNKNOWN),
        ("main", UNKNOWN),
    ],
)
def test_a_version_counts_as_a_release(version: str, release: str) -> None:
    assert numbered(version) == release
    assert is_adapted(numbered(version)) == (version in ("0.5.23", "0.5.15.post1"))


@pytest.mark.exhaustive
@pytest.mark.emulated("0.5.23")
def test_an_unseen_release_gives_runs_or_errors_that_name_the_adapter(tmp_path: Path) -> None:
    some = [job for job in jobs() if job.runner in ASKED and (job.backend, job.algorithm) == ("triton", "EAGLE")]
    ended = {}
    session = "tests.builders.older_adapters_session"
    with Pool(Target("0.5.23", "emulated"), fresh=True, session=session, log=tmp_path / "log") as pool:
        for job in some:
            trace = pool.run(job.case)
            ended[job.runner] = trace.ended.how
            assert trace.facts["adapted"] == "no: newer than every adapter", trace.ended
            failed = [verdict for verdict in judge_all(job.case, trace) if verdict.status is Status.FAIL]
            if trace.ended.how is Termination.DONE:
                assert overall(judge_all(job.case, trace)) is Status.PASS
                continue
            # Nothing that anybody would shrink.
            assert (trace.ended.how, failed) == (Termination.ERROR, []), (job, trace.ended)
            # Named after the newest of its parts: the workers of 0.5.17.
            assert f"the {job.runner} runner's adapter 0.5.17" in trace.ended.what
    assert set(ended) == set(ASKED)
    assert Termination.ERROR in ended.values()
