"""The results of a check as JUnit's XML: a test case for each setup of the plan, whose failures are what the change
brings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from fuzz.check.causes import Cause
from fuzz.check.guard import Checked
from fuzz.check.plan import Item
from fuzz.check.summary import headline, sentences
from repro.cases.places import log_line

# The tags of a test case that did not pass.
FAILURE, ERROR, SKIPPED = "failure", "error", "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestCase:
    """A row of the file. tag: empty if it passed. lines: for a person; the first is the message."""

    group: str
    name: str
    tag: str = ""
    lines: tuple[str, ...] = ()


def junit(checked: Checked, unknown: str = "") -> str:
    """The XML. unknown: "pass" if what is in doubt is skipped, as it makes no exit code; else it is an error."""
    rows = list(_rows(checked, SKIPPED if unknown == "pass" else ERROR))
    counts = {"tests": len(rows)} | {
        name: sum(row.tag == tag for row in rows)
        for name, tag in (("failures", FAILURE), ("errors", ERROR), ("skipped", SKIPPED))
    }
    totals = {name: str(count) for name, count in counts.items()}
    root = ElementTree.Element("testsuites", {"name": "eagleeye", **totals})
    suite = ElementTree.SubElement(root, "testsuite", {"name": "fuzz check", **totals})
    properties = ElementTree.SubElement(suite, "properties")
    for name, text in (("target", str(checked.target)), ("against", checked.against), ("sglang", checked.release)):
        ElementTree.SubElement(properties, "property", {"name": name, "value": log_line(text)})
    for row in rows:
        element = ElementTree.SubElement(suite, "testcase", {"classname": row.group, "name": log_line(row.name)})
        if row.tag:
            lines = [log_line(line) for line in row.lines]
            ElementTree.SubElement(element, row.tag, {"message": lines[0]}).text = "\n".join(lines)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _rows(checked: Checked, doubt: str) -> Iterator[TestCase]:
    brought: dict[str, list[Cause]] = {}
    for cause in checked.causes:
        for name in dict.fromkeys(failing.item for failing in cause.cases):
            brought.setdefault(name, []).append(cause)
    for number, item in enumerate(checked.plan.items):
        group = ".".join(item.pair)
        if causes := brought.get(item.name):
            lines = tuple(line for cause in causes for line in (*sentences(cause), checked.replay(cause)))
            yield TestCase(group=group, name=item.name, tag=FAILURE, lines=lines)
        else:
            tag, why = _without_failure(checked, number, item, doubt)
            yield TestCase(group=group, name=item.name, tag=tag, lines=(why,))
    for number, text in enumerate(checked.unsure, 1):
        yield TestCase(group="uncertain", name=f"uncertain {number}", tag=doubt, lines=(text,))
    if checked.stopped:
        yield TestCase(group="check", name="the whole plan", tag=ERROR, lines=(headline(checked),))


def _without_failure(checked: Checked, number: int, item: Item, doubt: str) -> tuple[str, str]:
    """The tag of an item that brings no failure, and the reason."""
    if item.pair in checked.errors:
        return doubt, f"{'/'.join(item.pair)} could not be run: {checked.errors[item.pair]}"
    if number >= checked.done:
        return SKIPPED, "not run: the check was stopped"
    if item.name in checked.refused:
        return SKIPPED, f"this release does not have it: {checked.refused[item.name]}"
    if item.name in checked.doubtful:
        return doubt if item.pair in checked.unjudged else SKIPPED, "no case could be judged"
    if checked.stopped and any(failing.item == item.name for failing in checked.failing):
        return doubt, "it fails, and was not compared"
    return "", ""
