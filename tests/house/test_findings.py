"""The table of findings: its rows, seeds, known issues and fixes that agree with it, and the pages made of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reports.issue import issue, material
from repro.cases.codec import read
from repro.cases.release_list import NEWEST
from repro.cases.releases import expected
from repro.ledger import known
from repro.ledger.rows import SEED
from repro.upstream.findings import THREADS, BadFindings, PublishedBug, load, of_seed
from repro.upstream.fixes import FIXES, SEEDS
from tests.builders.project import PROJECT
from tests.tools.finding_pages import FOLDER, pages

FINDINGS = load()
ROW = """
[[finding]]
name = "a"
symptom = "slower"
title = "a"
impact = "a"
releases = "<0.5.17"
cause = "a"
seeds = ["a"]
upstream = { searched = 2026-11-26, words = "a graph" }
"""


def rows(folder: Path, text: str) -> tuple[PublishedBug, ...]:
    (folder / "findings.toml").write_text(text)
    return load(folder / "findings.toml")


@pytest.mark.parametrize(
    ("upstream", "text"),
    [
        ('words = "a graph"', "none found (2026-11-26)"),
        ('fixed_in = "0.5.17", words = "a graph"', "fixed in 0.5.17; none found (2026-11-26)"),
        ('fixed_by = 26651, fixed_in = "0.5.13"', "fixed by #26651 in 0.5.13"),
        ('threads = ["#1 open", "#2 closed unmerged"]', "reported #1 (open), #2 (closed unmerged), seen 2026-11-26"),
    ],
)
def test_an_upstream_says_its_status_and_day(upstream: str, text: str, tmp_path: Path) -> None:
    (row,) = rows(tmp_path, ROW.replace('words = "a graph"', upstream))
    assert str(row.upstream) == text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("searched = 2026-11-26, ", "", "searched is missing"),
        ("2026-11-26", '"today"', "expected a day"),
        (', words = "a graph"', "", "what was searched for?"),
        ('words = "a graph"', 'threads = ["26651 open"]', "expected #NUMBER and a state"),
        ('words = "a graph"', "fixed_by = 26651", "fixed_in beside it"),
        ('words = "a graph"', 'introduced_by = "#1", words = "a graph"', "introduced_by: expected a number"),
        ('"slower"', '"sad"', "is not one of illegal memory access"),
        ('"<0.5.17"', '"<0.5.1"', "no adapted release"),
        ('"<0.5.17"', '"soon"', "soon"),
        ('cause = "a"', 'course = "a"', "unknown key"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadFindings, match=re.escape(message)):
        rows(tmp_path, ROW.replace(old, new))


def test_every_seed_shows_one_finding() -> None:
    shown = [seed for finding in FINDINGS for seed in finding.seeds]
    assert sorted(shown) == sorted(path.stem for path in SEEDS.glob("*.json"))
    assert len({finding.name for finding in FINDINGS}) == len(FINDINGS)


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.name)
def test_seeds_expect_of_the_newest_release_what_the_table_says(finding: PublishedBug) -> None:
    for seed in finding.seeds:
        about = read(SEEDS / f"{seed}.json").about
        outcome = expected(about, NEWEST, "emulated")
        assert bool(outcome) if finding.stands else outcome != about["oracle"]


def test_every_known_fix_is_a_finding_that_it_fixed() -> None:
    by_number = {finding.upstream.fixed_by: finding for finding in FINDINGS}
    for fix in FIXES:
        assert by_number[fix.number].affected[-1] == fix.buggy
        assert by_number[fix.number].upstream.fixed_in == fix.fixed


def test_a_known_issue_links_the_thread_of_its_finding() -> None:
    for entry in known.load():
        seed = next((probe.removeprefix(SEED) for probe in entry.probes), "")
        finding = of_seed(FINDINGS, seed)
        if finding and (finding.upstream.fixed_by or finding.upstream.threads):
            numbers = [finding.upstream.fixed_by, *(thread[1:].split()[0] for thread in finding.upstream.threads)]
            assert entry.link in [f"{THREADS}{number}" for number in numbers], entry.title


def test_the_pages_are_what_the_table_makes() -> None:
    made = pages()
    assert {path.name for path in FOLDER.glob("*.md")} == set(made)
    stale = [name for name, text in made.items() if (FOLDER / name).read_text() != text]
    assert stale == [], "python -m tests.tools.finding_pages"


def test_no_page_claims_that_a_bug_is_unreported() -> None:
    pages_of = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md"), *(PROJECT / "repro").glob("*.toml")]
    assert [path.name for path in pages_of if "unreported" in path.read_text().lower()] == []


def test_an_issue_text_says_what_is_known_upstream() -> None:
    text = issue(material(str(SEEDS / "decode-window-one-short.json"), [], None))
    assert "### Known upstream\n\n- reported #32087 (closed unmerged), #34354 (closed), seen 2026-11-27" in text
    assert "searched for: " in issue(material(str(SEEDS / "draft-rows-end-at-the-context.json"), [], None))
