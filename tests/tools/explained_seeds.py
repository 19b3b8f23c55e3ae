"""Known causes against those that `repro explain` names: python -m tests.tools.explained_seeds OUT [SEED ...] [--page].

Each stored seed is explained on a release that it fails in, emulated, from a copy that does not have its name: the
patch of that name would be tried first. OUT keeps what each gave; those that are there are not run again. --page writes
docs/explained.md from them. A cause is right if every patch that mends the failure belongs to the seed's bug:
the candidate patches of the seeds of its row in findings.toml, or a backport of the pull request that fixed it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.__main__ import main as repro
from repro.cases import codec
from repro.cases.codec import Seed
from repro.cases.release_list import ADAPTED
from repro.cases.releases import expected
from repro.commands.bisect import found_on
from repro.suspects.ranking import MOST
from repro.upstream.edits import Edit
from repro.upstream.findings import load, of_seed
from repro.upstream.fixes import SEEDS
from repro.upstream.patch_table import BACKPORTS, CANDIDATE_PATCHES
from runners.processes.fork_servers import processor_seconds
from tests.builders.project import PROJECT

PAGE = PROJECT / "docs" / "explained.md"
ENGINE = "emulated"
RIGHT, AMONG, NONE, WRONG, PASSED = "right", "right, among others", "not known", "wrong", "does not fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a seed. named: patches that mend it; rank: the place, among the functions likeliest to hold the
    mistake, of the first that the bug's patches change; 0 if none does."""

    seed: str
    release: str
    failure: str
    verdict: str
    named: tuple[str, ...]
    rank: int


def releases(seed: Seed) -> Iterator[str]:
    """Releases that the seed fails in, emulated: that on which it was found first, then the newest."""
    for release in (found_on(seed), *reversed(ADAPTED)):
        if release in ADAPTED and expected(seed.about, release, ENGINE):
            yield release


def causes(name: str) -> dict[str, tuple[Edit, ...]]:
    """The patches of the bug that this seed shows, with their edits."""
    finding = of_seed(load(), name)
    seeds, number = (finding.seeds, finding.upstream.fixed_by) if finding else ((name,), 0)
    patches = {patch.seed: patch.edits for patch in CANDIDATE_PATCHES if patch.seed in seeds}
    for backport in BACKPORTS:
        if backport.name.split()[0] in (*seeds, f"#{number}"):
            patches[backport.name] = tuple(edit for form in backport.forms for edit in form)
    return patches


def explain(name: str, out: Path) -> None:
    seed = codec.read(SEEDS / f"{name}.json")
    copy, result = out / "copy" / "case.json", out / f"{name}.json"
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text((SEEDS / f"{name}.json").read_text())
    release = next(releases(seed))
    code = repro(["explain", str(copy), "--target", f"{release}/{ENGINE}", "--json", str(result)])
    if not result.exists():
        result.write_text(json.dumps({"exit_code": code, "target": f"{release}/{ENGINE}"}) + "\n")


def result_of(name: str, form: Mapping[str, object]) -> Result:
    true = causes(name)
    failure = form.get("failure")
    assert failure is None or isinstance(failure, dict)
    switches = form.get("switches", [])
    suspects = form.get("suspects", [])
    assert isinstance(switches, list) and isinstance(suspects, list)
    named = tuple(row["switch"].removeprefix("patch ") for row in switches if row["kind"] == "patch" and row["gone"])
    places = {(edit.file, edit.function) for edits in true.values() for edit in edits}
    ranks = (n for n, each in enumerate(suspects, start=1) if (each["file"], each["function"]) in places)
    if failure is None:
        verdict = PASSED
    elif not named:
        verdict = NONE
    elif true.keys() >= set(named):
        verdict = RIGHT
    else:
        verdict = AMONG if true.keys() & set(named) else WRONG
    return Result(
        seed=name,
        release=str(form["target"]).removesuffix(f"/{ENGINE}"),
        failure=f"{failure['oracle']} at {failure['where']}" if failure else "",
        verdict=verdict,
        named=named,
        rank=next(ranks, 0),
    )


def page(results: Sequence[Result]) -> str:
    judged = [result for result in results if result.verdict != PASSED]
    fixes = [result for result in judged if result.seed.startswith("pr")]
    counts = Counter(result.verdict for result in judged)
    of_fixes = sum(result.verdict in (RIGHT, AMONG) for result in fixes)
    ranked = [result for result in judged if causes(result.seed)]
    first, among = (sum(0 < result.rank <= most for result in ranked) for most in (1, MOST))
    others = sum(len(set(result.named) - causes(result.seed).keys()) for result in results)
    rows = [
        f"| {result.seed} | {result.release} | {result.failure} | {result.verdict} | "
        f"{', '.join('its own' if name == result.seed else name for name in result.named) or '-'} | "
        f"{result.rank or '-'} |"
        for result in results
    ]
    return "\n".join(
        [
            "# Seeds explained",
            "",
            f"`eagleeye explain` on {len(results)} of {len(list(SEEDS.glob('*.json')))} stored seeds, each on a "
            "release "
            + "that it fails in, emulated, from a copy without its name. "
            + "Made by `python -m tests.tools.explained_seeds OUT --page`.",
            "",
            f"- Cause named: {', '.join(f'{counts[key]} {key}' for key in (RIGHT, AMONG, NONE, WRONG))} "
            f"of {len(judged)}.",
            f"- Of the seeds of known fixes (`pr*`): the true one is named for {of_fixes} of {len(fixes)}.",
            f"- Patches of other bugs that mend a failure: {others}. So often a wrong cause would be named if "
            "the bug's own patch were not known.",
            f"- Without a known patch: a function that the bug's patch changes comes first in {first} of {len(ranked)}"
            f", and is among the first {MOST} in {among}.",
            "",
            "**cause**: right, if each patch that mends the failure belongs to the seed's bug. **place**: of the "
            "functions likeliest to hold the mistake, found without a patch, the first that the bug's patch changes.",
            "",
            "| seed | release | failure | cause | mended by | place |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("seeds", nargs="*", metavar="SEED", default=[])
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    options = parser.parse_args(arguments)
    names = options.seeds or sorted(path.stem for path in SEEDS.glob("*.json"))
    if not options.page:
        waiting = [name for name in names if not (options.out / f"{name}.json").exists()]
        for name in waiting:
            explain(name, options.out)
        print(f"{len(waiting)} seeds explained in {processor_seconds():.0f} processor seconds")
        return 0
    paths = {name: options.out / f"{name}.json" for name in names}
    forms = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    PAGE.write_text(page([result_of(name, form) for name, form in forms.items()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
