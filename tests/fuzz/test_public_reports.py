"""Launch commands and crash reports of the public tracker: each becomes the aim or the case of docs/evidence.md."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fuzz.aiming import pairs, smallest_of
from fuzz.like import like
from repro.__main__ import main
from repro.cases.case import Setup, Target, engine_refuses
from repro.cases.codec import read
from repro.cases.release_list import NEWEST
from repro.cases.server_args import BadOption, arguments
from repro.traces.exit_codes import ExitCode
from runners.targets.server_arguments import argument_names
from tests.builders.project import DATA, PROJECT

REPORTS = tomllib.loads((DATA / "public_reports.toml").read_text())
PAGE = PROJECT / "docs" / "evidence.md"
START = "python -m sglang.launch_server --model-path MODEL"
TARGET = Target(NEWEST, "emulated")


def refuses(setup: Setup) -> str:
    return engine_refuses(setup, TARGET.engine)


def aim(flags: str) -> str:
    """The runners, and the shape, of a campaign like this server; or the line that refuses it."""
    try:
        request = like(arguments(f"{START} {flags}"), argument_names([TARGET]), refuses)
        setups = [smallest_of(request, *pair) for pair in pairs(request, "", "")]
    except BadOption as error:
        assert len(str(error).splitlines()) == 1
        return f"refused: {error}"
    first = setups[0]
    shape = f"{first.algorithm} {first.num_steps}/{first.topk}/{first.num_draft_tokens}"
    options = [first.kv_dtype] if first.kv_dtype else []
    runners = ", ".join(setup.runner for setup in setups)
    unspeculative = setups[0].runner == "decode"
    return (
        f"{runners} on {first.backend}" + ("" if unspeculative else f", {shape}") + "".join(f", {o}" for o in options)
    )


def cells(section: str) -> dict[str, list[list[str]]]:
    """The rows of a table of the page, by thread."""
    rows: dict[str, list[list[str]]] = {}
    for line in PAGE.read_text().partition(f"## {section}")[2].partition("\n## ")[0].splitlines():
        if line.startswith("| #"):
            thread, *rest = [cell.strip() for cell in line.strip("|").split("|")]
            rows.setdefault(thread, []).append(rest)
    return rows


@pytest.mark.parametrize("number", range(len(REPORTS["command"])))
@pytest.mark.emulated(NEWEST)
def test_a_launch_command_is_aimed_at_as_the_page_says(number: int) -> None:
    command = REPORTS["command"][number]
    place = [each["thread"] for each in REPORTS["command"][:number]].count(command["thread"])
    assert cells("Launch commands")[f"#{command['thread']}"][place][0] == aim(command["flags"])


@pytest.mark.parametrize("report", REPORTS["report"], ids=lambda report: str(report["thread"]))
@pytest.mark.emulated(NEWEST)
def test_a_crash_report_becomes_a_case(report: dict[str, Any], tmp_path: Path) -> None:
    rows = [
        f"{step},{request},{length + request}"
        for step, (count, length) in enumerate(report["batches"])
        for request in range(count)
    ]
    trace = tmp_path / "report.csv"
    trace.write_text("\n".join(["step,request,length", *rows, ""]))
    assert main(["case", "from-trace", str(trace), "--like", f"{START} {report['flags']}"]) == ExitCode.PASS
    seed = read(tmp_path / "report.case.json")
    assert [len(step.requests) for step in seed.case.steps] == [count for count, _ in report["batches"]]
    setup = seed.case.setup
    buckets = ", ".join(map(str, setup.capture_bs)) if setup.capture_bs else ""
    shape = (
        f"{setup.runner} on {setup.backend}, {setup.num_steps}/{setup.topk}/{setup.num_draft_tokens}, buckets {buckets}"
    )
    assert cells("Crash reports")[f"#{report['thread']}"] == [[shape, report["guess"]]]


def test_there_are_twenty_commands_and_ten_reports() -> None:
    assert (len(REPORTS["command"]), len(REPORTS["report"])) == (20, 10)
    assert {len(rows) for rows in cells("Crash reports").values()} == {1}
