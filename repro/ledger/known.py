"""Known upstream issues: the small file known_issues.toml, which says what may fail where, and until when."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from repro.cases import json_parts
from repro.cases.bounded_file import read_text
from repro.cases.case import ENGINES, Setup
from repro.cases.conditions import BadCondition, condition
from repro.cases.releases import engine_of, in_range
from repro.cases.runner_facts import RUNNER_FACTS
from repro.ledger.rows import FINDING, SEED
from repro.traces.finding import Verdict
from repro.upstream.patch_table import BY_NAME

KNOWN_ISSUES = Path(__file__).resolve().parents[1] / "known_issues.toml"
_TEXT_MAX = 300
_BYTES_MAX = 1 << 20
_REQUIRED = frozenset({"title", "link", "probes", "targets", "explains", "expires"})
_OPTIONAL = frozenset({"crashes", "mended_by", "owner", "setups"})


class BadIssues(ValueError):
    """The file of known issues makes no sense. The text, one line, names the part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """A known issue: the head of known_issues.toml says what each field is. mended_by: names of backports. setups:
    conditions."""

    title: str
    link: str
    probes: tuple[str, ...]
    targets: tuple[str, ...]
    explains: tuple[str, ...]
    expires: date
    crashes: bool = False
    mended_by: tuple[str, ...] = ()
    setups: tuple[str, ...] = ()
    owner: str = ""

    def concerns(self, setup: Setup) -> bool:
        """True if it says anything of this runner, or of one that it launches, and of this backend, and all its
        conditions hold."""
        runners = (setup.runner, *RUNNER_FACTS[setup.runner].launches)
        places = tuple(f"{runner}/{setup.backend} " for runner in runners)
        named = any(text.startswith(places) for text in self.explains)
        return named and all(condition(text)(setup) for text in self.setups)

    def names(self, setup: Setup, verdict: Verdict) -> bool:
        """True if it names this failure: runner, backend, oracle, where, and the first wrong buffer if it says one."""
        return self.concerns(setup) and bool({*_named(setup, verdict)} & {*self.explains})

    def explains_unmended(self, setup: Setup, verdict: Verdict) -> bool:
        """True if this failure is put down to it where nothing can be mended: it says which setups it concerns, and
        names the failure with its first wrong buffer. Less would hide whatever else fails there."""
        return bool(self.setups) and self.concerns(setup) and _named(setup, verdict)[-1] in self.explains

    def holds_on(self, release: str, engine: str) -> bool:
        """True if this target is one of its targets. A target without a release number is not."""
        return any(_holds(text, release, engine) for text in self.targets)

    def expired(self, today: date) -> bool:
        return today >= self.expires

    def __str__(self) -> str:
        return f"{self.title} ({self.link}, until {self.expires})"


def probed(issues: Iterable[Issue], subject: str, release: str, engine: str) -> Issue | None:
    """The issue that this subject is a probe of, on this target."""
    return next((issue for issue in issues if subject in issue.probes and issue.holds_on(release, engine)), None)


def explained(
    issues: Iterable[Issue], release: str, engine: str, setup: Setup, oracle: str, fingerprint: str
) -> Issue | None:
    """The issue that may be why a campaign finds this, for a person to read. Whether it is, only an experiment says
    (repro/ledger/explain.py)."""
    oracle_of = f"{setup.runner}/{setup.backend} {oracle}"
    names = {fingerprint, f"{FINDING}{fingerprint}"}
    for issue in issues:
        of_oracle = oracle_of in {text.partition(": ")[0] for text in issue.explains} and issue.concerns(setup)
        if issue.holds_on(release, engine) and (of_oracle or names & {*issue.explains, *issue.probes}):
            return issue
    return None


def _named(setup: Setup, verdict: Verdict) -> tuple[str, str]:
    """The failure as a line of `explains`, without its first wrong buffer and with it, if it has one that its place
    does not name."""
    named = f"{verdict.runner or setup.runner}/{setup.backend} {verdict.oracle}: {verdict.where}"
    # The places of a race have no lines, as these move from release to release.
    buffer = re.sub(r":\d+", "", verdict.cell.buffer) if verdict.cell else ""
    buffer = "" if buffer in verdict.where else buffer
    return named, f"{named} [{buffer}]" if buffer else named


def load(path: Path = KNOWN_ISSUES) -> tuple[Issue, ...]:
    """The issues of this file. BadIssues."""
    try:
        form = tomllib.loads(read_text(path, _BYTES_MAX))
        fields = json_parts.as_fields("file", form, required=frozenset(), optional=frozenset({"issue"}))
        items = json_parts.as_list("issue", fields.get("issue", []))
        return tuple(_issue(f"issue {number}", item) for number, item in enumerate(items, start=1))
    except OSError as error:
        raise BadIssues(f"{path}: {error.strerror or error}") from error
    except (RecursionError, ValueError) as error:
        raise BadIssues(f"{path}: {error}") from error


def _issue(part: str, value: object) -> Issue:
    fields = json_parts.as_fields(part, value, required=_REQUIRED, optional=_OPTIONAL)

    def text(name: str) -> str:
        return json_parts.as_text(f"{part}.{name}", fields[name], _TEXT_MAX)

    def texts(name: str) -> tuple[str, ...]:
        items = json_parts.as_list(f"{part}.{name}", fields[name])
        return tuple(json_parts.as_text(f"{part}.{name}", item, _TEXT_MAX) for item in items)

    # A datetime is a date as well, and cannot be compared with one.
    if type(fields["expires"]) is not date:
        raise json_parts.Refused(f"{part}.expires: expected a day, such as 2027-06-01")
    if not isinstance(fields.get("crashes", False), bool):
        raise json_parts.Refused(f"{part}.crashes: expected true or false")
    issue = Issue(
        title=text("title"),
        link=text("link"),
        probes=texts("probes"),
        targets=texts("targets"),
        explains=texts("explains"),
        expires=fields["expires"],
        crashes=bool(fields.get("crashes", False)),
        mended_by=texts("mended_by") if "mended_by" in fields else (),
        setups=texts("setups") if "setups" in fields else (),
        owner=text("owner") if "owner" in fields else "",
    )
    _check(part, issue)
    return issue


def _check(part: str, issue: Issue) -> None:
    """Refused if the issue names a condition, a patch, a probe or a target that there is not."""
    for text in issue.setups:
        try:
            condition(text)
        except BadCondition as error:
            raise json_parts.Refused(f"{part}.setups: {error}") from error
    for name in issue.mended_by:
        if name not in BY_NAME:
            raise json_parts.Refused(f"{part}.mended_by: {json_parts.shown(name)} is not one of {', '.join(BY_NAME)}")
    for probe in issue.probes:
        if not probe.startswith((SEED, FINDING)):
            raise json_parts.Refused(
                f"{part}.probes: {json_parts.shown(probe)} is neither {SEED}FILE nor {FINDING}FINGERPRINT"
            )
    for target in issue.targets:
        # Refuses an invalid range, and an engine that is none.
        _holds(target, "0", ENGINES[0])


def _holds(text: str, release: str, engine: str) -> bool:
    """BadSeed if the text is no range of releases, with or without /ENGINE. On the toy the bug's name counts."""
    if engine_of(text) == engine == "toy":
        return text.partition("/")[0] == release
    if engine_of(text) == "toy":
        return False
    return in_range(text.partition("/")[0].strip(), release) and engine_of(text) in ("", engine)
