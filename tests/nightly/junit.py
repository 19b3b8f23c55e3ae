"""JUnit's XML of a run that has not ended, or never will: what is known so far, and an error that says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree import ElementTree

from repro.cases.places import log_line

_TAGS = ("error", "failure", "skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A test that has ended. tag: of JUnit; empty where it passed."""

    name: str
    seconds: float
    tag: str = ""
    text: str = ""


def unfinished(rows: Iterable[Row], text: str) -> str:
    """text: why there is no more. It is an error of the suite, so that no reader takes the file for green."""
    every = [*rows, Row(name="nightly", seconds=0.0, tag="error", text=text)]
    counts = {f"{tag}s" if tag != "skipped" else tag: sum(row.tag == tag for row in every) for tag in _TAGS}
    root = ElementTree.Element("testsuites")
    attributes = {name: str(count) for name, count in counts.items()}
    suite = ElementTree.SubElement(root, "testsuite", {"name": "nightly", "tests": str(len(every)), **attributes})
    for row in every:
        case = ElementTree.SubElement(suite, "testcase", name=log_line(row.name), time=f"{row.seconds:.3f}")
        if row.tag:
            lines = [log_line(line) for line in row.text.splitlines()]
            ElementTree.SubElement(case, row.tag, message=(lines or [""])[0]).text = "\n".join(lines)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
