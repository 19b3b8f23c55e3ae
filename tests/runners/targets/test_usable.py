"""The releases that can be used here, and fetching others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runners.targets import usable as usable_module
from runners.targets.environments import MARKER, NotUsable
from runners.targets.usable import fetch, usable


def cache_of(folder: Path, *releases: str) -> Path:
    for release in releases:
        path = folder / "targets" / release
        (path / "sglang" / "srt").mkdir(parents=True)
        (path / MARKER).write_text(json.dumps({"release": release}))
    return folder


def test_what_is_installed_is_what_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usable_module, "lacks", lambda target, cache: "no engine" if target.sglang == "0.5.14" else "")
    assert usable("emulated", tmp_path) == []
    assert usable("emulated", cache_of(tmp_path, "0.5.13", "0.5.14", "0.5.12.post1")) == ["0.5.12.post1", "0.5.13"]


def test_what_is_missing_is_fetched_and_what_cannot_be_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases: list[str] = []

    def install(release: str, cache: Path | None, **_: object) -> bool:
        releases.append(release)
        if release == "0.5.14":
            raise NotUsable("no index here")
        return True

    monkeypatch.setattr(usable_module, "install", install)
    cache = cache_of(tmp_path, "0.5.13")
    assert fetch(["0.5.13", "0.5.11", "0.5.11"], cache) == []
    assert releases == ["0.5.11"]
    assert fetch(["0.5.15.post1", "0.5.14"], cache) == ["no index here"]
    assert releases == ["0.5.11", "0.5.14"]
