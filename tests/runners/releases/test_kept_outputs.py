"""Values handed over and kept by a worker are looked at again when later calls have run."""

from __future__ import annotations

import numpy as np
import pytest

from oracles import kept_outputs
from oracles.catalogue import judge_all
from repro.cases.case import Case, Target
from repro.traces.finding import Status
from repro.traces.trace import End, RecordedArray, Termination, Trace
from repro.upstream.edits import Edit
from runners.processes.pool import Pool
from tests.builders.cached import change
from tests.builders.caches import RELEASE
from tests.builders.cases import FULL, PADDED, PAIR, case_of, setup_of

RUNNER = "sglang/srt/speculative/eagle_draft_extend_cuda_graph_runner.py"
FUNCTION = "EAGLEDraftExtendCudaGraphRunner.execute"
# The runner hands out its graph's own memory; and it keeps what it was given, and changes it later.
VIEW = Edit(file=RUNNER, function=FUNCTION, old="out.hidden_states[:raw_bs].clone()", new="out.hidden_states[:raw_bs]")
KEPT = Edit(
    file=RUNNER,
    function=FUNCTION,
    old="raw_bs = forward_batch.batch_size",
    new="""
raw_bs = forward_batch.batch_size
if getattr(self, "_last_lens", None) is not None:
    self._last_lens += 1
self._last_lens = forward_batch.seq_lens
""",
)


def recorded(**rows: list[int]) -> Trace:
    arrays = {"compared": np.asarray(3)} | {name.replace("_", ".", 1): np.array(at) for name, at in rows.items()}
    seen = tuple(RecordedArray(step=1, path="kept", name=name, array=array) for name, array in arrays.items())
    return Trace(ended=End(how=Termination.DONE), seen=seen)


def test_rows_that_changed_are_named() -> None:
    case = case_of(setup_of("draft_extend"), FULL, PAIR)
    [passed] = kept_outputs.judge(case, recorded(**{"0_next_hidden_states": []}))
    assert passed.status is Status.PASS
    [verdict] = kept_outputs.judge(case, recorded(**{"0_next_hidden_states": [2, 3], "0_caller's seq_lens": []}))
    assert (verdict.status, verdict.where) == (Status.FAIL, "next_hidden_states after a later call")
    assert verdict.detail == "Row 2 of next_hidden_states of step 0 has changed by the end of step 1's graph."
    [nothing] = kept_outputs.judge(case, Trace(ended=End(how=Termination.DONE)))
    assert nothing.status is Status.UNKNOWN


@pytest.mark.emulated(RELEASE)
def test_what_a_worker_keeps_and_what_it_handed_over_stays_as_it_was() -> None:
    case = case_of(setup_of("draft_extend"), FULL, PADDED, PAIR)

    def judged(pool: Pool, case: Case) -> dict[str, tuple[str, Status]]:
        return {v.oracle: (v.where, v.status) for v in judge_all(case, pool.run(case)) if v.oracle == "kept_outputs"}

    with Pool(Target(RELEASE, "emulated"), timeout_s=120, session="tests.builders.cached_session") as pool:
        assert judged(pool, case)["kept_outputs"][1] is Status.PASS
        pool.change(change([VIEW]))
        where = "next_hidden_states after a later call"
        assert judged(pool, case) == {"kept_outputs": (where, Status.FAIL)}
        pool.change(change([KEPT]))
        assert judged(pool, case) == {"kept_outputs": ("caller's seq_lens after a later call", Status.FAIL)}
