"""The one order of releases, PEP 440's, and what a seed says should happen where: about.expect maps ranges of releases
to "pass" or "fail by ORACLE".

A range is one or more comparisons, all of which must hold: "<=0.5.10.post1", ">=0.5.11, <0.5.13", "==0.5.12.post1".
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping

from packaging.version import InvalidVersion, Version

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
    # Version also takes what nobody releases under: a leading v, spaces, 1-1 for 1.post1.
    if version is None or str(version) != release:
        raise ValueError(f"{release!r} is no release number")
    return version


def expected(about: Mapping[str, AboutValue], release: str) -> str | None:
    """The oracle that must fail on this release, "" if the case must pass, None if nothing is said of it.

    BadSeed, naming the part, if what is said makes no sense or is said twice. ValueError if `release` is none.
    """
    here = release_order(release)
    said = about.get(NAME, {})
    if not isinstance(said, Mapping):
        raise BadSeed(f"about.{NAME}: expected an object of release ranges")
    outcomes = {text: _outcome(text, outcome) for text, outcome in said.items()}
    meant = [text for text in outcomes if _holds(text, here)]
    if len(meant) > 1:
        raise BadSeed(f"about.{NAME}: {' and '.join(map(repr, meant))} both speak of {release}")
    return outcomes[meant[0]] if meant else None


def in_range(text: str, release: str) -> bool:
    """Whether a release is in a range; what is no release number is in none. BadSeed if the text is no range."""
    try:
        here = release_order(release)
    except ValueError:
        here = None
    return _holds(text, here or release_order("0")) and here is not None


def _outcome(text: str, outcome: str) -> str:
    if outcome == PASS:
        return ""
    match = _FAIL.fullmatch(outcome)
    if not match:
        raise BadSeed(f'about.{NAME}[{text!r}]: {outcome!r} is neither "pass" nor "fail by ORACLE"')
    return match.group(1)


def _holds(text: str, here: Version) -> bool:
    holds = True
    for part in text.split(","):
        match = _COMPARISON.fullmatch(part)
        try:
            comparison, release = match.groups() if match else ("", "")
            holds &= _HOLDS[comparison](here, release_order(release))
        except (KeyError, ValueError):
            raise BadSeed(f"about.{NAME}: {text!r} is no range of releases, such as '>=0.5.11, <0.5.13'") from None
    return holds
