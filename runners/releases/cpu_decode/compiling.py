"""What is the same in every release: a target for a CPU, with compilation on, and its runner."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from sglang.srt.model_executor.cpu_graph_runner import CPUGraphRunner
from torch.overrides import _pop_mode_temporarily

from repro.cases.case import Setup
from runners.engines.standins import amx
from runners.recording.observer import HarnessError, Unsupported
from runners.releases.decode.batches import logits
from runners.releases.decode.family import FAMILY, backend
from runners.releases.live import Live, Outputs
from runners.releases.model import Folders

Build = Callable[[Setup, str, Folders], Live]


class Runner(CPUGraphRunner):
    """sglang's runner; nothing of ours stands in the way while it compiles, or Dynamo would compile that as well."""

    def capture(self) -> None:
        with ExitStack() as popped:
            for _ in range(torch._C._len_torch_function_stack()):
                popped.enter_context(_pop_mode_temporarily())
            super().capture()


def on_arguments(live: Live) -> None:
    """Have sglang take the CPU's attention backend, up to 0.5.16: without AMX it takes another, with which there is no
    such runner."""
    live.args.attention_backend = live.target.model_runner.server_args.attention_backend = live.setup.backend


def built(
    build_target: Build,
    setup: Setup,
    device: str,
    models: Folders,
    choose: Callable[[Live], None] = on_arguments,
    init_backend: str = "init_attention_backend",
) -> Live:
    """Unsupported where it cannot be compiled. choose: have sglang take the setup's backend. init_backend: what a model
    runner's method of that kind is called."""
    if device != "cpu":
        raise Unsupported("CPUGraphRunner runs on a CPU, not on this engine")
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise Unsupported(f"torch.compile needs a C++ compiler, and there is no {compiler}")
    amx.define()
    live = build_target(setup, device, models)
    choose(live)
    getattr(live.target.model_runner, init_backend)()
    return live


def capture(live: Live) -> Any:
    live.args.enable_torch_compile = True
    return compiled(live)


def compiled(live: Live) -> Any:
    """The runner, where compilation is on."""
    compile_for_real()
    with amx.declaring():
        runner = Runner(FAMILY.model_runner(live))
    graphs = importlib.import_module("torch._dynamo.utils").counters["stats"]["unique_graphs"]
    if graphs < len(live.setup.capture_bs):
        raise HarnessError(f"torch.compile was to compile {len(live.setup.capture_bs)} buckets and compiled {graphs}")
    return runner


def compile_for_real() -> None:
    """In this process, which serves one setup. Elsewhere on this engine Dynamo is off: functions that sglang compiles
    when it is imported are run as they are there, and a graph of CUDA's never holds more than the calls they make."""
    # Imported here only: it takes a second, and the sessions of other runners do without.
    inductor: Any = importlib.import_module("torch._inductor.config")
    dynamo: Any = importlib.import_module("torch._dynamo.config")
    inductor.compile_threads = 1  # a session has one core
    dynamo.disable = False
    os.environ["TORCHDYNAMO_DISABLE"] = "0"


def through_model_runner(attribute: str, runner: Any, forward_batch: Any) -> Outputs:
    """A forward pass as the scheduler has it, with the runner where the model runner looks for one: what the compiled
    function needs around it is not the runner's to set up."""
    model_runner = runner.model_runner
    setattr(model_runner, attribute, runner)
    try:
        with torch.no_grad():
            output = model_runner.forward(forward_batch)
    finally:
        setattr(model_runner, attribute, None)
    if not output.can_run_graph:
        raise RuntimeError(f"the runner refused a batch of {forward_batch.batch_size}")
    return logits(output.logits_output)


def graph(runner: Any, forward_batch: Any) -> Outputs:
    return through_model_runner("graph_runner", runner, forward_batch)


def neutral(live: Live) -> Mapping[str, int]:
    return {"seq_lens": backend(live).get_cpu_graph_seq_len_fill_value()}
