"""The report's page: well formed, self-contained, readable by machines, and safe whatever a record says."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import itertools
import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from reports import html
from reports.events import target_order
from reports.records import history_of
from reports.wording import pace, printable
from repro.cases import codec
from repro.cases.case import Target
from repro.traces.campaign import Campaign, Replay
from repro.traces.finding import Cell
from tests.builders import sample_ledger
from tests.builders.sample_record import (
    BUGGY,
    campaign,
    covered,
    many_findings,
    stale_found,
    stale_replays,
    stale_report,
)


class Page(HTMLParser):
    """The parts of a page; `inside` has the text of each script and style, by tag and in order. Fails on a tag that
    is not closed, or not in order."""

    VOID = frozenset({"meta", "link", "br", "rect", "path", "input", "circle", "polyline"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.inside: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} names an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in ("script", "style"):
            self.inside.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.VOID
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag, f"line {self.getpos()[0]}"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.inside[self.open[-1]][-1] += data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def all(self, name: str) -> list[str]:
        """Every value of an attribute."""
        return [value or "" for _, attributes in self.tags for key, value in attributes.items() if key == name]

    def tagged(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


STALE = stale_found()
FINDINGS = {"none": (), "one": (STALE,), "many": many_findings()}
NAMES = ("nothing at all", "stale", "seeds only", "ledger", *FINDINGS)


def rendered(campaigns: Sequence[Campaign], replays: Sequence[Replay]) -> str:
    return html.render(history_of(campaigns, replays))


@functools.cache
def text_of(name: str) -> str:
    """The page of this name."""
    if name == "stale":
        return stale_report()
    if name == "ledger":
        rows = sample_ledger.case_rows(20)
        return html.render(sample_ledger.history(4, rows), rows)
    campaigns = [campaign(BUGGY, FINDINGS[name])] if name in FINDINGS else []
    return rendered(campaigns, [] if name == "nothing at all" else stale_replays(STALE))


@functools.cache
def page_of(name: str) -> Page:
    return Page(text_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_page_is_well_formed(name: str) -> None:
    page = page_of(name)
    ids = page.all("id")
    assert len(set(ids)) == len(ids)
    references = [ref.removeprefix("#") for ref in page.all("href") if ref.startswith("#")]
    references += page.all("data-copy") + [ref for refs in page.all("aria-labelledby") for ref in refs.split()]
    assert set(references) <= set(ids)
    assert text_of(name).startswith("<!DOCTYPE html>\n<html lang=")


@pytest.mark.parametrize("name", NAMES)
def test_page_needs_nothing_from_outside(name: str) -> None:
    page = page_of(name)
    assert all(ref.startswith("#") or ref == "data:," for ref in page.all("href"))
    assert not [value for part in ("src", "srcset", "action", "style", "xlink:href") for value in page.all(part)]
    # The hashes in the policy are base64, in which "//" is no address; what they are is the next test's matter.
    text, hashes = re.subn(r"'sha256-[A-Za-z0-9+/]{43}='", "", text_of(name))
    assert hashes == len(html.STYLES) + len(html.SCRIPTS)
    text = re.sub(r'id="case-data">[A-Za-z0-9+/=]+<', "", text)
    # No address, with a scheme or without (a comment has a space there), and nothing that could fetch one.
    assert not re.search(r"\b(https?|wss?|ftp|file):|//\S", text)
    assert not re.search(r"\bfetch\b|XMLHttpRequest|\bimport\b|WebSocket|sendBeacon", "".join(page.inside["script"]))
    style = "".join(page.inside["style"])
    assert "@import" not in style
    assert set(re.findall(r"url\(.", style)) == {"url(#"}


def test_page_admits_only_its_own_scripts_and_styles() -> None:
    page = page_of("ledger")
    [policy] = [tag["content"] or "" for tag in page.tagged("meta") if "http-equiv" in tag]
    assert policy.startswith("default-src 'none';")
    for part in ("script", "style"):
        # Data in a script is run by no browser.
        runs = [text for text, tag in zip(page.inside[part], page.tagged(part), strict=True) if "id" not in tag]
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in runs]
        hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
        assert f"{part}-src {hashes};" in policy


def test_page_carries_its_cases() -> None:
    rows = sample_ledger.case_rows(20)
    [data] = [text for text in page_of("ledger").inside["script"] if text.startswith("H4sI")]
    cases_of_page = {entry["name"]: entry for entry in json.loads(gzip.decompress(base64.b64decode(data)))}
    assert [cases_of_page["target"]["values"][code] for code in cases_of_page["target"]["codes"]] == [
        row[1] for row in rows
    ]
    assert cases_of_page["case"]["codes"] == "".join(row[6] for row in rows)
    assert cases_of_page["seconds"]["codes"] == [round(row[9], 3) for row in rows]
    assert cases_of_page["target"]["values"] == sorted(cases_of_page["target"]["values"], key=target_order)


@pytest.mark.parametrize("name", NAMES)
def test_page_can_be_heard(name: str) -> None:
    """Landmarks, headings without gaps, headers with a scope, captions, and words for every picture."""
    page = page_of(name)
    counts = Counter(tag for tag, _ in page.tags)
    assert counts["main"] == counts["header"] == counts["nav"] == counts["h1"] == 1
    assert all(tag.get("scope") in ("row", "col", "colgroup") for tag in page.tagged("th"))
    assert counts["table"] == counts["caption"]
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    pictures = [tag for tag in page.tagged("svg") if tag.get("role") == "img"]
    trends = counts["circle"]
    assert len(pictures) == counts["title"] - 1 - trends == counts["desc"]
    assert all(tag.get("aria-hidden") == "true" for tag in page.tagged("svg") if tag not in pictures)
    assert all(tag.get("aria-label") or tag.get("type") == "reset" for tag in page.tagged("button"))
    named = {tag.get("for") for tag in page.tagged("label")}
    assert {tag.get("id") for tag in page.tagged("input") + page.tagged("select")} <= named


def test_a_slow_pace_is_in_minutes() -> None:
    assert [pace(81, 16), pace(1, 152), pace(0, 5), pace(3, 0)] == ["5.1/s", "0.4 a minute", "0.0/s", "0.0/s"]


def test_page_says_what_is_known() -> None:
    text = " ".join(page_of("stale").text.split())
    for phrase in (
        "One new failure, on 0.5.10.post1/emulated. All measurements on 0.5.11/emulated and 0.5.13/emulated pass.",
        "328 100% judged",
        "fails on 0.5.10.post1, fixed in 0.5.11",
        "Linux 6.1 x86_64, 2 cores, no GPU",
        "new 5/5 runs failed",
        f"python -m repro run {STALE.seed} --target 0.5.10.post1/emulated",
        "First wrong cell: step 1 req_pool_indices[1,0] is 2, expected 0.",
        "slot 1, length 1",
        "padding; was slot 2, step 0",
        "unsupported: no adapter fits this release",
        "44 slot0_padding: no padding exercised",
        "Missing: 8 → 2, 8 → 4 padded.",
    ):
        assert phrase in text
    assert "No failure was measured." in page_of("none").text
    assert "Nothing is recorded here." in page_of("nothing at all").text


def test_a_page_without_failures_counts_the_cases_of_known_issues() -> None:
    clean = campaign(BUGGY)
    known = replace(clean, known={"draft: padded rows are stale": 3, "draft: a sum is short": 1})
    text = " ".join(Page(rendered([clean, known], [])).text.split())
    assert text.count("No failure was measured besides those of known issues, in 4 cases.") == 3
    assert "No failure was measured." not in text


def test_page_is_the_same_for_the_same_record() -> None:
    assert stale_report() == stale_report()


HOSTILE = (
    "<script>alert(1)</script>",
    "</title></style></script><img src=x onerror=alert(1)>",
    "\" onmouseover='alert(1)' autofocus onfocus=alert(1) x=\"",
    "{{ 7 * 7 }} {% for x in y %} {# gone #}",
    "&lt;b&gt; &amp; ]]> --><!--",
    "javascript:alert(1)",
    "\x1b[31mred\x1b[0m \x00 \x08 \u202eevil\u2066 \ud800 \ufeff",
)


def poisoned(text: str) -> str:
    """A report in which every text that a record or a ledger can hold is this one."""
    stale, target = stale_found(), f"/{text}@toy"
    cell = Cell(step=1, buffer=text, row=1, column=0, got=text, want=text)
    excerpt = replace(sample_ledger.excerpts()[0], name=text, graph=(text,), eager=("",))
    texts: dict[str, Any] = dict.fromkeys(("fingerprint", "oracle", "where", "detail", "seed"), text)
    finding = replace(stale, **texts, target=target, cell=cell, excerpts=(excerpt,))
    texts = dict.fromkeys(("runner", "backend", "started", "ended", "stopped", "error"), text)
    whole = replace(
        campaign(Target(f"/{text}", "toy"), (finding,), 31),
        **texts,
        verdicts={text: {"pass": 1}},
        endings={text: 1},
        unknown={text: 1},
        unsupported={text: 1},
        errors={text: 2},
        stages={text: 1.0},
        facts={text: text},
        transitions_missing=(),
        transitions=tuple(
            replace(c, transition=replace(c.transition, runner=text, backend=text)) for c in covered()[0]
        ),
    )
    replays = [
        replace(r, seed=text, fingerprint=key, target=target, line=text)
        for r in stale_replays(stale)
        for key in (text, "x")
    ]
    history = history_of([whole], replays)
    names = ("title", "runner", "backend", "role", "expected", "status", "oracle", "seed", "problem", "detail", "at")
    hostile: dict[str, Any] = dict.fromkeys(names, text)
    fix = replace(next(sample_ledger.fixes()), **hostile, engine="toy", target=target)
    run = replace(history.runs[0], kind=text, command=text, host=text, facts={text: text})
    check = replace(next(sample_ledger.checks()), subject=f"seed:{text}", target=target, oracle=text, reason=text)
    history = replace(history, runs=(run, sample_ledger.RUNS[0]), fixes=(fix,), checks=(*history.checks, check))
    cases = [(text, target, text, text, 1, 2, text, text, 1, 0.5, text)]
    return re.sub(r'(?<=id="case-data">)[A-Za-z0-9+/=]+', "", html.render(history, cases))


def shapes(page: Page) -> set[tuple[str, ...]]:
    """Every kind of tag with its attributes."""
    return {(tag, *sorted(attributes)) for tag, attributes in page.tags}


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    harmless, page = Page(poisoned("harmless")), Page(poisoned(text))
    assert shapes(page) <= shapes(harmless).union(*map(shapes, map(page_of, NAMES)))
    assert page.inside == harmless.inside
    assert page.text.count(printable(text)) > 60
    assert poisoned(text).encode()  # half characters, which no file can hold, are spelled out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069\ufeff]", page.text)


def test_command_is_quoted_for_the_shell() -> None:
    seed = "out dir/it's; rm -rf $HOME `x`.json"
    finding = replace(STALE, seed=seed)
    page = Page(rendered([campaign(BUGGY, (finding,))], []))
    # On the card of the failure, and on its page.
    (line,) = {text for text in page.texts if text.startswith("python -m repro")}
    assert shlex.split(line) == ["python", "-m", "repro", "run", seed, "--target", "0.5.10.post1/emulated"]


def test_case_that_is_not_valid_is_said_not_drawn() -> None:
    setup = replace(STALE.case.setup, slots=1, capture_bs=(1,))
    page = Page(rendered([campaign(BUGGY, (replace(STALE, case=replace(STALE.case, setup=setup)),))], []))
    assert "The case cannot be drawn, since it is not valid: step 0" in page.text
    assert not [tag for tag in page.tagged("svg") if tag.get("class") == "panel"]


def test_page_tells_the_callers_buffers_from_the_runners() -> None:
    """The picture's columns are the runner's buffers, and its seq_lens may well be right."""
    cell = Cell(step=1, buffer="seq_lens", row=0, column=0, got="2", want="1")
    for oracle, is_callers in (("callers_batch", True), ("staged", False)):
        finding = replace(STALE, oracle=oracle, cell=cell)
        assert (
            "caller's seq_lens[0,0]: 2, not 1" in Page(rendered([campaign(BUGGY, (finding,))], [])).text
        ) is is_callers


def test_seed_text_on_the_page_is_the_case() -> None:
    [text] = [text for text in page_of("stale").texts if '"cuda_graph_bs_decode"' in text]
    assert codec.loads(text).case == STALE.case
