"""python -m tests.faults [PYTEST OPTION...]: attacks from outside, signals and kills, as a table by kind: how many were
tried, how many were survived, and the longest that one took; then how long commands took to end. Exit code 1 if one was
not survived."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import pytest

FAULTS = str(Path(__file__).resolve().parent / "hostile")


class Table:
    """The result of each test, by its file and name. Mutable."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.survived: defaultdict[str, int] = defaultdict(int)
        self.to_end: list[float] = []  # seconds from a signal to the end of a command's last process

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.to_end += [float(str(value)) for name, value in report.user_properties if name == "seconds_to_end"]
        if report.when == "call" or report.outcome != "passed":
            file, _, name = report.nodeid.partition("[")[0].partition("::")
            kind = f"{Path(file).stem}: {name}".replace("test_", "").replace("faults_", "")
            self.seconds[kind].append(report.duration)
            self.survived[kind] += report.outcome == "passed"

    def lines(self) -> list[str]:
        rows = [(kind, len(times), self.survived[kind], max(times)) for kind, times in sorted(self.seconds.items())]
        tried, survived = sum(row[1] for row in rows), sum(row[2] for row in rows)
        rows.append(("all", tried, survived, max((row[3] for row in rows), default=0.0)))
        head = ["| kind | tried | survived | longest |", "|---|---|---|---|"]
        return head + [
            f"| {kind.replace('_', ' ')} | {n} | {well} | {longest:.1f} s |" for kind, n, well, longest in rows
        ]


def main(options: list[str]) -> int:
    table = Table()
    code = pytest.main(["-q", "--no-header", FAULTS, *options], plugins=[table])
    print("\n".join(table.lines()))
    ends = f"{min(table.to_end):.1f} to {max(table.to_end):.1f} s" if table.to_end else "none"
    print(f"Seconds from a signal to the end of a command's last process: {ends} ({len(table.to_end)} commands)")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
