"""The effect of a patch: named seeds before and after it, every other seed as a guard against regressions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.cases.case import Target
from repro.cases.codec import Seed
from repro.cases.json_parts import cut
from repro.cases.places import code, markdown
from repro.shrinking.confirm import Run
from repro.traces.exit_codes import ExitCode, severest
from repro.upstream.rig import Rig, Sighting, Wanted, runs_of

_CELL_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A seed and the failure that it stands for. guard: whether it is there only to see whether anything gets worse."""

    path: Path
    seed: Seed
    failure: Wanted
    guard: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The runs of one seed on one side of the patch."""

    runs: tuple[Sighting, ...]

    @property
    def failed(self) -> int:
        return sum(run.bad is True for run in self.runs)

    @property
    def judged(self) -> int:
        return sum(run.bad is not None for run in self.runs)

    @property
    def why_not(self) -> str:
        return next((run.why for run in self.runs if run.bad is None), "")

    @property
    def others(self) -> frozenset[str]:
        return frozenset(other for run in self.runs for other in run.others)

    def __str__(self) -> str:
        if self.why_not:
            return f"could not be judged: {self.why_not}"
        return f"{'FAIL' if self.failed else 'PASS'}, {self.failed} of {self.judged}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One row of the table."""

    question: Question
    before: Side
    after: Side

    @property
    def worse(self) -> tuple[str, ...]:
        """Failures that there are only with the patch; also that the case no longer runs."""
        if self.after.why_not and not self.before.why_not:
            return (f"no longer runs: {self.after.why_not}",)
        expected = {str(self.question.failure)} if self.after.failed and not self.before.failed else set()
        return tuple(sorted(expected | (self.after.others - self.before.others)))

    @property
    def removed(self) -> bool:
        """True if the patch takes this failure away, named or guard."""
        return bool(self.before.failed and self.after.judged and not self.after.failed and not self.worse)

    @property
    def conclusion(self) -> str:
        if self.worse:
            return f"**worse**: {', '.join(self.worse)}"
        if self.before.why_not or self.after.why_not:
            return "not shown"
        if self.question.guard:
            return "as before" if bool(self.before.failed) == bool(self.after.failed) else "better"
        if not self.before.failed:
            return "not shown: passes before"
        return "**not fixed**" if self.after.failed else "**fixed**"

    @property
    def exit_code(self) -> ExitCode:
        if self.worse:
            return ExitCode.FAIL
        if self.question.guard:
            return ExitCode.PASS
        if self.before.why_not or self.after.why_not:
            return ExitCode.ERROR
        if not self.before.failed:
            return ExitCode.UNKNOWN
        return ExitCode.FAIL if self.after.failed else ExitCode.PASS


def compare(rig: Rig, before: Target, after: Target, questions: Sequence[Question], tries: int) -> list[Answer]:
    """Every seed on both sides: named ones `tries` times, guards once."""
    sides = []
    for target in (before, after):
        with rig.opened(target) as run:
            sides.append([_side(rig, run, question, tries) for question in questions])
    return [
        Answer(question=question, before=unpatched, after=patched)
        for question, unpatched, patched in zip(questions, *sides, strict=True)
    ]


def _side(rig: Rig, run: Run, question: Question, tries: int) -> Side:
    return Side(runs=tuple(runs_of(rig, run, question.seed.case, question.failure, 1 if question.guard else tries)))


def exit_code(answers: Sequence[Answer]) -> ExitCode:
    """0 if every named seed is fixed and nothing is worse."""
    return severest([answer.exit_code for answer in answers])


def table(answers: Sequence[Answer], before: str, after: str) -> Iterator[str]:
    """Markdown: one table of named seeds and guards."""
    yield f"| seed | failure | before: {_cell(before)} | after: {_cell(after)} | conclusion |"
    yield "|---|---|---|---|---|"
    for answer in answers:
        question = answer.question
        name = f"{code(question.path.stem)}{' (guard)' if question.guard else ''}"
        word, colon, why = answer.conclusion.partition(": ")
        cells = (name, *map(_cell, (question.failure, answer.before, answer.after)), f"{word}{colon}{_cell(why)}")
        yield f"| {' | '.join(cells)} |"
    removed = [code(answer.question.path.stem) for answer in answers if answer.removed]
    if len(removed) > 1:
        yield ""
        yield f"One bug, since one patch removes all of these: {', '.join(removed)}."
    both = sorted({other for answer in answers for other in answer.before.others & answer.after.others})
    if both:
        yield ""
        yield f"Failures besides, on both sides: {_cell(', '.join(both))}."


def _cell(content: object) -> str:
    return markdown(cut(str(content), _CELL_MAX))


def to_json(answers: Sequence[Answer]) -> list[dict[str, object]]:
    """All of it as plain dicts, lists, texts and numbers."""
    return [
        {
            "seed": str(answer.question.path),
            "guard": answer.question.guard,
            "oracle": answer.question.failure.oracle,
            "where": answer.question.failure.where,
            "conclusion": answer.conclusion,
            "worse": list(answer.worse),
            "exit_code": answer.exit_code,
        }
        | {
            name: {"failed": side.failed, "judged": side.judged, "why_not": side.why_not, "others": sorted(side.others)}
            for name, side in (("before", answer.before), ("after", answer.after))
        }
        for answer in answers
    ]
