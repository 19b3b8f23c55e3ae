"""CPUGraphRunner on a target for a CPU, with compilation on."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from sglang.srt.model_executor.cpu_graph_runner import CPUGraphRunner
from torch.overrides import _pop_mode_temporarily

from repro.cases.case import Setup
from repro.cases.releases import release_order
from runners.engines.standins import amx
from runners.recording.observer import HarnessError, Refused, Unsupported
from runners.releases.adapters.decode import adapter as decode
from runners.releases.adapters.decode.family import FAMILY, backend
from runners.releases.catalogue import present_release
from runners.releases.live import Live, Outputs
from runners.releases.model import Folders
from runners.releases.workers import present
from runners.releases.workers.building import init_attention_backend

batch, eager = decode.batch, decode.eager


class Runner(CPUGraphRunner):
    """sglang's runner; no hook of the harness is in the way while it compiles, or Dynamo would compile that as well."""

    def capture(self) -> None:
        with ExitStack() as popped:
            for _ in range(torch._C._len_torch_function_stack()):
                popped.enter_context(_pop_mode_temporarily())
            super().capture()


def build(setup: Setup, device: str, models: Folders) -> Live:
    """Unsupported where it cannot be compiled."""
    if device != "cpu":
        raise Unsupported("CPUGraphRunner runs on a CPU, not on this engine")
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise Unsupported(f"torch.compile needs a C++ compiler, and there is no {compiler}")
    # Since 0.5.20 sgl_kernel's attention for CPUs takes scales of keys and values.
    amx.define(scaled=release_order(present_release()) >= release_order("0.5.20"))
    live = present.build_target(setup, device, models)
    choose(live)
    init_attention_backend(live.target.model_runner)
    return live


def choose(live: Live) -> None:
    """Have sglang take the CPU's attention backend: without AMX it takes another, with which there is no such runner.

    Since 0.5.17 arguments are read-only once they are published and the runtime's context counts, but that release's
    model runner still reads the arguments. Which of the two counts cannot be told by looking."""
    backend = live.setup.backend
    if release_order(present_release()) < release_order("0.5.17"):
        live.args.attention_backend = live.target.model_runner.server_args.attention_backend = backend
        return
    importlib.import_module("sglang.srt.runtime_context").get_context().override("eagleeye", attention_backend=backend)
    if release_order(present_release()) < release_order("0.5.18"):
        object.__setattr__(live.args, "attention_backend", backend)


def capture(live: Live) -> Any:
    compile_for_real()
    compiling_on(live)
    with amx.declaring():
        runner = Runner(FAMILY.model_runner(live))
    graphs = importlib.import_module("torch._dynamo.utils").counters["stats"]["unique_graphs"]
    if graphs < len(live.setup.capture_bs):
        raise HarnessError(f"torch.compile was to compile {len(live.setup.capture_bs)} buckets and compiled {graphs}")
    return runner


def compiling_on(live: Live) -> None:
    """In the arguments up to 0.5.16, and since 0.5.15 in the runtime's flags as well."""
    if release_order(present_release()) < release_order("0.5.17"):
        live.args.enable_torch_compile = True
    if release_order(present_release()) >= release_order("0.5.15"):
        importlib.import_module("sglang.srt.runtime_context").get_flags().capture.enable_torch_compile = True


def compile_for_real() -> None:
    """In this process, which serves one setup. Elsewhere on this engine Dynamo is off: functions that sglang compiles
    when it is imported are run as they are there, and a graph of CUDA's never holds more than the calls they make."""
    # Imported here only: it takes a second, and the sessions of other runners do without.
    inductor: Any = importlib.import_module("torch._inductor.config")
    dynamo: Any = importlib.import_module("torch._dynamo.config")
    inductor.compile_threads = 1  # a session has one core
    dynamo.disable = False
    os.environ["TORCHDYNAMO_DISABLE"] = "0"


def graph(runner: Any, batch: Any) -> Outputs:
    """A forward pass as the scheduler has it, with the runner where the model runner looks for one: what the compiled
    function needs around it is not the runner's to set up."""
    model_runner = runner.model_runner
    attribute = "decode_cuda_graph_runner" if present.GENERATION.phased else "graph_runner"
    setattr(model_runner, attribute, runner)
    try:
        with torch.no_grad():
            output = model_runner.forward(batch)
    finally:
        setattr(model_runner, attribute, None)
    if not output.can_run_graph:
        raise Refused(f"the runner refused a batch of {batch.batch_size}")
    return decode.logits(output.logits_output)


def neutral(live: Live) -> Mapping[str, int]:
    return {"seq_lens": backend(live).get_cpu_graph_seq_len_fill_value()}
