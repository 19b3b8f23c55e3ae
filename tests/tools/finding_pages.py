"""Writes docs/findings from repro/findings.toml and the seeds: python -m tests.tools.finding_pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from repro.cases.codec import AboutValue, read
from repro.cases.release_list import ADAPTED, NEWEST, OLDEST
from repro.upstream.findings import THREADS, PublishedBug, load
from repro.upstream.fixes import FIXES, SEEDS
from repro.upstream.patch_table import CANDIDATE_PATCHES
from tests.builders.project import PROJECT

FOLDER = PROJECT / "docs" / "findings"
PATCHED = {patch.seed for patch in CANDIDATE_PATCHES}
COPIES = "stored copies of sglang's public threads"


def linked(text: str) -> str:
    """The text with each #NUMBER of sglang's tracker as a link, whose address `addresses` gives."""
    return re.sub(r"#\d{4,5}\b", r"[\g<0>]", text)


def addresses(text: str) -> str:
    """The addresses of the links that `linked` made, as Markdown wants them at a page's end."""
    numbers = sorted(set(re.findall(r"\[#(\d{4,5})\]", text)))
    return "".join(f"\n[#{number}]: {THREADS}{number}" for number in numbers)


def releases(finding: PublishedBug) -> str:
    first, last = finding.affected[0], finding.affected[-1]
    newest = f"**{last}**" if finding.stands else last
    if first == last:
        return newest
    if first == OLDEST:
        return f"every release to {newest}" if finding.stands else f"up to {newest}"
    return f"{first} to {newest}"


def row(finding: PublishedBug, folder: str = "") -> str:
    """The finding's row of an index. folder: where its page is, as seen from the index."""
    bug = f"[{finding.title}]({folder}{finding.name}.md)"
    upstream = str(finding.upstream)
    if not finding.stands:  # its page has the threads
        upstream = upstream.partition("; ")[0]
    return f"| {finding.symptom} | {bug} | {releases(finding)} | {linked(upstream)} |"


def page(finding: PublishedBug) -> str:
    text = "\n".join(_page(finding)) + "\n"
    return f"{text}{addresses(text)}".rstrip() + "\n"


def _page(finding: PublishedBug) -> Iterator[str]:
    about = {seed: read(SEEDS / f"{seed}.json").about for seed in finding.seeds}
    yield f"# {finding.symptom[0].upper()}{finding.symptom[1:]}: {finding.title}"
    yield ""
    yield linked(finding.impact)
    yield ""
    yield f"- **Releases:** {releases(finding)}"
    yield f"- **Upstream:** {_upstream(finding)}"
    yield from (f"- **Seen by** {_seen(seed, facts)}" for seed, facts in about.items())
    for seed in finding.seeds:
        if (FOLDER / seed / "issue.md").is_file():
            yield f"- **For a report:** [text, script, patch and test]({seed}/issue.md)"
    yield ""
    yield "## Cause"
    yield ""
    yield linked(finding.cause)
    if finding.notes:
        yield ""
        yield linked(finding.notes)
    yield ""
    yield "## Replay"
    yield ""
    yield "```"
    yield from _commands(finding)
    yield "```"


def _upstream(finding: PublishedBug) -> str:
    upstream = finding.upstream
    parts = [f"{linked(str(upstream))}, in {COPIES}."]
    if upstream.fixed_by:
        parts = [f"{linked(str(upstream))} (seen {upstream.searched} in {COPIES})."]
        if upstream.threads:
            parts.append(f"Reported in {linked(', '.join(upstream.threads))}.")
    if upstream.words:
        parts.append(f"Searched for: *{upstream.words}*.")
    if upstream.introduced_by:
        parts.append(f"Brought by [#{upstream.introduced_by}], as sglang's history reads; not bisected.")
    if upstream.kin:
        parts.append(f"Near it: {linked(upstream.kin)}.")
    return " ".join(parts)


def _seen(seed: str, about: Mapping[str, AboutValue]) -> str:
    return f"`{about['oracle']}` at *{about['where']}* in `repro/seeds/{seed}.json`: {about['detail']}"


def _commands(finding: PublishedBug) -> Iterator[str]:
    for seed in finding.seeds:
        target = finding.affected[-1]
        yield f".venv/bin/python -m repro run repro/seeds/{seed}.json --target {target}/emulated"
    patched = [seed for seed in finding.seeds if seed in PATCHED]
    if patched:
        yield f".venv/bin/python -m repro repairs {' '.join(patched)} --diff    # a candidate patch, before and after"
    if finding.upstream.fixed_by in {fix.number for fix in FIXES}:
        yield f".venv/bin/python -m repro fixes --fix {finding.upstream.fixed_by}    # and with the fix taken out"


HEAD = "| symptom | bug | releases | upstream |\n|---|---|---|---|"


def index(findings: tuple[PublishedBug, ...]) -> str:
    standing = [finding for finding in findings if finding.stands]
    fixed = [finding for finding in findings if not finding.stands]
    packages = list(FOLDER.glob("*/issue.md"))
    return f"""# Findings

Bugs of published sglang that eagleeye finds, one page each. A seed in `repro/seeds` shows each of them. What it expects
of the {len(ADAPTED)} releases from {OLDEST} to {NEWEST} (`about.expect`) was seen on the emulated engine.

`upstream` is what {COPIES} had on the day named, the newest copy of 2026-09-22. No live
tracker was asked: a thread may have changed since, and "none found" rests on few searches and is no proof.

Made from `repro/findings.toml` by `python -m tests.tools.finding_pages`.

## Still there in {NEWEST} ({len(standing)})

{HEAD}
{chr(10).join(map(row, standing))}

Fixed in a later release: [{len(fixed)} more](fixed.md).

## Packages for sglang's maintainers

{len(packages)} findings have issue text, script, candidate patch, range and a test for sglang's suite
([docs/upstream.md](../upstream.md)).
"""


def of_the_past(findings: tuple[PublishedBug, ...]) -> str:
    fixed = [finding for finding in findings if not finding.stands]
    return f"""# Findings that a later release fixed ({len(fixed)})

As [those that are still there](README.md).

{HEAD}
{chr(10).join(map(row, fixed))}
"""


def pages() -> dict[str, str]:
    """The text of each page by its file's name."""
    findings = load()
    lists = {"README.md": index(findings), "fixed.md": of_the_past(findings)}
    of_each = {f"{finding.name}.md": page(finding) for finding in findings}
    return {name: text + addresses(text) + "\n" for name, text in lists.items()} | of_each


def main() -> None:
    for path in FOLDER.glob("*.md"):
        path.unlink()
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
