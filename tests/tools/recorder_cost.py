"""The cost of recording, in parts of a step: python -m tests.tools.recorder_cost --target 0.5.23/cuda.

Rounds of sglang's own scheduler, with the recorder and without it, one after the other in fresh processes; and the
time of a recorded call by itself, by its number of requests.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from repro.cases.case import Case, Request, Setup, Step, Target
from runners.processes.pool import Pool
from runners.recorder import ring
from runners.recorder.recorder import Recorder

CHAIN = Setup(
    runner="round", topk=1, num_steps=3, num_draft_tokens=4, capture_bs=(1, 2, 4, 8), slots=8, context_len=256
)
REQUESTS = tuple(Request(slot=slot, seq_len=20 + slot, data=slot, further=180) for slot in range(1, 9))
CALLS = 20000


class _Lengths(list[int]):
    is_cpu = True

    def tolist(self) -> list[int]:
        return list(self)


def call_seconds(requests: int) -> float:
    """The processor seconds of a call that is recorded, without the call."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder))
        runner = SimpleNamespace(capture_bs=[1, 64, 256], captured_req_width=4, model_runner=None)
        mode = SimpleNamespace(name="DECODE")
        batch = SimpleNamespace(batch_size=requests, seq_lens_cpu=_Lengths(range(requests)), forward_mode=mode)
        recorder.running(SimpleNamespace(reqs=[SimpleNamespace(req_pool_idx=slot) for slot in range(requests)]))
        start = time.process_time()
        for _ in range(CALLS):
            recorder.leave(recorder.enter(runner, "draft", batch, True))
        return (time.process_time() - start) / CALLS


def step_seconds(target: Target, session: str, overlap: bool) -> tuple[float, int]:
    """The seconds of an iteration of the scheduler's loop in rounds of eight requests, and calls that were recorded."""
    case = Case(setup=replace(CHAIN, overlap=overlap), steps=(Step(requests=REQUESTS),))
    with tempfile.TemporaryDirectory() as folder:
        with Pool(target, timeout_s=600, session=session, variables={"EAGLEEYE_X": folder}) as pool:
            pool.run(case)  # what is compiled at the first call
            trace = pool.run(case)
        recorded = [len(ring.read(path.read_bytes()).calls) for path in Path(folder).glob("*.ring")]
    return trace.seconds["graph"] / int(trace.facts["iterations"]), sum(recorded)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=Target.parse)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--overlap", action="store_true")
    options = parser.parse_args()
    for requests in (1, 8, 64, 256):
        print(f"a recorded call of {requests} requests: {call_seconds(requests) * 1e6:.1f} us")
    if not options.target:
        return
    sessions = {"without": "", "with": "tests.builders.recorded_session"}
    seconds: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(options.times):
        for name, session in sessions.items():
            step, calls = step_seconds(options.target, session, options.overlap)
            assert bool(calls) == bool(session)
            seconds[name].append(step)
            print(f"{name} the recorder: {step * 1e3:.3f} ms a step, {calls} calls")
    without, recorded = (statistics.median(seconds[name]) for name in ("without", "with"))
    print(f"medians {without * 1e3:.3f} and {recorded * 1e3:.3f} ms a step: {100 * (recorded / without - 1):+.2f} %")


if __name__ == "__main__":
    main()
