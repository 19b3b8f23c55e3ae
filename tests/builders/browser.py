"""A headless Chromium for tests of the report, and why there is none here. It reaches no network: a page that asks for
anything but itself is noticed."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# Where a browser must be there, as in continuous integration: its absence is then an error and no skip.
REQUIRED = "EAGLEEYE_NEED_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str:
    """Its path; empty if there is none."""
    named = os.environ.get("CHROMIUM", "")
    return named or next((path for name in NAMES if (path := shutil.which(name))), "")


def lacking() -> str:
    """Why no browser can be driven here, and what helps; empty if one can."""
    for module in ("playwright", "axe_playwright_python"):
        if not importlib.util.find_spec(module):
            return f"{module} is not installed: make setup-checks"
    return "" if chromium() else "there is no Chromium: apt install chromium, or name one in CHROMIUM"


def axe() -> str:
    """The accessibility rules as a script."""
    spec = importlib.util.find_spec("axe_playwright_python")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8")


def required() -> Iterator[Any]:
    """For a fixture: a running browser; where there is none, its tests are skipped, or fail if REQUIRED is set."""
    why = lacking()
    if why and os.environ.get(REQUIRED):
        pytest.fail(f"{REQUIRED} is set, and {why}")
    if why:
        pytest.skip(why)
    with browser() as started:
        yield started


@contextmanager
def browser() -> Iterator[Any]:
    """A running Chromium, which playwright gives a profile of its own."""
    from playwright.sync_api import sync_playwright  # absent on machines that skip

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            yield started
        finally:
            started.close()


class Sheet:
    """A page under test. complaints: what it wrote to its console, errors, requests beyond its own file, dialogs."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page = page
        self.path = path
        self.complaints: list[str] = []
        page.on("console", lambda message: self.complaints.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", self._request)

    def go(self, hash: str = "") -> Any:
        """Open the file anew, at this place of it."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.path.as_uri()}{hash}")
        return self.page

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        allowed = (self.path.as_uri(), "about:blank", "data:,")
        if not request.url.split("#")[0].startswith(allowed):
            self.complaints.append(f"request: {request.url}")


@contextmanager
def sheet(started: Any, path: Path, **options: Any) -> Iterator[Sheet]:
    """A page in a context of its own, without a network."""
    context = started.new_context(**({"viewport": {"width": 1320, "height": 900}, "offline": True} | options))
    context.set_default_timeout(30_000)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    try:
        yield Sheet(context.new_page(), path)
    finally:
        context.close()
