"""The report as one HTML file that works from file:// without a network: style, script and data are inside it."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from reports import picture, tables, wording
from reports.bugs import Bug, gather, strangers, targets
from repro.case import Case, problems
from repro.codec import Seed, dumps
from repro.finding import Status
from repro.record import Campaign, Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Article:
    """One bug as the page shows it. anchor: its id. unreadable: why its case cannot be drawn, if it cannot."""

    anchor: str
    name: str
    bug: Bug
    command: str
    panels: tuple[picture.Panel, ...]
    seed_text: str
    unreadable: str


def render(campaigns: Sequence[Campaign], replays: Sequence[Replay]) -> str:
    """The whole page. Every text in it is escaped, whatever it holds; the same input gives the same page."""
    bugs = gather(campaigns, replays)
    style, script = _resource("page.css"), _resource("page.js")
    page = _environment().get_template("page.html")
    return page.render(
        style=Markup(style),
        script=Markup(script),
        style_hash=_source_hash(style),
        script_hash=_source_hash(script),
        campaigns=campaigns,
        headline=headline(campaigns, replays),
        targets=targets(campaigns, replays),
        articles=[_article(number, bug) for number, bug in enumerate(bugs, 1)],
        strangers=strangers(bugs, replays),
        verdicts=_by_campaign(tables.verdicts(campaigns).to_dict("records"), len(campaigns)),
        coverage=tables.coverage(campaigns),
        stages=tables.stages(campaigns),
        facts=_facts(campaigns),
    )


def headline(campaigns: Sequence[Campaign], replays: Sequence[Replay]) -> list[str]:
    """What a reader must know first, a sentence each."""
    cases = sum(campaign.cases for campaign in campaigns)
    ran = f"{wording.counted(cases, 'case')} on {wording.counted(len(targets(campaigns, [])), 'target')}"
    bugs = gather(campaigns, replays)
    said = [_found(bugs, ran) if campaigns else "No campaign is recorded here."]
    # Of a target it is said that it passes only if no finding and no stored seed failed there.
    failing = {target for bug in bugs for target in bug.targets("FAIL") + bug.targets("OTHER")}
    seeds = {replay.target for replay in strangers(bugs, replays) if replay.status is Status.FAIL}
    passing = set[str]().union(*(bug.targets("PASS") for bug in bugs)) - failing - seeds
    for pattern, chosen in (
        ("Fails on {}.", failing),
        ("Stored seeds fail on {}.", seeds),
        ("What was replayed on {} passes.", passing),
        ("Stopped by an error: {}.", {str(campaign.target) for campaign in campaigns if campaign.error}),
    ):
        if chosen:
            said.append(pattern.format(wording.listed(sorted(chosen, key=wording.release_order))))
    doubtful = cases - sum(campaign.judged for campaign in campaigns)
    if doubtful:
        said.append(f"{wording.counted(doubtful, 'case')} ({wording.share(doubtful, cases)}) could not be judged.")
    return said


def _found(bugs: Sequence[Bug], ran: str) -> str:
    if not bugs:
        return f"No oracle failed in {ran}."
    unsure = sum(not bug.confirmed for bug in bugs)
    aside = f" ({unsure:,} of them not confirmed)" if unsure else ""
    return f"{wording.counted(len(bugs), 'kind of failure', 'kinds of failure')}{aside} in {ran}."


def _article(number: int, bug: Bug) -> Article:
    bad = problems(bug.best.case)
    fingerprint = bug.fingerprint
    return Article(
        # The fingerprint makes links that last from report to report; an odd one gets a number instead.
        anchor=f"finding-{fingerprint}" if fingerprint.isascii() and fingerprint.isalnum() else f"finding--{number}",
        name=wording.bug_name(bug.oracle, bug.where),
        bug=bug,
        command=wording.replay_command(bug.best.seed, bug.best.target),
        panels=()
        if bad
        else picture.draw(bug.best.case, bug.best.cell, "caller's" if bug.oracle == "callers_batch" else ""),
        seed_text="" if bad else _seed_text(bug.best.case),
        unreadable="; ".join(bad),
    )


def _seed_text(case: Case) -> str:
    return dumps(Seed(about={}, case=case))


def _by_campaign(rows: list[dict[str, object]], campaigns: int) -> list[list[dict[str, object]]]:
    return [[row for row in rows if row["campaign"] == number] for number in range(campaigns)]


def _facts(campaigns: Sequence[Campaign]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Each fact once with the targets it holds for ("" where it holds for all), so that what differs stands out."""
    names = list(dict.fromkeys(name for campaign in campaigns for name in campaign.facts))
    found = []
    for name in names:
        texts: dict[str, list[str]] = {}
        for campaign in campaigns:
            if name in campaign.facts:
                texts.setdefault(campaign.facts[name], []).append(str(campaign.target))
        same = len(texts) == 1 and all(name in campaign.facts for campaign in campaigns)
        found.append((name, [(text, "" if same else ", ".join(dict.fromkeys(whose))) for text, whose in texts.items()]))
    return found


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FunctionLoader(_resource),
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        counted=wording.counted,
        duration=wording.duration,
        share=wording.share,
        rate=wording.rate,
        k_of_n=wording.k_of_n,
        replay_command=wording.replay_command,
        shortened=wording.shortened,
    )
    return environment


def _visible(value: object) -> str:
    """What the template prints: as text with invisible characters spelled out; our own markup as it is."""
    return value if isinstance(value, Markup) else wording.printable(str(value))


def _resource(name: str) -> str:
    return importlib.resources.files("reports").joinpath(name).read_text(encoding="utf-8")


def _source_hash(text: str) -> str:
    """The name by which the page's content security policy admits exactly this style or script, and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
