"""The results of a check: its exit code, a few lines for a terminal, and a summary in Markdown for a pull request's
page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fuzz.check.causes import Cause
from fuzz.check.guard import Checked
from repro.cases import codec
from repro.cases.codec import Seed
from repro.cases.places import code, fenced
from repro.cases.places import markdown as in_markdown
from repro.commands.verbs import spelled
from repro.shrinking.store import about
from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Finding

# GitHub takes 65,536 characters.
COMMENT_MAX = 60_000
_CASE = "\n<details><summary>Case "


def exit_code(checked: Checked, unknown: str = "") -> ExitCode:
    """ERROR: it was stopped, or nothing could be run. FAIL: the change brings a failure. UNKNOWN: a runner was not
    judged, or the origin of a failure is unknown; PASS or FAIL instead where `unknown` says so."""
    if checked.stopped:
        return ExitCode.ERROR
    if checked.causes:
        return ExitCode.FAIL
    if checked.plan.items and not checked.judged.total():
        return ExitCode.ERROR
    if checked.errors or checked.unjudged or checked.unsure:
        return ExitCode[unknown.upper()] if unknown else ExitCode.UNKNOWN
    return ExitCode.PASS


def headline(checked: Checked) -> str:
    """The result in a few words, whatever the exit code is made of it."""
    code, count = exit_code(checked), len(checked.causes)
    if checked.stopped:
        return f"stopped after {checked.done} of {len(checked.plan.items)} setups"
    if not checked.plan.items:
        return "no runner runs what changed"
    if code is ExitCode.ERROR:
        return "nothing could be run"
    if code is ExitCode.FAIL:
        return f"{count} new failure{'s' * (count > 1)}"
    return "nothing new fails" + ", and not all of it could be judged" * (code is ExitCode.UNKNOWN)


def _extent(checked: Checked) -> str:
    pairs = len(+checked.judged)
    judged = f"{checked.judged.total()} cases judged on {pairs} runner/backend pair{'s' * (pairs != 1)}"
    return f"{checked.target} against {checked.against}: {checked.done} setups, {judged}"


def lines(checked: Checked, elsewhere: bool = False) -> Iterator[str]:
    """For a terminal. elsewhere: for a log that is read on another machine, which has neither these files nor paths."""
    yield f"eagleeye: {headline(checked)}"
    yield _extent(checked)
    for cause in checked.causes:
        first = cause.first
        yield f"FAIL {first.runner} on {', '.join(cause.backends)}: {first.oracle}: {wrong(cause)}"
        again = checked.replay(cause) if elsewhere else _replay(checked, cause)
        yield from (f"  {text}" for text in (cause.wrote, *_consequences(cause), again) if text)
    for title, texts in doubts(checked):
        yield from (f"{title}: {text}" for text in texts)
    yield from (title for title, texts in _folded(checked) if texts)


def markdown(checked: Checked) -> str:
    return "\n".join(_parts(checked)) + "\n"


def comment(checked: Checked, bytes_max: int = COMMENT_MAX) -> str:
    """The same page as GitHub takes it as a comment: where it is too long, folded cases go first, then other parts from
    the last one on, and it says so."""
    head, *parts = _parts(checked)
    page = markdown(checked)
    while len(page.encode()) > bytes_max and parts:
        cases = [part for part in parts if part.startswith(_CASE)]
        parts.remove((cases or parts)[-1])
        page = "\n".join((head, *parts, "", "Some parts are left out here: the whole page has them.")) + "\n"
    fits = page.encode()[:bytes_max].decode(errors="ignore")
    return page if fits == page else fits[: fits.rfind("\n") + 1]


def _parts(checked: Checked) -> Iterator[str]:
    """The parts of the page, each of which can be shown without those behind it."""
    yield "\n".join(_head(checked))
    for cause in checked.causes:
        paragraphs = filter(None, (cause.first.detail, cause.wrote, *_consequences(cause)))
        text = "\n\n".join(map(in_markdown, paragraphs))
        yield f"\n### {in_markdown(cause.name)}\n\n{text}"
        if cause.finding:
            yield _case(checked, cause, cause.finding)
    for title, texts in doubts(checked):
        yield "\n".join(("", f"### {title}", "", *(f"- {in_markdown(text)}" for text in texts)))
    for title, texts in _folded(checked):
        if texts:
            folded = "\n".join(f"- {in_markdown(text)}" for text in texts)
            yield f"\n<details><summary>{title}</summary>\n\n{folded}\n\n</details>"


def _head(checked: Checked) -> Iterator[str]:
    yield from (f"## eagleeye: {headline(checked)}", "", f"{in_markdown(_extent(checked))}.")
    if checked.causes:
        yield from ("", "| runner | backends | oracle | first wrong | line | found by |", "|---|---|---|---|---|---|")
    for cause in checked.causes:
        found_by = f"{cause.cases[0].item}{f' and {len(cause.cases) - 1} more' * (len(cause.cases) > 1)}"
        first = cause.first
        line = f"{checked.names.path(cause.location)}:{cause.location.line}" if cause.location else "-"
        cells = (first.runner, ", ".join(cause.backends), first.oracle, wrong(cause), line, found_by)
        yield f"| {' | '.join(map(in_markdown, cells))} |"


def _case(checked: Checked, cause: Cause, finding: Finding) -> str:
    """The case itself: the folder that it is stored in may be gone when somebody reads this."""
    name = Path(finding.seed).name
    again = f"Store it as {code(name)}, or take that file from the artifact; then {code(checked.replay(cause))}"
    where = f", with this sglang at {code(checked.names.target.rpartition('@')[0])}" if checked.names.target else ""
    case = fenced(codec.dumps(Seed(about=about(finding), case=finding.case)), "json")
    return f"{_CASE}{name}</summary>\n\n{again}{where}:\n\n{case}\n\n</details>"


def wrong(cause: Cause) -> str:
    """The first wrong value, in words."""
    first = cause.first
    return str(first.cell) if first.cell else first.where or first.detail


def sentences(cause: Cause) -> Iterator[str]:
    """The cause for a person, a sentence or two each: what is wrong, which line writes it, what else fails."""
    first = cause.first
    yield f"{first.runner} on {', '.join(cause.backends)}: {first.oracle}: {wrong(cause).rstrip('.')}."
    yield from filter(None, (first.detail, cause.wrote, *_consequences(cause)))


def _consequences(cause: Cause) -> Iterator[str]:
    if cause.consequences:
        yield f"Then also: {'; '.join(cause.consequences)}."


def _replay(checked: Checked, cause: Cause) -> str:
    return spelled(f"python -m repro run {cause.finding.seed} --target {checked.target}") if cause.finding else ""


def doubts(checked: Checked) -> Iterator[tuple[str, Sequence[str]]]:
    """The reasons for which a check is doubtful."""
    errors = [f"{_pair(pair)}: {why}" for pair, why in checked.errors.items()]
    unjudged = [_pair(pair) for pair in checked.unjudged if pair not in checked.errors]
    uncompared = [failing.item for failing in checked.failing] if checked.stopped else []
    listed = (
        ("Fails, and was not compared", uncompared),
        ("Could not be run", errors),
        ("Was not judged", unjudged),
        ("Uncertain", checked.unsure),
    )
    yield from ((title, texts) for title, texts in listed if texts)


def _folded(checked: Checked) -> Iterator[tuple[str, Sequence[str]]]:
    """The parts that a reader need not see at once."""
    yield f"Failures that are not the change's: {len(checked.old)}", _by_reason(checked.old)
    refused = [f"{name}: {why}" for name, why in checked.refused.items()]
    left_out = [item.name for item in checked.plan.left_out]
    yield f"Seeds that pass now, where they failed in this release: {len(checked.gone)}", checked.gone
    yield f"Setups of which no case could be judged: {len(checked.doubtful)}", checked.doubtful
    yield f"Setups that this release does not have: {len(refused)}", refused
    yield f"Changed files, of which only what they touch was checked: {len(checked.changed)}", checked.changed
    yield f"Setups that the plan has no room for: {len(left_out)}", left_out


def _by_reason(old: Mapping[tuple[str, ...], str]) -> list[str]:
    """A text for each reason, with the failures that it stands for."""
    reasons: dict[str, dict[str, None]] = {}
    for (runner, backend, oracle, where, _), why in old.items():
        reasons.setdefault(why, {})[f"{runner}/{backend} {oracle}{f' at {where}' if where else ''}"] = None
    return [f"{why}: {'; '.join(failures)}" for why, failures in reasons.items()]


def _pair(pair: Iterable[str]) -> str:
    return "/".join(pair)
