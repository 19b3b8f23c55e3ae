"""A sglang of a few lines, with the classes that the recorder wraps, and servers that run it."""

from __future__ import annotations

from pathlib import Path

_RUNNER = """
class EAGLEDraftCudaGraphRunner:
    capture_bs, captured_req_width = [1, 2, 4], 2

    def __init__(self, model_runner):
        self.model_runner = model_runner

    def can_run_graph(self, forward_batch):
        return forward_batch.batch_size <= 4

    def execute(self, forward_batch):
        if forward_batch.fails:
            raise IndexError("index 9 is out of bounds")
        return "drafts"
"""
_SCHEDULER = """
from sglang.srt.speculative.eagle_draft_cuda_graph_runner import EAGLEDraftCudaGraphRunner


class Thing:
    def __init__(self, **values):
        self.__dict__.update(values)


class Scheduler:
    def __init__(self, arguments, fails_at):
        self.runner = EAGLEDraftCudaGraphRunner(Thing(server_args=Thing(**arguments), tp_rank=0))
        self.fails_at = fails_at

    def run_batch(self, batch):
        lengths = Lengths([each.length for each in batch.reqs])
        mode = Thing(name="DECODE")
        forward = Thing(
            batch_size=len(lengths), seq_lens_cpu=lengths, forward_mode=mode, fails=batch.number == self.fails_at
        )
        return self.runner.execute(forward) if self.runner.can_run_graph(forward) else "eager"

    def event_loop_normal(self, batches):
        for batch in batches:
            assert self.run_batch(batch) in ("drafts", "eager")


class Lengths(list):
    is_cpu = True

    def tolist(self):
        return list(self)


class OnDevice(Lengths):
    # They may not be read from the host, but copied.
    is_cpu, dtype = False, "int64"

    def tolist(self):
        raise AssertionError("a wait for the device")

    def __getitem__(self, part):
        return OnDevice(list.__getitem__(self, part))


def batch(number, *pairs):
    reqs = [Thing(req_pool_idx=slot, length=length, origin_input_ids=[424242], rid="SECRET") for slot, length in pairs]
    return Thing(number=number, reqs=reqs)
"""
_SERVER = """
import os, signal, sys
from sglang.srt.managers.scheduler import Scheduler, batch
ARGUMENTS = dict(
    model_path="SECRET", api_key="SECRET", speculative_algorithm="EAGLE", speculative_eagle_topk=2, page_size=4,
    speculative_num_steps=3, speculative_num_draft_tokens=4, attention_backend="triton", context_length=128,
)
"""
# Batches of two requests that grow by two tokens a call; a third one is there in every third call.
BATCHES = """
def batches(count):
    for n in range(count):
        yield batch(n, (3, 10 + 2 * (n % 40)), (7, 20 + 2 * (n % 40)), *([(1, 5 + n % 3)] if n % 3 == 0 else []))
"""

# Calls whose lengths are on a device, as that of a GPU: a copy arrives when it is said to.
DEVICE = """
import types
from sglang.srt.managers import scheduler
from sglang.srt.managers.scheduler import OnDevice, Thing

class Pinned:
    # A row of pinned memory, into which what is copied comes when the device gets there.
    def __init__(self, size):
        self.values = [-1] * size

    def __getitem__(self, part):
        return Part(self, part)

class Part:
    def __init__(self, row, part):
        self.row, self.part = row, part

    def fill_(self, value):
        self.row.values[self.part] = [value] * len(self.row.values[self.part])

    def copy_(self, lengths, non_blocking):
        assert non_blocking
        waiting.append((self, list(lengths)))

    def tolist(self):
        return self.row.values[self.part]

def reach():
    while waiting:
        part, values = waiting.pop()
        part.row.values[part.part] = values

waiting = []
sys.modules["torch"] = types.ModuleType("torch")
sys.modules["torch"].full = lambda shape, value, dtype, pin_memory: [Pinned(shape[1]) for _ in range(shape[0])]
loop = Scheduler(ARGUMENTS, -1)

def call(number, length, counted):
    req = Thing(req_pool_idx=3, origin_input_ids=[1] * counted, output_ids=[])
    forward = Thing(batch_size=1, seq_lens_cpu=None, seq_lens=OnDevice([length]), fails=False, forward_mode=None)
    runner = loop.runner

    class Running:
        def can_run_graph(self, forward_batch):
            return True

        def execute(self, forward_batch):
            return runner.execute(forward)

    loop.runner = Running()
    loop.run_batch(Thing(number=number, reqs=[Thing(**vars(req), length=0)]))
    loop.runner = runner
"""


def sglang(folder: Path, version: str = "0.5.23") -> Path:
    """The import path of such a sglang."""
    for name, text in {
        "__init__": f"__version__ = {version!r}\n",
        "srt/__init__": "",
        "srt/managers/__init__": "",
        "srt/managers/scheduler": _SCHEDULER,
        "srt/speculative/__init__": "",
        "srt/speculative/eagle_draft_cuda_graph_runner": _RUNNER,
    }.items():
        path = folder / "sglang" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    about = folder / f"sglang-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return folder


def server(folder: Path, body: str) -> Path:
    """A script that starts a server, then does this."""
    path = folder / "server.py"
    path.write_text(_SERVER + BATCHES + body)
    return path
