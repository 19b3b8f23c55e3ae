"""The results of a check: its exit code, a few lines for a terminal, and a summary in Markdown for a pull request's
page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fuzz.check.causes import Cause
from fuzz.check.guard import Checked
from repro.cases.places import code, fenced
from repro.cases.places import markdown as in_markdown
from repro.traces.exit_codes import ExitCode


def exit_code(checked: Checked, unknown: str = "") -> ExitCode:
    """ERROR: it was stopped, or nothing could be run. FAIL: the change brings a failure. UNKNOWN: a runner was not
    judged, or of a failure nobody knows whether it is the change's; PASS or FAIL instead where `unknown` says so."""
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


def lines(checked: Checked) -> Iterator[str]:
    """For a terminal."""
    yield f"eagleeye: {headline(checked)}"
    yield _extent(checked)
    for cause in checked.causes:
        first = cause.first
        yield f"FAIL {first.runner} on {', '.join(cause.backends)}: {first.oracle}: {_wrong(cause)}"
        yield from (f"  {text}" for text in (cause.wrote, *_consequences(cause), _replay(checked, cause)) if text)
    for title, texts in _doubts(checked):
        yield from (f"{title}: {text}" for text in texts)
    yield from (title for title, texts in _folded(checked) if texts)


def markdown(checked: Checked) -> str:
    return "\n".join(_page(checked)) + "\n"


def _page(checked: Checked) -> Iterator[str]:
    yield from (f"## eagleeye: {headline(checked)}", "", f"{in_markdown(_extent(checked))}.")
    if checked.causes:
        yield from (
            "",
            "| runner | backends | oracle | first wrong | written | found by |",
            "|---|---|---|---|---|---|",
        )
        for cause in checked.causes:
            found_by = f"{cause.cases[0].item}{f' and {len(cause.cases) - 1} more' * (len(cause.cases) > 1)}"
            first = cause.first
            cells = (first.runner, ", ".join(cause.backends), first.oracle, _wrong(cause), found_by)
            yield f"| {' | '.join(map(in_markdown, cells))} |"
    for cause in checked.causes:
        sentences = (cause.first.detail, cause.wrote, *_consequences(cause))
        yield from ("", f"### {in_markdown(cause.name)}", "", "\n\n".join(map(in_markdown, filter(None, sentences))))
        yield from _case(checked, cause)
    for title, texts in _doubts(checked):
        yield from ("", f"### {title}", "", *(f"- {in_markdown(text)}" for text in texts))
    for title, texts in _folded(checked):
        if texts:
            yield from ("", f"<details><summary>{title}</summary>", "")
            yield from (*(f"- {in_markdown(text)}" for text in texts), "", "</details>")


def _case(checked: Checked, cause: Cause) -> Iterator[str]:
    """The case itself: the folder that it is stored in may be gone when somebody reads this."""
    if cause.finding is None:
        return
    name = Path(cause.finding.seed).name
    yield from ("", f"<details><summary>Case {name}</summary>", "")
    again = code(f"python -m repro run {name} --target {checked.target}")
    yield from (f"Store it as {code(name)}, then {again}:", "")
    yield from (fenced(Path(cause.finding.seed).read_text(), "json"), "", "</details>")


def _wrong(cause: Cause) -> str:
    first = cause.first
    return str(first.cell) if first.cell else first.where or first.detail


def _consequences(cause: Cause) -> Iterator[str]:
    if cause.consequences:
        yield f"Then also: {'; '.join(cause.consequences)}."


def _replay(checked: Checked, cause: Cause) -> str:
    return f"python -m repro run {cause.finding.seed} --target {checked.target}" if cause.finding else ""


def _doubts(checked: Checked) -> Iterator[tuple[str, Sequence[str]]]:
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
