"""The claims of docs/upstream.md on every seed, measured: python -m tests.tools.upstream_check --jobs N --out DIR.

Side by side, one process a row: bisection over all releases, candidate patches, scripts, exported tests, first
divergences, and the seeds themselves on every release. A table in Markdown last; exit code 1 if a row is not right.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from repro.cases import codec
from repro.cases.release_list import ADAPTED, has_runner
from repro.cases.releases import expected, release_order
from repro.commands.bisect import wanted_of
from repro.upstream.fixes import FIXES, SEEDS
from repro.upstream.patch_table import CANDIDATE_PATCHES
from repro.upstream.script import can_show

PARTS = ("script", "export", "bisect", "repairs", "first", "seeds")
BISECT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One process. judge: what came of it in a few words, from its exit code and what it printed; empty words in front
    of a colon mean that it is not right."""

    part: str
    name: str
    command: Sequence[str]
    judge: Callable[[int, str], tuple[bool, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """processor: seconds of it that this row and all that it started took; with other rows beside it, theirs too."""

    row: Row
    right: bool
    words: str
    seconds: float
    processor: float = 0.0


def stored() -> list[tuple[str, codec.Seed]]:
    return [(path.stem, codec.read(path)) for path in sorted(SEEDS.glob("*.json"))]


def failing(seed: codec.Seed) -> list[str]:
    """The releases on which the seed's own failure is said to show, oldest first; of one that expects another oracle
    there, which fails beside its own, those on which it does."""
    setup = seed.case.setup
    having = [release for release in ADAPTED if has_runner(release, setup.runner, setup.backend)]
    oracles = {release: expected(seed.about, release) for release in having}
    releases = [release for release in having if oracles[release] == seed.about["oracle"]]
    return releases or [release for release in having if oracles[release]]


def _on_a_gpu_alone(seed: codec.Seed) -> bool:
    """True if its failure is a crash that only a GPU has."""
    return str(seed.about["found"]).endswith("/cuda") and seed.about["oracle"] == "ended"


def last_line(pattern: str) -> Callable[[int, str], tuple[bool, str]]:
    """Right by its exit code; said: the last line with the pattern."""

    def judge(code: int, output: str) -> tuple[bool, str]:
        lines = [line for line in output.splitlines() if re.search(pattern, line)] or output.splitlines()[-1:]
        return code == 0, "".join(lines[-1:])

    return judge


def rows(parts: Sequence[str], names: Sequence[str], out: Path, tries: int) -> Iterator[Row]:
    seeds = [(name, seed) for name, seed in stored() if not names or name in names]
    shown = [(name, seed) for name, seed in seeds if can_show(name, seed, wanted_of(seed))]
    makers: dict[str, Callable[[], Iterator[Row]]] = {
        "script": lambda: (script(name, seed, out, tries) for name, seed in shown),
        "export": lambda: (export(name, seed, out) for name, seed in shown),
        "bisect": lambda: (bisect(name, seed, out) for name, seed in seeds if not _on_a_gpu_alone(seed)),
        "repairs": lambda: (repair(patch.seed) for patch in CANDIDATE_PATCHES if not names or patch.seed in names),
        "first": lambda: (
            first(name, seed) for name, seed in seeds if f"{name}.json" in {p.seed for f in FIXES for p in f.proofs}
        ),
        "seeds": lambda: (everywhere(release) for release in ADAPTED),
    }
    for part in parts:
        yield from makers[part]()


def repro(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "repro", *arguments]


def script(name: str, seed: codec.Seed, out: Path, tries: int) -> Row:
    target = f"{failing(seed)[-1]}/emulated"
    file = str(out / f"{name}.repro.py")
    command = repro("script", str(SEEDS / f"{name}.json"), "--target", target, "--tries", str(tries), "--out", file)

    def judge(code: int, output: str) -> tuple[bool, str]:
        lines = re.findall(r"^(?:shows the bug|passes) in .*", output, re.MULTILINE)
        return code == 0 and len(lines) == 2, "; ".join(lines) or output[-200:]

    return Row(part="script", name=name, command=command, judge=judge)


def export(name: str, seed: codec.Seed, out: Path) -> Row:
    target = f"{failing(seed)[-1]}/emulated"
    file = str(out / f"test_{name.replace('-', '_')}.py")
    command = repro("export", str(SEEDS / f"{name}.json"), "--target", target, "--tries", "1", "--sglang-test", file)

    def judge(code: int, output: str) -> tuple[bool, str]:
        lines = re.findall(r"^(?:python|pytest): .*", output, re.MULTILINE)
        return code == 0 and len(lines) == 4, "; ".join(lines) or output[-200:]

    return Row(part="export", name=name, command=command, judge=judge)


def bisect(name: str, seed: codec.Seed, out: Path) -> Row:
    file = out / f"{name}.range.json"
    bad = failing(seed)

    def judge(code: int, output: str) -> tuple[bool, str]:
        if not file.is_file():
            return False, output[-200:]
        located = json.loads(file.read_text())
        skipped = {candidate["name"] for candidate in located["candidates"] if candidate["skipped"]}
        there = [candidate["name"] for candidate in located["candidates"] if candidate["name"] not in skipped]
        known_bad = [release for release in bad if release in there]
        other = [release for release in there if release not in bad]
        order = release_order
        ends = {
            "first_bad": known_bad[0] if known_bad else "",
            "last_bad": known_bad[-1] if known_bad else "",
            "last_good": next((r for r in reversed(other) if known_bad and order(r) < order(known_bad[0])), ""),
            "first_fixed": next((r for r in other if known_bad and order(r) > order(known_bad[-1])), ""),
        }
        wrong = [
            f"{key} {located[key] or 'none'}, expected {end or 'none'}"
            for key, end in ends.items()
            if located[key] != end
        ]
        located = {key: end or "none" for key, end in located.items() if key in ends}
        pair = "good {last_good}, bad {first_bad} to {last_bad}, fixed {first_fixed}".format_map(located)
        return not wrong and bool(known_bad), "; ".join([pair, *wrong])

    command = repro("bisect", str(SEEDS / f"{name}.json"), "--json", str(file))
    return Row(part="bisect", name=name, command=command, judge=judge)


def repair(name: str) -> Row:
    return Row(part="repairs", name=name, command=repro("repairs", name), judge=last_line("shown|fails as"))


def first(name: str, seed: codec.Seed) -> Row:
    """Right if the buffer is the one that the seed's own first wrong cell names."""
    cell = str(seed.about.get("cell", ""))
    buffer = match.group(1) if (match := re.search(r"step \d+ (.+?)\[", cell)) else ""

    def judge(code: int, output: str) -> tuple[bool, str]:
        named = [line for line in output.splitlines() if line.lower().startswith("first wrong")]
        return code == 1 and bool(buffer) and any(f" {buffer}[" in line for line in named), "; ".join(named) or output[
            -200:
        ]

    command = repro("first", str(SEEDS / f"{name}.json"), "--target", f"{failing(seed)[-1]}/emulated")
    return Row(part="first", name=name, command=command, judge=judge)


def everywhere(release: str) -> Row:
    tests = ["tests/runners/conformance/test_seeds.py", "-k", "does_what", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *tests, "--target", f"{release}/emulated"]
    return Row(part="seeds", name=release, command=command, judge=last_line(r"\d+ (passed|failed)"))


def run(row: Row, out: Path, ends: float) -> PartResult:
    start, before = time.monotonic(), processor_seconds()
    left = ends - start
    if left < 5:
        return PartResult(row=row, right=False, words="not run: no time left", seconds=0.0)
    # One thread each: N processes share N cores.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    try:
        done = subprocess.run(
            row.command, env=environment, capture_output=True, timeout=left, check=False, text=True, errors="replace"
        )
        code, output = done.returncode, done.stdout + done.stderr
        right, reason = row.judge(code, output)
    except subprocess.TimeoutExpired as error:
        right, reason, output = False, "not ended: no time left", str(error.stdout)
    seconds, processor = time.monotonic() - start, processor_seconds() - before
    (out / f"{row.part}-{row.name}.log").write_text(f"{' '.join(row.command)}\n{output}")
    if right and row.part == "bisect" and seconds > BISECT_S:
        right, reason = False, f"{reason}; took {seconds:.0f} s"
    print(
        f"{'ok ' if right else 'NOT'} {row.part} {row.name} {seconds:.0f} s, {processor:.0f} s of processor: {reason}",
        flush=True,
    )
    return PartResult(row=row, right=right, words=reason, seconds=seconds, processor=processor)


def processor_seconds() -> float:
    """The processor seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(done: Sequence[PartResult]) -> Iterator[str]:
    yield "| part | seed or release | right | s | processor s | seen |"
    yield "|---|---|---|---|---|---|"
    for result in done:
        reason = result.words.replace("|", "\\|")[:300]
        took = f"{result.seconds:.0f} | {result.processor:.0f}"
        yield f"| {result.row.part} | {result.row.name} | {'yes' if result.right else 'NO'} | {took} | {reason} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--out", type=Path, default=Path("out/upstream-check"))
    parser.add_argument("--limit", type=float, default=7200.0, help="seconds; what is left then is not run")
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ",".join(PARTS))
    parser.add_argument("--tries", type=int, default=10, help="runs of each script on each side")
    parser.add_argument("seeds", nargs="*", help="names of seeds; without any: all")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + options.limit
    out = options.out.resolve()
    todo = list(rows(options.parts.split(","), options.seeds, out, options.tries))
    with ThreadPoolExecutor(options.jobs) as workers:
        done = list(workers.map(lambda row: run(row, out, ends), todo))
    text = "\n".join(table(done))
    (out / "table.md").write_text(text + "\n")
    print(text)
    print(f"{sum(result.right for result in done)} of {len(done)} rows are right")
    return 0 if all(result.right for result in done) else 1


if __name__ == "__main__":
    sys.exit(main())
