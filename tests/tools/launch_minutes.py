"""Minutes of a campaign like each public launch command: python -m tests.tools.launch_minutes OUT [NUMBER ...].

NUMBER counts the commands of tests/data/public_reports.toml from 1; all without one. Each campaign has three cases for
each of its runners on the newest release, emulated. A line for each: its number, thread, minutes and processor minutes,
cases judged and how it ended. OUT keeps the logs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fuzz.aiming import pairs
from fuzz.like import like
from repro.cases.server_args import arguments
from runners.targets.server_arguments import argument_names
from tests.fuzz.test_public_reports import REPORTS, START, TARGET, refuses

CASES = 3  # for each runner


def minutes(number: int, out: Path) -> str:
    command = REPORTS["command"][number - 1]
    flags = f"{START} {command['flags']}"
    runners = len(list(pairs(like(arguments(flags), argument_names([TARGET]), refuses), "", "")))
    record = out / f"{number}.json"
    words = ["run", "--target", str(TARGET), "--like", flags, "--seed", "1", "--cases", str(CASES * runners)]
    start, before = time.monotonic(), _processor_seconds()
    with (out / f"{number}.log").open("w") as log:
        line = [sys.executable, "-m", "fuzz", *words, "--json", str(record), "--out", str(out / str(number))]
        code = subprocess.run(line, stdout=log, stderr=log, check=False).returncode
    spent = (time.monotonic() - start) / 60, (_processor_seconds() - before) / 60
    cases = json.loads(record.read_text()).get("cases") if record.exists() else None
    texts = (f"{spent[0]:.1f} min", f"{spent[1]:.1f} processor min", f"{cases} cases", f"exit code {code}")
    return f"{number}: #{command['thread']}: {', '.join(texts)}"


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("numbers", nargs="*", type=int, default=[], metavar="NUMBER")
    options = parser.parse_args(words)
    options.out.mkdir(parents=True, exist_ok=True)
    for number in options.numbers or range(1, len(REPORTS["command"]) + 1):
        print(minutes(number, options.out), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
