"""Each seed's script and exported test ten times on either side, cheaply: python -m tests.tools.files_often [SEED...].

Nine tenths of what such a file takes is imports, most of them not sglang's. Here every run is a process of its own in
an empty folder, forked from one that has imported torch, transformers and what else sglang imports, but nothing of
sglang and nothing of this harness: each run imports sglang from its start. `tests.tools.upstream_check` starts Python
anew each time instead, as a reader does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from oracles.catalogue import judge_all, overall
from repro.__main__ import options_of
from repro.cases.case import Target
from repro.commands.bisect import wanted_of
from repro.commands.script import FAILED, PASSED, sides_of, with_helper
from repro.upstream.fixes import SEEDS
from repro.upstream.rig import Rig
from repro.upstream.script import can_show, host, script, upstream_test
from runners.processes.rig import rig
from tests.tools.upstream_check import failing, stored

# Run by a Python of its own, with an import path without sglang; reads a run a line, answers with its exit code.
HOST = """
import contextlib, importlib, json, os, runpy, sys, traceback
before = dict(os.environ)
os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1", "TRITON_INTERPRET": "1",
               "SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""}
import torch
if not hasattr(torch.ops.torchvision, "nms"):  # as the scripts' stand-ins do, before torchvision is imported
    library = torch.library.Library("torchvision", "FRAGMENT")
    [library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor") for name in ("nms", "qnms")]
for name in PACKAGES:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
os.environ.clear()
os.environ |= before  # a file says itself what it needs
assert not [name for name in sys.modules if name.split(".")[0] in ("sglang", "sgl_kernel", "xgrammar")]

def run(order):
    os.chdir(order["folder"])
    sys.path[:0] = order["path"]
    sys.argv = [order["module"] or order["file"], *order["arguments"]]
    printed = os.open("printed", os.O_WRONLY | os.O_CREAT)
    os.dup2(printed, 1), os.dup2(printed, 2)
    try:
        if order["module"]:
            runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(order["file"], run_name="__main__")
        return 0
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 3

for line in sys.stdin:
    if not (child := os.fork()):
        code = run(json.loads(line))
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
PACKAGES = (
    *("IPython.display", "aiohttp.web", "compressed_tensors.config", "fastapi", "gguf", "numpy", "openai"),
    *("openai.types.responses", "pydantic", "requests", "sympy", "uvicorn", "zmq"),
    *("torch._inductor.config", "torchvision.io", "triton", "triton.language"),
    *("transformers", "transformers.activations", "transformers.image_processing_utils"),
    *("transformers.modeling_gguf_pytorch_utils", "transformers.modeling_layers"),
    *("transformers.models.auto.tokenization_auto", "transformers.models.llama.modeling_llama"),
)


class Hosts:
    """Processes to fork runs from, one for each set of packages that releases have in front. Mutable."""

    def __init__(self, used: Rig, ending: ExitStack) -> None:
        self._used, self._ending = used, ending
        self._hosts: dict[tuple[str, ...], subprocess.Popen[str]] = {}

    def code(self, text: str, target: Target, way: Way) -> tuple[int, str]:
        """The exit code of one run of this file on this target, and what it printed."""
        interpreter, environment = self._used.alone(target)
        places = environment["PYTHONPATH"].split(os.pathsep)
        behind = tuple(place for place in places if not Path(place, "sglang").is_dir())
        host = self._hosts.get(behind)
        if host is None:
            alone = {**environment, "PYTHONPATH": os.pathsep.join(behind)}
            command = [str(interpreter), "-P", "-c", f"PACKAGES = {PACKAGES!r}\n{HOST}"]
            made = subprocess.Popen(command, env=alone, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            host = self._hosts[behind] = self._ending.enter_context(made)
        with tempfile.TemporaryDirectory(prefix="eagleeye-file-") as folder:
            file = Path(folder, "test_repro.py")
            file.write_text(text)
            order = {
                "folder": folder,
                "file": str(file),
                "path": [place for place in places if place not in behind],
                "module": way.module,
                "arguments": [*way.arguments, *[str(file)] * bool(way.module)],
            }
            assert host.stdin and host.stdout
            print(json.dumps(order), file=host.stdin, flush=True)
            code = int(host.stdout.readline())
            return code, Path(folder, "printed").read_text(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to run a file. shows, passes: what it prints where the bug is and where it is not."""

    name: str
    module: str = ""
    arguments: tuple[str, ...] = ()
    shows: str
    passes: str


SCRIPT = Way(name="script", arguments=("--cpu",), shows=r"^seen: (?!just that$)", passes=r"^seen: just that$")
TESTS = (
    Way(name="python", shows=FAILED, passes=PASSED),
    Way(name="pytest", module="pytest", arguments=("-q", "-p", "no:cacheprovider"), shows=FAILED, passes=PASSED),
)


def often(name: str, hosts: Hosts, used: Rig, tries: int, exported: bool) -> bool:
    """True if every run on either side ended as it is to; printed in a line for each way."""
    seed = dict(stored())[name]
    target = f"{failing(seed)[-1]}/emulated"
    sides = sides_of(options_of(["script", str(SEEDS / f"{name}.json"), "--target", target]), used)
    arguments = name, sides.seed, sides.failure, sides.releases
    text = upstream_test(*arguments, "emulated") if exported else script(*arguments)
    all_right = True
    for way in TESTS if exported else (SCRIPT,):
        start, lines, is_right = time.monotonic(), list[str](), sides.clean is not None
        for side, code, says in ((sides.buggy, 1, way.shows), (sides.clean, 0, way.passes)):
            if side is None:
                continue
            there = with_helper(used, side) if exported else side
            ends = [hosts.code(f"{host()}\n{text}" if exported else text, there, way) for _ in range(tries)]
            wrong = [end for end in ends if end[0] != code or not re.search(says, end[1], re.MULTILINE)]
            is_right = is_right and not wrong
            does = "shows the bug" if code else "passes"
            lines.append(f"{does} in {tries - len(wrong)} of {tries} runs on {used.named(side)}")
            lines += [f"it ended with {end[0]}: {end[1][-400:]}" for end in wrong[:1]]
        seconds = time.monotonic() - start
        print(f"{'ok ' if is_right else 'NOT'} {way.name} {name} {seconds:.0f} s: {'; '.join(lines)}", flush=True)
        all_right = all_right and is_right
    return all_right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--exported", action="store_true", help="the tests instead, by Python and by pytest")
    parser.add_argument("--minutes", type=float, default=60.0, help="no further script is begun after that")
    parser.add_argument("seeds", nargs="*", help="names of seeds; without any: all that have a script")
    options = parser.parse_args()
    names = options.seeds or [name for name, seed in stored() if can_show(name, seed, wanted_of(seed))]
    ends = time.monotonic() + 60 * options.minutes
    used = rig(judge_all, overall, print, timeout_s=600)
    with ExitStack() as ending:
        hosts = Hosts(used, ending)
        timely = (name for name in names if time.monotonic() < ends)
        done = [often(name, hosts, used, options.tries, options.exported) for name in timely]
    print(f"{sum(done)} of {len(done)} files did what they say in every run; {len(names) - len(done)} not run")
    return 0 if all(done) and len(done) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
