"""The report as one HTML file that works from file:// without a network: style, script and data are inside it."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import itertools
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from reports import changes, frames, growth, packing, tables, trends, wording
from reports.cards import cards
from reports.events import Square, release_and_engine, target_order
from reports.frames import CaseTuple
from reports.lines import by_date, by_file
from reports.nights import bugs, nights
from reports.pages import columns, pages
from reports.subjects import Subject, subjects, targets
from repro.ledger.known import Issue
from repro.ledger.read import History
from repro.ledger.rows import FixRow
from repro.recall import rows as recall
from repro.recall.results import by_family
from repro.traces.campaign import Campaign
from repro.upstream.findings import THREADS, load

STYLES = ("page.css", "matrix.css", "cases.css", "print.css")
SCRIPTS = ("page.js", "matrix.js", "cases.js", "case_table.js")
CHANGES_MAX = 12
CARDS_MAX = 12
RUNS_MAX = 60
CAMPAIGNS_MAX = 200
# The states of a square, those that want attention first: the order in which the matrix sorts.
MEANINGS = (
    ("regressed", "fails, and had passed there before"),
    ("new", "fails, and is not a known issue"),
    ("flaky", "fails in some runs and not in others"),
    ("known", "fails as before, as its seed expects, or as a known upstream issue explains"),
    ("unconfirmed", "a campaign saw it, no fresh process did"),
    ("unknown", "ran and could not be judged, or fails there in another way"),
    ("cannot run", "was never measured there; the reason is on its page"),
    ("fixed", "the first release that passes after one that fails; or it failed there once and passes now"),
    ("passing", "never failed there"),
    ("not run", "no run is recorded"),
)
REASONS_MAX = 20
_THREAD = re.compile(r"#(\d{4,5})\b")
ROLES = {"buggy": "last buggy release", "fixed": "first fixed release", "newest": "newest release"}


Parts = dict[str, Any]  # what the templates print, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Seconds by stage, with their shares; a column for each engine."""

    columns: list[str]
    rows: list[tuple[str, list[tuple[float, str]]]]


def render(
    history: History,
    cases: Iterable[CaseTuple] = (),
    issues: Sequence[Issue] = (),
    leaves: Mapping[str, str] | None = None,
) -> str:
    """The whole page. Every text in it is escaped, whatever it holds; the same input gives the same page.

    cases: every run of a case, as History.case_rows gives them. issues: those known upstream. leaves: of a site, the
    address of each subject's page, by its anchor."""
    all_subjects = subjects(history, issues)
    causes = cards(all_subjects, issues, load())
    parts = (
        _looks()
        | {"cards": causes, "cards_max": CARDS_MAX, "bugs": bugs(causes, history), "nights": nights(history)}
        | _recall()
        | _summary(history, all_subjects)
        | _matrix(history, all_subjects)
        | _record(history)
        | _cases(history, cases)
        | {"leaves": leaves or {}}
    )
    return template("page.html").render(parts)


def _recall() -> Parts:
    """The outcomes of recall, by family."""
    rows = recall.load()
    return {"recall": by_family(rows), "recall_days": sorted({row.ran for row in rows if row.ran})}


def render_leaves(history: History, all_subjects: Sequence[Subject], texts: Mapping[str, str]) -> dict[str, str]:
    """A page for each subject, by its anchor, in the same design. texts: of issues, by anchor. Links to another subject
    or a section lead to the report, which is one folder up."""
    leaf = template("site.html")
    parts = _looks(SCRIPTS[:1]) | _matrix(history, all_subjects)
    pages_of = {}
    for page in parts["pages"]:
        anchor = page.subject.anchor
        title = {"title": page.subject.name, "subtitle": _subtitle(history)}
        text = leaf.render(parts | title | {"page": page, "leaves": {}, "issue": texts.get(anchor, "")})
        pages_of[anchor] = text.replace('href="#', 'href="../index.html#').replace("../index.html#main", "#main")
    return pages_of


def _looks(script_names: Sequence[str] = SCRIPTS) -> Parts:
    styles, scripts = ([_resource(name) for name in names] for names in (STYLES, script_names))
    return {
        "styles": list(map(Markup, styles)),
        "scripts": list(map(Markup, scripts)),
        "style_hashes": list(map(_source_hash, styles)),
        "script_hashes": list(map(_source_hash, scripts)),
    }


def _summary(history: History, all_subjects: Sequence[Subject]) -> Parts:
    last = changes.latest(history)
    since = changes.changes(all_subjects, last)
    return {
        "title": _title(history, len(all_subjects)),
        "subtitle": _subtitle(history),
        "headline": changes.headline(history, all_subjects),
        "tiles": changes.tiles(history, all_subjects),
        "latest": last,
        "changes": [(word, since[word], absent) for word, absent in changes.WORDS],
        "shown_max": CHANGES_MAX,
    }


def _matrix(history: History, all_subjects: Sequence[Subject]) -> Parts:
    releases = columns(targets(history))
    shown = pages(all_subjects, list(releases), releases)
    met = {square.state for page in shown for line in page.grid.values() for square in line.values()}
    return {
        "pages": shown,
        "engines": list(releases),
        "releases": releases,
        "all_releases": _all_releases(releases),
        "not_run": Square(target=""),
        "states": [state for state, _ in MEANINGS if state in met],
        "meanings": [(state, meaning) for state, meaning in MEANINGS if state in met],
        "days": defaultdict(str, {run.id: run.started[5:10] for run in history.runs}),
        "run_names": defaultdict(lambda: "-", {run.id: f"{run.kind} {run.id[:6]}" for run in history.runs}),
    }


def _record(history: History) -> Parts:
    campaigns = [row.campaign for row in history.campaigns]
    return {
        "no_failures": changes.no_failures(history),
        "coverage": tables.coverage(campaigns),
        "trends": trends.trends(history),
        "trend_size": (trends.WIDTH, trends.HEIGHT),
        "charts": growth.charts(campaigns),
        "chart_size": (growth.WIDTH, growth.HEIGHT, growth.EDGE),
        "verdicts": _verdicts(campaigns),
        "reasons": _reasons(campaigns),
        "line_days": by_date(history),
        "line_files": by_file(history),
        "runs": history.runs,
        "runs_max": RUNS_MAX,
        "campaigns": list(reversed(campaigns)),
        "campaigns_max": CAMPAIGNS_MAX,
        "facts": _facts(campaigns),
        "stages": _stages(campaigns),
    }


def _cases(history: History, cases: Iterable[CaseTuple]) -> Parts:
    # More than the page can hold need not be held here either; all of them are counted.
    frame = frames.cases(deque(cases, maxlen=packing.CASES_MAX))
    return {
        "total_cases": max(len(frame), changes.case_counts(history)[0]),
        "packed_count": len(frame),
        "packed_cases": packing.pack(packing.columns(frame, history.runs)) if len(frame) else "",
    }


def _title(history: History, count: int) -> str:
    if not history.runs:
        return "nothing recorded"
    return f"{wording.counted(count, 'subject')}, {wording.counted(len(targets(history)), 'target')}"


def _subtitle(history: History) -> str:
    if not history.runs:
        return "an empty ledger"
    days = list(dict.fromkeys(run.started[:10] for run in history.runs if run.started))
    span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else ""
    return f"{wording.counted(len(history.runs), 'run')}, {span}".removesuffix(", ")


def _all_releases(releases: dict[str, list[str]]) -> list[str]:
    every = {f"{release}/" for ones in releases.values() for release in ones}
    return [release_and_engine(target)[0] for target in sorted(every, key=target_order)]


def _verdicts(campaigns: Sequence[Campaign]) -> list[dict[str, object]]:
    """The verdicts of each oracle, counted over all campaigns."""
    frame = tables.verdicts(campaigns).groupby("oracle", sort=True)[["PASS", "UNKNOWN", "FAIL"]].sum().reset_index()
    return [dict(row) for row in frame.to_dict("records")]


def _reasons(campaigns: Sequence[Campaign]) -> dict[str, dict[str, int]]:
    """Endings of runs, reasons of doubt of oracles and runs, and stale values without a known reader, most often
    first."""
    reasons: dict[str, dict[str, int]] = {}
    for name in ("endings", "unknown", "unsupported", "errors"):
        total: Counter[str] = Counter()
        for campaign in campaigns:
            total.update(getattr(campaign, name))
        reasons[name] = dict(total.most_common(REASONS_MAX))
    reasons["stale"] = dict(itertools.islice(wording.stale(campaigns).items(), REASONS_MAX))
    return reasons


def _stages(campaigns: Sequence[Campaign]) -> Stages | None:
    """Seconds by stage and engine."""
    engines = list(dict.fromkeys(campaign.target.engine for campaign in campaigns))
    frame = tables.stages(campaigns)
    if frame.empty:
        return None
    by_engine = frame.T.groupby([campaign.target.engine for campaign in campaigns], sort=False).sum().T
    rows = [
        (
            str(stage),
            [
                (
                    float(by_engine.at[stage, engine]),
                    wording.share(by_engine.at[stage, engine], by_engine[engine].sum()),
                )
                for engine in engines
            ],
        )
        for stage in by_engine.index
    ]
    return Stages(columns=engines, rows=rows)


def _facts(campaigns: Sequence[Campaign]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Each fact once with the targets it holds for ("" where it holds for all), so that what differs stands out."""
    names = list(dict.fromkeys(name for campaign in campaigns for name in campaign.facts))
    facts = []
    for name in names:
        texts: dict[str, list[str]] = {}
        for campaign in campaigns:
            if name in campaign.facts:
                texts.setdefault(campaign.facts[name], []).append(str(campaign.target))
        same = len(texts) == 1 and all(name in campaign.facts for campaign in campaigns)
        facts.append((name, [(text, "" if same else ", ".join(dict.fromkeys(whose))) for text, whose in texts.items()]))
    return facts


def _role(stop: FixRow) -> str:
    """The stop of a proof in words."""
    return ROLES.get(stop.role, "the fixed release, without the fix" if stop.role else "the proof")


def _said(square: Square) -> str:
    """A square in words, for who points at it."""
    runs = f", {square.failed} of {square.tried} runs failed" if square.tried else ""
    flaky = f", {wording.share(square.rate, 1)} of the last runs failed" if square.state == "flaky" else ""
    why = f": {wording.shortened(square.why, 200)}" if square.why else ""
    return f"{square.target}: {square.state}{runs}{flaky}{why}"


def _rank(state: str) -> int:
    return [state_name for state_name, _ in MEANINGS].index(state)


def template(name: str) -> Template:
    """One of this package's files as a template, which escapes what it prints."""
    return _environment().get_template(name)


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
        shortened=wording.shortened,
        linked=_linked,
        rank=_rank,
        role=_role,
        said=_said,
    )
    return environment


def _linked(text: str) -> Markup:
    """A text of eagleeye in which code stands between backquotes, and #NUMBER is a thread of sglang's tracker."""
    parts = []
    for place, part in enumerate(text.split("`")):
        escaped = str(escape(wording.printable(part)))
        linked = _THREAD.sub(lambda match: f'<a href="{THREADS}{match[1]}">{match[0]}</a>', escaped)
        parts.append(f"<code>{escaped}</code>" if place % 2 else linked)
    return Markup("".join(parts))


def _visible(value: object) -> str:
    """The text that the template prints: invisible characters are spelled out, our own markup stays as it is."""
    return value if isinstance(value, Markup) else wording.printable(str(value))


def _resource(name: str) -> str:
    return importlib.resources.files("reports").joinpath(name).read_text(encoding="utf-8")


def _source_hash(text: str) -> str:
    """The name by which the page's content security policy admits exactly this style or script, and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
