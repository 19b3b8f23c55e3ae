"""WCAG 2.1 AA, as far as rules can tell, of a site, whose index is the report: wide, on a phone, by day, by night."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reports import site
from repro.ledger.known import load
from tests.builders import browser as browsers
from tests.builders import sample_ledger
from tests.builders.tiers import few

pytestmark = pytest.mark.slow

WIDE, PHONE = {"width": 1320, "height": 900}, {"width": 390, "height": 844}
FINDING = "finding-0001c0ffee01"
ASK = """async () => (await axe.run(document, {
  resultTypes: ['violations'],
  runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'],
})).violations.map(rule => `${rule.id}: ${rule.nodes.slice(0, 3).map(node => node.target).join(' ')}`)"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    yield from browsers.required()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site")
    rows = sample_ledger.case_rows(10)
    history = sample_ledger.history(3, rows)
    site.write(history, path, load(), rows)
    return path


@pytest.mark.parametrize(
    ("page", "viewport", "scheme"),
    few(
        [
            (f"findings/{FINDING}.html", PHONE, "dark"),
            ("index.html", PHONE, "dark"),
            (f"findings/{FINDING}.html", WIDE, "light"),
        ],
        1,
    ),
)
def test_no_rule_of_wcag_is_broken(
    chromium: Any, folder: Path, page: str, viewport: dict[str, int], scheme: str
) -> None:
    with browsers.sheet(chromium, folder / page, viewport=viewport) as sheet:
        sheet.page.emulate_media(color_scheme=scheme)
        opened = sheet.go()
        opened.evaluate(browsers.axe())
        assert opened.evaluate(ASK) == []
        assert opened.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        assert sheet.complaints == []


def test_a_page_of_a_site_leads_to_the_report(chromium: Any, folder: Path) -> None:
    with browsers.sheet(chromium, folder / "findings" / f"{FINDING}.html") as sheet:
        page = sheet.go()
        page.click("text=Matrix")
        page.wait_for_selector("#matrix")
        assert page.url == f"{(folder / 'index.html').as_uri()}#matrix"
        page.goto(f"{(folder / 'index.html').as_uri()}#{FINDING}")
        page.click(f'a[href="findings/{FINDING}.html"]')
        page.wait_for_selector("text=As an issue, in Markdown")
