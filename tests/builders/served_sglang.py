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
