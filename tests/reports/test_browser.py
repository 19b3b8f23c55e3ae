"""The report as people meet it: in a browser, with a mouse, a keyboard or a screen reader, however much is in it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reports import html
from reports.records import history_of
from repro.ledger.read import History
from repro.traces.finding import Cell
from tests.builders import browser as browsers
from tests.builders import sample_ledger
from tests.builders.project import PROJECT
from tests.builders.sample_record import BUGGY, campaign, stale_found
from tests.builders.tiers import few

pytestmark = pytest.mark.slow

SIZES = {"0": (0, 0), "10": (10, 3), "100000": (100_000, 50)}
HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(2)</script>\" onfocus='alert(3)' autofocus {{ 7 * 7 }}"
SECTIONS: tuple[str, ...] = ("failures", "changes", "matrix", "coverage", "trends", "bugs", "nights")
SECTIONS += ("lines", "recall", "verdicts", "runs", "figures", "cases")
FIRST_PAINT_MAX, FILTER_MAX = 1000, 100  # milliseconds
BYTES_MAX = 5_000_000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    yield from browsers.required()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report of each size, and one in which every text is hostile."""
    folder = tmp_path_factory.mktemp("reports")
    made = {name: folder / f"{name}.html" for name in (*SIZES, "hostile")}
    for name, (cases, findings) in SIZES.items():
        rows = sample_ledger.case_rows(cases)
        history = sample_ledger.history(findings, rows) if cases else History(path=Path())
        made[name].write_text(html.render(history, rows), encoding="utf-8")
    cell = Cell(step=1, buffer=HOSTILE, row=1, column=0, got=HOSTILE, want=HOSTILE)
    texts: dict[str, Any] = dict.fromkeys(("fingerprint", "oracle", "where", "detail", "seed"), HOSTILE)
    finding = replace(stale_found(), **texts, cell=cell)
    whole = replace(campaign(BUGGY, (finding,), 1), runner=HOSTILE, facts={HOSTILE: HOSTILE}, unknown={HOSTILE: 1})
    rows = [("r", HOSTILE, HOSTILE, HOSTILE, 1, 2, HOSTILE, HOSTILE, 1, 0.5, "2026-11-20T00:00:00+00:00")]
    made["hostile"].write_text(html.render(history_of([whole], []), rows), encoding="utf-8")
    return made


@pytest.fixture
def opened(chromium: Any, reports: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[browsers.Sheet]:
    """The report of the size that the test names, 10 if it names none. Whatever is wrong with it fails the test."""
    with browsers.sheet(chromium, reports[getattr(request, "param", "10")]) as sheet:
        yield sheet
        assert sheet.complaints == []


# With all that repeats: a report of so many cases takes seconds to make and to go through.
LARGE = pytest.param("100000", marks=pytest.mark.exhaustive)
every_size = pytest.mark.parametrize("opened", [LARGE if size == "100000" else size for size in SIZES], indirect=True)
large = pytest.mark.parametrize("opened", [LARGE], indirect=True)


def cases_of(page: Any) -> str:
    """The text that says how many cases the table shows."""
    page.wait_for_selector("#case-rows tr, #case-count:not(:empty)", state="attached")
    return str(page.inner_text("#case-count"))


def until(page: Any, holds: str) -> None:
    """Wait for it. Playwright's own way evaluates texts in the page, which the page's policy forbids."""
    end = time.monotonic() + 30
    while not page.evaluate(holds):
        assert time.monotonic() < end, f"never came true: {holds}"
        page.wait_for_timeout(10)


def column(page: Any, name: str) -> list[str]:
    """The texts of a column of the table of cases, as far as they are drawn."""
    place = page.eval_on_selector_all("#case-table thead th", "all => all.map(one => one.textContent)").index(name)
    return list(
        page.eval_on_selector_all(f"#case-rows td:nth-child({place + 1})", "all => all.map(one => one.textContent)")
    )


@every_size
def test_report_opens_without_a_complaint(opened: browsers.Sheet) -> None:
    page = opened.go()
    assert page.inner_text("h1").startswith("eagleeye")
    places = page.eval_on_selector_all("nav a", "all => all.map(one => one.hash)")
    assert places == [f"#{name}" for name in SECTIONS]
    for place in places:
        page.click(f'nav a[href="{place}"]')
        page.wait_for_selector(place)  # and it is seen
        assert page.evaluate("document.activeElement.id") == place[1:]
    # Reading on in a narrow window, everything is there without scrolling sideways.
    page.set_viewport_size({"width": 400, "height": 800})
    for place in places:
        page.click(f'nav a[href="{place}"]')
        page.wait_for_selector(place)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400


@large
def test_cases_are_filtered_and_sorted(opened: browsers.Sheet) -> None:
    page = opened.go("#cases")
    assert cases_of(page) == "100,000 cases"
    rows = sample_ledger.case_rows(100_000)
    failed = [row for row in rows if row[7] == "FAIL" and row[1] == "0.5.13/cuda"]
    page.select_option("#case-result", label="FAIL")
    page.select_option("#case-target", label="0.5.13/cuda")
    until(page, "document.getElementById('case-count').textContent.includes(' of ')")
    until(page, f"document.getElementById('case-count').textContent.startsWith('{len(failed)} of')")
    assert column(page, "Case") == [row[6] for row in failed][: len(column(page, "Case"))]
    page.click("#case-controls button[type=reset]")
    until(page, "document.getElementById('case-count').textContent === '100,000 cases'")
    # By a part of its digest, one case is found among all.
    page.fill("#case-words", f"{rows[54_321][6]} {rows[54_321][1]}")
    until(page, "document.getElementById('case-count').textContent.startsWith('1 of')")
    assert column(page, "Case") == [rows[54_321][6]]
    page.fill("#case-words", "")
    page.click("#case-table th:has-text('Seconds') button")
    slowest = sorted(row[9] for row in rows)
    assert column(page, "Seconds")[0] == f"{slowest[0]:.3f}"
    page.click("#case-table th:has-text('Seconds') button")
    assert column(page, "Seconds")[0] == f"{slowest[-1]:.3f}"
    assert page.get_attribute("#case-table th:has-text('Seconds')", "aria-sort") == "descending"
    # Releases are in their order, not in that of the alphabet.
    page.click("#case-table th:has-text('Target') button")
    assert column(page, "Target")[0] == "0.5.10.post1/cuda"


@large
def test_all_cases_can_be_scrolled_to(opened: browsers.Sheet) -> None:
    page = opened.go("#cases")
    cases_of(page)
    last = sample_ledger.case_rows(100_000)[-1][6]
    page.focus("#case-view")
    page.keyboard.press("End")
    page.wait_for_selector(f"#case-rows tr:last-child td:has-text('{last}')")
    assert page.locator("#case-rows tr").count() < 100
    assert page.get_attribute("#case-rows tr:last-child", "aria-rowindex") == "100001"
    assert page.get_attribute("#case-table", "aria-rowcount") == "100001"
    page.keyboard.press("Home")
    page.wait_for_selector("#case-rows tr[aria-rowindex='2']")


@large
def test_matrix_is_filtered_and_sorted_and_leads_to_the_right_finding(opened: browsers.Sheet) -> None:
    page = opened.go("#matrix")
    seen = "all => all.filter(one => one.checkVisibility()).length"
    shown = page.eval_on_selector_all(".engine tbody tr", seen)
    assert page.inner_text("#matrix-count") == f"{shown} rows"
    page.fill("#matrix-words", "graph_equals_eager tokens")
    assert page.eval_on_selector_all(".engine tbody tr", seen) == 0
    page.fill("#matrix-words", "graph_equals_eager seq_lens")
    assert page.eval_on_selector_all(".engine tbody tr", seen) == 2
    page.fill("#matrix-words", "")
    page.click("label[for=engine-2]")
    page.select_option("#matrix-state", "regressed")
    assert page.inner_text("#matrix-count") == f"1 of {shown} rows"
    assert page.eval_on_selector_all("[data-engine='1'] tbody tr", seen) == 0
    page.click("td.regressed:visible a")
    assert page.inner_text("article:visible h2").startswith("fix #26335 kv_move, triton")
    assert page.title().startswith("fix #26335")
    page.go_back()
    page.select_option("#matrix-state", "")
    page.click("[data-engine='2'] th:has-text('0.5.14') button")
    assert "#26335" in page.inner_text("[data-engine='2'] tbody tr:first-child th")
    assert page.get_attribute("[data-engine='2'] th:has-text('0.5.14')", "aria-sort") == "ascending"


def test_every_square_leads_to_its_own_page(opened: browsers.Sheet) -> None:
    page = opened.go()
    for link in page.query_selector_all(".engine td.square a"):
        row = link.evaluate("one => one.closest('tr').cells[0].querySelector('a').hash")
        assert link.get_attribute("href") == row
        assert page.query_selector(f"article h2{row}") is not None


def test_copy_buttons_copy(opened: browsers.Sheet) -> None:
    page = opened.go("#fix-23037-draft-triton")
    page.click("article:visible > .copied button")
    page.wait_for_selector("article:visible > .copied button:has-text('Copied')")
    assert page.inner_text("#said") == "Copied to the clipboard"
    seed = "repro/seeds/pr23037-stale-padding.json"
    command = f"python -m repro run {seed} --target 0.5.10.post1/emulated"
    assert page.evaluate("navigator.clipboard.readText()") == command
    page.click("article:visible summary")
    page.click("article:visible details button")
    page.wait_for_selector("article:visible details button:has-text('Copied')")
    stored = (PROJECT / seed).read_text(encoding="utf-8")
    assert json.loads(page.evaluate("navigator.clipboard.readText()")) == json.loads(stored)


def test_keyboard_alone_reaches_everything(opened: browsers.Sheet) -> None:
    page = opened.go()
    for place in ("", "#fix-23037-draft-triton", "#cases"):
        opened.go(place)
        until(page, "document.readyState === 'complete'")
        if place == "#cases":
            cases_of(page)
        page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
        left = set(page.evaluate(REACHABLE))
        assert len(left) > 10
        stops = 0
        # Of the squares, one is a stop; from there arrows go to the others.
        while left and stops < 400:
            page.keyboard.press("Tab")
            stops += 1
            left.discard(page.evaluate("document.activeElement.dataset.stop ?? ''"))
            assert page.evaluate(OUTLINED), "what has the focus must be seen to have it"
        assert left == set()


# Everything that can be operated and seen, each with a number; of radio buttons of one name and of squares, one.
REACHABLE = """() => {
  const all = [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]')]
    .filter((one) => one.checkVisibility({ visibilityProperty: true }) && one.tabIndex >= 0)
    .filter((one) => one.type !== 'radio' || one.checked);
  all.forEach((one, number) => (one.dataset.stop = String(number)));
  return all.map((one) => one.dataset.stop);
}"""
OUTLINED = """() => {
  const one = document.activeElement;
  const seen = one.matches('input[type=radio]') ? one.nextElementSibling : one;
  return one === document.body || getComputedStyle(seen).outlineStyle !== 'none';
}"""


def test_arrow_keys_go_from_square_to_square(opened: browsers.Sheet) -> None:
    page = opened.go("#matrix")
    page.focus("[data-engine='1'] tbody tr:first-child td a[tabindex='0']")
    at = "(() => { const c = document.activeElement.closest('td'); return [c.parentElement.rowIndex, c.cellIndex]; })()"
    assert page.evaluate(at) == [1, 1]
    for key, place in (("ArrowRight", [1, 2]), ("ArrowDown", [2, 2]), ("ArrowLeft", [2, 1]), ("ArrowUp", [1, 1])):
        page.keyboard.press(key)
        assert page.evaluate(at) == place
    page.keyboard.press("ArrowUp")  # there is nothing above
    assert page.evaluate(at) == [1, 1]
    page.keyboard.press("Enter")
    assert page.inner_text("article:visible h2").startswith("fix #23037")
    assert page.evaluate("document.activeElement.id") == "fix-23037-draft-triton"


def test_tables_are_sorted_and_filtered_by_keyboard(opened: browsers.Sheet) -> None:
    page = opened.go("#cases")
    assert cases_of(page) == "10 cases"
    page.focus("#case-words")
    page.keyboard.type("draft")
    until(page, "document.getElementById('case-count').textContent.includes(' of 10')")
    page.focus("#case-table th:has-text('Seconds') button")
    page.keyboard.press("Enter")
    seconds = [float(text) for text in column(page, "Seconds")]
    assert seconds == sorted(seconds) and len(seconds) > 1
    assert page.inner_text("#said") == "Sorted by Seconds, ascending"
    page.keyboard.press("Space")
    assert [float(text) for text in column(page, "Seconds")] == seconds[::-1]


PLACES = ("", "#cases", "#fix-23037-draft-triton", "#finding-0001c0ffee01")
# The rules take their time over a large page, so they are asked for what is new: at night the colours, and of a
# large report, which has more of the same, its table of cases.
CONTRAST = {"runOnly": ["color-contrast"]}
AXE: tuple[Any, ...] = (
    ("10", "light", PLACES, {}),
    ("0", "light", PLACES, {}),
    ("10", "dark", ("", "#finding-0001c0ffee01"), CONTRAST),
    ("100000", "light", ("#cases",), {}),
)
ASK_AXE = """async ([large, rules]) => {
  const part = large ? document.querySelector('.view:not(.off)') : document;
  return (await axe.run(part, {resultTypes: ['violations'], ...rules})).violations;
}"""


@pytest.mark.parametrize(("opened", "scheme", "places", "rules"), few(AXE, 1), indirect=["opened"])
def test_axe_finds_nothing_serious(
    opened: browsers.Sheet, scheme: str, places: tuple[str, ...], rules: dict[str, list[str]]
) -> None:
    page = opened.page
    page.emulate_media(color_scheme=scheme)
    for place in places:
        opened.go(place)
        if place and not page.query_selector(place):
            continue
        if place == "#cases" and page.query_selector("#case-data"):
            cases_of(page)
        page.evaluate(browsers.axe())
        violations = page.evaluate(ASK_AXE, [len(places) == 1, rules])
        lines = [
            f"{violation['impact']} {violation['id']}: {[node['target'] for node in violation['nodes']][:3]}"
            for violation in violations
            if violation["impact"] in ("serious", "critical")
        ]
        assert lines == []


@pytest.mark.parametrize("opened", ["hostile"], indirect=True)
def test_hostile_text_stays_text(opened: browsers.Sheet) -> None:
    page = opened.go()
    for link in [
        link_element.get_attribute("href") for link_element in page.query_selector_all("nav a, .engine tbody a")
    ]:
        opened.go(link)
    opened.go("#cases")
    cases_of(page)
    assert HOSTILE in column(page, "Target")
    # Nothing was made of it but text: no image, no script but ours, no attribute.
    assert page.query_selector("img, iframe, object, [onerror], [onfocus], [autofocus]") is None
    kinds = "all => all.map(one => one.type)"
    assert page.eval_on_selector_all("script", kinds) == [*["application/gzip"], *[""] * len(html.SCRIPTS)]
    assert HOSTILE in page.evaluate("document.body.textContent")
    # And were it made into markup, the policy would let nothing of it run.
    page.evaluate(
        "const made = document.createElement('div');"
        'made.innerHTML = \'<img src="data:," onerror="window.ran = 1">\';'
        "document.body.append(made); const script = document.createElement('script');"
        "script.textContent = 'window.ran = 2'; document.body.append(script)"
    )
    page.wait_for_timeout(50)
    assert page.evaluate("window.ran") is None
    assert opened.complaints and all("Content Security Policy" in text for text in opened.complaints)
    opened.complaints.clear()


def test_colours_follow_the_system_and_the_switch(opened: browsers.Sheet) -> None:
    page = opened.go()
    colour = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    day = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    night = page.evaluate(colour)
    assert day != night
    page.click("label[for=theme-light]")
    assert page.evaluate(colour) == day
    opened.go("#trends")
    assert page.evaluate(colour) == day  # it is remembered
    page.click("label[for=theme-dark]")
    assert page.evaluate(colour) == night
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(colour) == day


def test_paper_has_every_page(opened: browsers.Sheet) -> None:
    page = opened.go("#cases")
    page.emulate_media(media="print")
    assert page.eval_on_selector_all("article", "all => all.every(one => one.checkVisibility())")
    assert page.is_visible("#matrix") and not page.is_visible("nav")
    assert page.is_visible(".on-paper")


@large
def test_a_large_report_is_small_and_fast(opened: browsers.Sheet, record_property: Any) -> None:
    size = opened.path.stat().st_size
    # Of several tries the best: whatever else runs on this machine only adds to it.
    paints = []
    for _ in range(4):
        page = opened.go()
        until(page, "performance.getEntriesByName('first-contentful-paint').length")
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    paint = min(paints)
    opened.go("#cases")
    cases_of(page)
    texts = ("f", "fa", "fai", "fail", "fail 0.5.13", "3f", "02:15", "")
    tries = [[page.evaluate(TIMED_FILTER, text) for text in texts] for _ in range(4)]
    filters = max(map(min, zip(*tries, strict=True)))
    for name, figure in (
        ("bytes", size),
        ("first paint, ms", paint),
        (f"slowest of {len(texts)} filters, ms", filters),
    ):
        record_property(name, figure)
        print(f"{name}: {figure:,.0f}")
    assert size <= BYTES_MAX
    assert paint < FIRST_PAINT_MAX
    assert filters < FILTER_MAX


# From a key's event to the frame that shows the answer, in milliseconds.
TIMED_FILTER = """(text) => new Promise((done) => {
  const field = document.getElementById('case-words');
  const start = performance.now();
  new MutationObserver((_, watch) => {
    watch.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
  }).observe(document.getElementById('case-count'), { childList: true });
  field.value = text;
  field.dispatchEvent(new InputEvent('input', { bubbles: true }));
})"""
