"""What a check came to: its exit code, and a summary in Markdown for a pull request's page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuzz.check.guard import Checked, Failure

PASSED, RED, UNSURE, ERROR = 0, 1, 2, 3


def exit_code(checked: Checked) -> int:
    """RED: the change brings a failure. UNSURE: a runner was not judged, or nobody knows of a failure whether it is
    the change's. ERROR: nothing could be run."""
    if checked.brought:
        return RED
    if not checked.judged:
        return ERROR
    return UNSURE if checked.errors or checked.unjudged or checked.unsure else PASSED


def markdown(checked: Checked) -> str:
    return "\n".join(_lines(checked)) + "\n"


def _lines(checked: Checked) -> Iterator[str]:
    brought = checked.brought
    head = {
        PASSED: "nothing new fails",
        RED: f"{len(brought)} new failure{'s' if len(brought) > 1 else ''}",
        UNSURE: "not all of it could be judged",
        ERROR: "nothing could be run",
    }[exit_code(checked)]
    against = f" against {checked.base}" if checked.base else ""
    yield f"## eagleeye: {head}"
    yield ""
    judged = sum(checked.judged.values())
    yield (
        f"{checked.target}{against}: {judged} cases judged on {len(checked.judged)} runners and backends, "
        f"{checked.seeds} stored seeds among them, in {checked.seconds:.0f} s."
    )
    if brought:
        yield from ["", *_table(brought)]
        for failure in brought:
            yield from ["", failure.finding.verdict.detail, "", "```", failure.replay, "```"]
    yield from _listed("Failed before as well", [f"{_name(one)}: {one.known}" for one in checked.known])
    yield from _listed("Could not be run", [f"{' '.join(place)}: {why}" for place, why in checked.errors.items()])
    yield from _listed("Was not judged", [" ".join(place) for place in checked.unjudged if place not in checked.errors])
    yield from _listed("Uncertain", checked.unsure)
    yield from _listed("Seeds that pass now, where they failed in this release", checked.gone)
    not_there = [place for place in checked.refused if not checked.judged.get(place)]
    yield from _listed("Not in this release", [f"{' '.join(place)}: {checked.refused[place]}" for place in not_there])


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
