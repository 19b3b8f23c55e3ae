"""The results of a check: its exit code, and a summary in Markdown for a pull request's page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuzz.check.guard import Checked, Failure
from repro.traces.exit_codes import ExitCode


def exit_code(checked: Checked) -> ExitCode:
    """FAIL: the change brings a failure. UNKNOWN: a runner was not judged, or of a failure nobody knows whether it is
    the change's. ERROR: nothing could be run."""
    if checked.brought:
        return ExitCode.FAIL
    if not checked.judged:
        return ExitCode.ERROR
    return ExitCode.UNKNOWN if checked.errors or checked.unjudged or checked.unsure else ExitCode.PASS


def markdown(checked: Checked) -> str:
    return "\n".join(_lines(checked)) + "\n"


def _lines(checked: Checked) -> Iterator[str]:
    brought = checked.brought
    head = {
        ExitCode.PASS: "nothing new fails",
        ExitCode.FAIL: f"{len(brought)} new failure{'s' if len(brought) > 1 else ''}",
        ExitCode.UNKNOWN: "not all of it could be judged",
        ExitCode.ERROR: "nothing could be run",
    }[exit_code(checked)]
    against = f" against {checked.base}" if checked.base else ""
    yield f"## eagleeye: {head}"
    yield ""
    judged = sum(checked.judged.values())
    yield (
        f"{checked.target}{against}: {judged} cases judged on {len(checked.judged)} runners and backends, "
        f"{checked.seeds} stored seeds among them, in {checked.seconds:.0f} s."
    )
    if checked.untried:
        yield f"Time was over before {checked.untried} of the drawn setups were tried; `--minutes` gives more."
    if brought:
        yield from ["", *_table(brought)]
        for failure in brought:
            yield from ["", failure.finding.verdict.detail, "", "```", failure.replay, "```"]
    yield from _listed("Failed before as well", [f"{_name(failure)}: {failure.known}" for failure in checked.known])
    yield from _listed("Could not be run", [f"{' '.join(place)}: {why}" for place, why in checked.errors.items()])
    yield from _listed("Was not judged", [" ".join(place) for place in checked.unjudged if place not in checked.errors])
    yield from _listed("Uncertain", checked.unsure)
    yield from _listed("Seeds that pass now, where they failed in this release", checked.gone)
    refused = [place for place in checked.refused if not checked.judged.get(place)]
    yield from _listed("Not in this release", [f"{' '.join(place)}: {checked.refused[place]}" for place in refused])


def _table(failures: Sequence[Failure]) -> Iterator[str]:
    yield "| runner | backend | oracle | where | buffer | row | step | found by |"
    yield "|---|---|---|---|---|---|---|---|"
    for failure in failures:
        cell = failure.finding.verdict.cell
        place = (cell.buffer, str(cell.row), str(cell.step)) if cell else ("", "", "")
        yield f"| {' | '.join((*failure.identity, *place, failure.origin))} |"


def _name(failure: Failure) -> str:
    return " ".join(failure.identity)


def _listed(title: str, texts: Sequence[str]) -> list[str]:
    return ["", f"### {title}", "", *(f"- {text}" for text in texts)] if texts else []
