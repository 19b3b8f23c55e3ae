"""The names of attributes that published releases of sglang have in what runs graphs: workers, model runners, graph
runners, their buffers and attention backends. An attribute of another name is a checkout's own."""

from __future__ import annotations

from pathlib import Path

PUBLISHED = frozenset(Path(__file__).with_name("attribute_names.txt").read_text().split())
