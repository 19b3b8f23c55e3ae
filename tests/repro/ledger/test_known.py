"""The file of known upstream issues: what it may say, and what that means."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from oracles.catalogue import ALL
from repro.cases import codec
from repro.cases.case import Setup
from repro.cases.conditions import condition
from repro.cases.release_list import ADAPTED, has_runner
from repro.cases.releases import expected
from repro.cases.runner_facts import RUNNER_FACTS
from repro.ledger.known import KNOWN_ISSUES, BadIssues, Issue, explained, load, probed
from repro.ledger.rows import SEED
from repro.traces.finding import Cell, Status, Verdict
from repro.upstream.fixes import SEEDS

SETUP = Setup(runner="draft", topk=1, num_steps=3, num_draft_tokens=4, capture_bs=(2,), slots=2)
ISSUE = """
[[issue]]
title = "rows are stale"
link = "https://example.org/1"
probes = ["seed:a.json"]
targets = [">=0.5.10, <0.5.13", "0.5.13 /cuda", "stale_padding/toy"]
explains = ["draft/triton slot0_padding", "a2dfbbbe8eea"]
expires = 2027-06-01
"""


def issues(folder: Path, text: str = ISSUE) -> tuple[Issue, ...]:
    (folder / "known.toml").write_text(text)
    return load(folder / "known.toml")


def test_what_the_file_says(tmp_path: Path) -> None:
    (issue,) = issues(tmp_path, ISSUE.replace('"0.5.13 /cuda"', '"==0.5.13 /cuda"'))
    assert not issue.crashes
    assert not issue.expired(date(2027, 5, 31)) and issue.expired(date(2027, 6, 1))
    examples = {
        (release, engine)
        for release in ("0.5.9", "0.5.10", "0.5.12.post1", "0.5.13", "stale_padding", "main")
        for engine in ("emulated", "cuda", "toy")
        if issue.holds_on(release, engine)
    }
    ranged = {(release, engine) for release in ("0.5.10", "0.5.12.post1") for engine in ("emulated", "cuda", "toy")}
    assert examples == ranged | {("0.5.13", "cuda"), ("stale_padding", "toy")}


def test_what_an_issue_explains(tmp_path: Path) -> None:
    entries = issues(tmp_path, ISSUE.replace('"0.5.13 /cuda", ', ""))
    assert probed(entries, "seed:a.json", "0.5.10", "cuda") == entries[0]
    assert probed(entries, "seed:b.json", "0.5.10", "cuda") is None
    assert probed(entries, "seed:a.json", "0.5.13", "cuda") is None
    here, draft = ("0.5.12", "emulated"), SETUP
    assert explained(entries, *here, draft, "slot0_padding", "other") == entries[0]
    assert explained(entries, *here, replace(draft, backend="flashinfer"), "slot0_padding", "other") is None
    assert explained(entries, *here, draft, "staged", "other") is None
    assert explained(entries, *here, replace(draft, runner="decode"), "staged", "a2dfbbbe8eea") == entries[0]
    assert explained(entries, "0.5.13", "emulated", draft, "slot0_padding", "a2dfbbbe8eea") is None
    # Not where it cannot show.
    assert explained((replace(entries[0], setups=("window",)),), *here, draft, "slot0_padding", "other") is None


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("topk > 1", {"topk": 2}),
        ("topk == 1", {"topk": 1}),
        ("window", {"window": 4}),
        ("sliding_window > 3", {"window": 4}),
        ("disable_cuda_graph_padding", {"padded": False}),
        ("kv_cache_dtype == fp8_e5m2", {"kv_dtype": "fp8_e5m2"}),
        ("kv_cache_dtype != auto", {"kv_dtype": "fp8_e5m2"}),
        ("not padded", {"padded": False}),
        ("num_steps > adaptive", {"adaptive": 2}),
        ("algorithm == EAGLE3", {"algorithm": "EAGLE3"}),
        ("algorithm != EAGLE", {"algorithm": "NEXTN"}),
        ("latent", {"family": "deepseek_v3"}),
        ("recurrent", {"family": "kimi_linear"}),
    ],
)
def test_a_condition_holds_of_the_setups_that_it_names(text: str, fits: dict[str, Any]) -> None:
    unlike = replace(SETUP, topk=3 - fits.get("topk", 1), adaptive=SETUP.num_steps)
    assert condition(text)(replace(SETUP, **fits)) and not condition(text)(unlike)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("expires = 2027-06-01", "", "issue 1: expires is missing"),
        ("expires = 2027-06-01", 'expires = "soon"', "issue 1.expires: expected a day"),
        ("expires = 2027-06-01", "expires = 2027-06-01T00:00:00", "issue 1.expires: expected a day"),
        ('"seed:a.json"', '"a.json"', 'issue 1.probes: "a.json" is neither seed:FILE nor finding:FINGERPRINT'),
        ('"0.5.13 /cuda"', '"0.5.13"', "'0.5.13' is not a range of releases"),
        ('"0.5.13 /cuda"', '"<0.5.13 /cude"', "no engine of"),
        ("explains = [", 'explain = "x"\nexplains = [', "issue 1: unknown key"),
        ('"rows are stale"', "3", "issue 1.title: expected a text"),
        ("explains = [", 'crashes = "no"\nexplains = [', "issue 1.crashes: expected true or false"),
        ("[[issue]]", "[[issues]]", "unknown key"),
        ("explains = [", 'mended_by = ["#1"]\nexplains = [', 'issue 1.mended_by: "#1" is not one of '),
        (
            "explains = [",
            'setups = ["windows"]\nexplains = [',
            "issue 1.setups: 'windows' is no option with one value; did you",
        ),
        ("explains = [", 'setups = ["recurent"]\nexplains = [', "did you mean recurrent"),
        ("explains = [", 'setups = ["topk>1"]\nexplains = [', "issue 1.setups: 'topk>1' is no condition such as"),
        ("explains = [", 'setups = ["capture_bs > 1"]\nexplains = [', "'capture_bs' is no option with one value"),
        ("explains = [", 'setups = ["algorithm > 1"]\nexplains = [', "algorithm cannot be compared so"),
        ("explains = [", 'setups = ["topk > EAGLE"]\nexplains = [', "topk cannot be compared so"),
        ("title", "title title", "Expected"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(old: str, new: str, reason: str, tmp_path: Path) -> None:
    good = ISSUE.replace('"0.5.13 /cuda"', '"==0.5.13 /cuda"') if "0.5.13 /" not in old else ISSUE
    with pytest.raises(BadIssues) as raised:
        issues(tmp_path, good.replace(old, new))
    assert reason in str(raised.value) and str(raised.value).startswith(str(tmp_path)) and "\n" not in str(raised.value)


def test_a_race_is_explained_though_its_cell_has_lines() -> None:
    where = "written before it is read: a.py write and b.py move"
    issue = next(issue for issue in load(KNOWN_ISSUES) if not issue.mended_by and issue.setups)
    issue = replace(issue, setups=("topk == 1",), explains=(f"draft/triton order: {where}",))
    cell = Cell(step=-1, buffer=f"{where}:79", row=-1, column=-1, got="no order", want="a wait")
    race = Verdict(oracle="order", status=Status.FAIL, where=where, cell=cell)
    assert issue.explains_unmended(SETUP, race)
    assert not issue.explains_unmended(SETUP, replace(race, cell=replace(cell, buffer="another buffer")))


def test_no_file_and_no_issues(tmp_path: Path) -> None:
    with pytest.raises(BadIssues, match="No such file"):
        load(tmp_path / "none.toml")
    assert issues(tmp_path, "") == ()


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(SEEDS.glob("*.json")), ids=lambda path: path.stem)
def test_what_a_stored_seed_shows_is_a_known_issue(path: Path) -> None:
    """Else a nightly campaign that finds it anew is red: add the seed to the probes of an issue."""
    about = codec.read(path).about
    for release in ADAPTED:
        if expected(about, release):
            engines = [e for e in ("emulated", "cuda") if probed(load(), f"{SEED}{path.name}", release, e)]
            assert engines, f"{path.name} fails on {release}, and no issue of {KNOWN_ISSUES.name} says so"


def test_the_projects_own_file_agrees_with_its_seeds() -> None:
    """A stored seed and the issue that it probes say the same of a release."""
    oracles = {judge.__module__.removeprefix("oracles.") for judge in ALL}
    for issue in load(KNOWN_ISSUES):
        assert issue.link.startswith("https://")
        # Somebody looks at each again within a year; that one has expired is what a nightly run says.
        assert issue.expires <= date.today() + timedelta(days=366)
        for text in issue.explains:
            setup, _, oracle = text.partition(": ")[0].partition(" ")
            runner, _, backend = setup.partition("/")
            assert backend in RUNNER_FACTS[runner].backends and oracle in oracles, text
        # Where nothing mends it, it says which failures of which setups it explains, or it explains none.
        assert issue.mended_by or (issue.setups and all(": " in text for text in issue.explains)), issue.title
        for probe in issue.probes:
            seed = codec.read(SEEDS / probe.removeprefix(SEED))
            its = seed.case.setup
            # One bug may hide another in the same seed: together their issues say when it fails.
            known = [other for other in load(KNOWN_ISSUES) if probe in other.probes]
            for release in (each for each in ADAPTED if has_runner(each, its.runner, its.backend)):
                holds = any(other.holds_on(release, engine) for other in known for engine in ("cuda", "emulated"))
                assert bool(expected(seed.about, release)) == holds, (probe, release)


def test_an_issue_that_nothing_mends_explains_what_its_seed_showed() -> None:
    """An issue explains nothing that lacks the first wrong buffer and does not name it by the failure's place."""
    shown = 0
    for issue in (issue for issue in load(KNOWN_ISSUES) if not issue.mended_by):
        for seed in (codec.read(SEEDS / probe.removeprefix(SEED)) for probe in issue.probes):
            about, its = seed.about, seed.case.setup
            release, _, engine = str(about["found"]).partition("/")
            buffer = re.match(r"step \d+ ([\w ]+)\[", str(about.get("cell", "")))
            if not buffer or not issue.holds_on(release, engine):
                continue
            cell = Cell(step=0, buffer=buffer[1], row=0, column=0, got="", want="")
            runners = (its.runner, *RUNNER_FACTS[its.runner].launches)
            failures = [
                Verdict(
                    oracle=str(about["oracle"]), status=Status.FAIL, where=str(about["where"]), cell=cell, runner=runner
                )
                for runner in runners
            ]
            assert any(issue.explains_unmended(its, failure) for failure in failures), issue.title
            shown += 1
    assert shown >= 8
