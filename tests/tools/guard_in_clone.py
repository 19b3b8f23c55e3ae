"""The guard's workflow as GitHub runs it, cold and with its cache: python -m tests.tools.guard_in_clone OUT.

Four pull requests on the newest release, each in a clean clone of this project: one that changes nothing, two that
break a runner, and one that renames a function which sglang calls. --sarif-schema FILE holds each check.sarif to the
schema of OASIS. Exit code 1 if a job does not end as it is to.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from repro.cases.case import Target
from repro.cases.release_list import NEWEST
from runners.targets.environments import sglang_path
from tests.builders.guard_in_clone import Change, guarded, installed
from tests.builders.workflow import Job

UTILS = "srt/speculative/spec_utils.py"
# With the exit code that the check is to end with.
CHANGES = (
    (Change(name="nothing"), 0),
    (Change(name="one-target-less", file=UTILS, old="num_correct_drafts + 1,\n", new="num_correct_drafts,\n"), 1),
    (
        Change(
            name="sources-of-the-front",
            file=UTILS,
            old="        tgt_cache_loc, accept_out_cache_loc\n",
            new="        accept_out_cache_loc, tgt_cache_loc\n",
        ),
        1,
    ),
    (Change(name="renamed", file=UTILS, old="def move_accept_tokens_to_target_kvcache(", new="def move_accepted("), 1),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.guard_in_clone")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--runners", default="kv_move decode", help="as the action's input")
    parser.add_argument("--pip-flags", default="", help="as the action's input")
    parser.add_argument("--installed", action="store_true", help="install nothing: take the packages of this process")
    parser.add_argument("--sarif-schema", type=Path, metavar="FILE")
    options = parser.parse_args()
    folder: Path = options.out.absolute()
    folder.mkdir(parents=True)
    fields: dict[str, Any] = {"path": [Path(sys.base_prefix) / "bin"]}
    if options.installed:
        fields = installed(folder / "bin")
    inputs = {"runners": options.runners, "pip-flags": options.pip_flags, "only-changed": ""}
    release = sglang_path(Target(NEWEST, "emulated"))
    wrong = 0
    for change, code in CHANGES:
        before = time.monotonic()
        job, _ = guarded(folder, release, change, inputs, **fields)
        (folder / f"{change.name}.log").write_text(job.log)
        ended = job.codes.get("check", job.codes.get("install"))
        wrong += ended != code
        seconds = time.monotonic() - before
        print(
            f"{change.name}: {ended}, expected {code}, {seconds:.0f} s; {contents(job, options.sarif_schema)}",
            flush=True,
        )
    return int(wrong > 0)


def contents(job: Job, schema: Path | None) -> str:
    """The files of the artifact, in words. ValidationError of jsonschema if its SARIF does not fit."""
    folder = job.folder / "artifacts" / "eagleeye"
    log = json.loads((folder / "check.sarif").read_text())
    if schema:
        importlib.import_module("jsonschema").validate(log, json.loads(schema.read_text()))
    suite = ElementTree.parse(folder / "junit.xml").getroot()[0]
    places = [result["locations"] for result in log["runs"][0]["results"]]
    return (
        f"SARIF {len(places)} results, {sum(map(bool, places))} with a line{', valid' * bool(schema)}; JUnit "
        f"{suite.get('tests')} tests, {suite.get('failures')} failures, {suite.get('errors')} errors; "
        f"{job.log.count('::error ')} annotations; comment of {len((folder / 'summary.md').read_bytes())} bytes"
    )


if __name__ == "__main__":
    sys.exit(main())
