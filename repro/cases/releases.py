"""The one order of releases, PEP 440's, and what a seed says should happen where: about.expect maps ranges of releases
to "pass" or "fail by ORACLE".

A range is one or more comparisons, all of which must hold: "<=0.5.10.post1", ">=0.5.11, <0.5.13", "==0.5.12.post1".
"/cuda" or "/emulated" behind one: on this engine alone, where it goes before what is said of all.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping

from packaging.version import InvalidVersion, Version

from repro.cases.case import ENGINES
from repro.cases.codec import AboutValue, BadSeed

NAME = "expect"
PASS = "pass"
_FAIL = re.compile(r"fail by (\w+)")
_COMPARISON = re.compile(r"\s*(<=|>=|==|<|>)\s*([0-9][0-9A-Za-z.+]*)\s*")
_HOLDS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt, ">": operator.gt}


def release_order(release: str) -> Version:
    """A sort key: 0.5.13.dev2 before 0.5.13rc1 before 0.5.13 before 0.5.13.post2 before 0.5.13.post10. ValueError if it
    is no release number in PEP 440's normal form."""
    try:
        version = Version(release)
    except InvalidVersion:
        version = None
    # Version also accepts forms that no release uses: a leading v, spaces, 1-1 for 1.post1.
    if version is None or str(version) != release:
        raise ValueError(f"{release!r} is not a release number")
    return version


def expected(about: Mapping[str, AboutValue], release: str, engine: str = "") -> str | None:
    """The oracle that must fail on this release, "" if the case must pass, None if the seed does not mention it.
    engine: "" for what is said of all.

    BadSeed, naming the part, if an expectation is invalid or given twice. ValueError if `release` is not a release.
    """
    order = release_order(release)
    ranges = about.get(NAME, {})
    if not isinstance(ranges, Mapping):
        raise BadSeed(f"about.{NAME}: expected an object of release ranges")
    outcomes = {text: _outcome(text, outcome) for text, outcome in ranges.items()}
    meant = [text for text in outcomes if _holds(text.partition("/")[0], order)]
    of_engine, of_all = ([text for text in meant if engine_of(text) == each] for each in (engine, ""))
    if len(spoken := of_engine or of_all) > 1:
        raise BadSeed(f"about.{NAME}: {' and '.join(map(repr, spoken))} both speak of {release}")
    return outcomes[spoken[0]] if spoken else None


def engine_of(text: str) -> str:
    """The engine behind a range of releases; "" if there is none. BadSeed if it is no engine."""
    engine = text.partition("/")[2].strip()
    if engine not in ("", *ENGINES):
        raise BadSeed(f"{text!r}: no engine of {', '.join(ENGINES)}")
    return engine


def in_range(text: str, release: str) -> bool:
    """True if a release is in a range; a text that is not a release number is in no range. BadSeed for an invalid
    range."""
    try:
        order = release_order(release)
    except ValueError:
        order = None
    return _holds(text, order or release_order("0")) and order is not None


def _outcome(text: str, outcome: str) -> str:
    engine_of(text)
    if outcome == PASS:
        return ""
    match = _FAIL.fullmatch(outcome)
    if not match:
        raise BadSeed(f'about.{NAME}[{text!r}]: {outcome!r} is neither "pass" nor "fail by ORACLE"')
    return match.group(1)


def _holds(text: str, order: Version) -> bool:
    holds = True
    for part in text.split(","):
        match = _COMPARISON.fullmatch(part)
        try:
            comparison, release = match.groups() if match else ("", "")
            holds &= _HOLDS[comparison](order, release_order(release))
        except (KeyError, ValueError):
            raise BadSeed(f"about.{NAME}: {text!r} is not a range of releases such as '>=0.5.11, <0.5.13'") from None
    return holds
