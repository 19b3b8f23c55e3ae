"""A campaign's record, as frozen values with a JSON form: written by the campaign, read by the reports.

Everything a report shows is in here; a report never runs or judges anything again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from repro.cases.case import Case, Target
from repro.cases.codec import case_from_json, case_to_json
from repro.traces.earlier import UNFIT, places, reasons_told_apart, renamed
from repro.traces.excerpt import Excerpt
from repro.traces.finding import OF_PLANS, Cell, Finding, Status, Verdict, fingerprint
from repro.traces.line_ranges import line_numbers
from repro.traces.typed import BadRecord, typed

_SETUP = frozenset({"runner", "backend"})  # of a finding's case, stored beside it
FORMAT = 1  # raised when a reader of the old form would misunderstand the new one


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Transition:
    """One replay seen as a move between buckets, on one kind of setup.

    before: the bucket of the previous replay of the case, 0 for the first. after: the bucket of this one.
    padded: whether the batch left rows of that bucket unused.
    """

    runner: str
    backend: str
    topk: int
    num_steps: int
    before: int
    after: int
    padded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """A transition and the number of replays that made it."""

    transition: Transition
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignFinding:
    """One kind of failure on one target, with the smallest case known for it.

    seed: path of the stored seed file. failed of tried runs in fresh processes ended in this verdict; 0 of n means
    that it was seen once and did not come back. cases: how many cases of the campaign showed it. at_case and
    at_seconds: when it was first seen, from the campaign's start; done_seconds: when it was confirmed and shrunk.
    shrink_runs: runs spent on making it small. cell: the first wrong place of the smallest case. excerpts: what the
    graph path and the eager path left in the run that showed it. consequences: what failed behind it, as "ORACLE:
    WHERE".
    """

    target: str
    fingerprint: str
    oracle: str
    where: str
    detail: str
    seed: str
    failed: int
    tried: int
    cases: int
    at_case: int
    at_seconds: float
    done_seconds: float
    shrink_runs: int
    case: Case
    cell: Cell | None = None
    excerpts: tuple[Excerpt, ...] = ()
    consequences: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        finding: Finding,
        *,
        cases: int = 1,
        at_case: int = 0,
        at_seconds: float = 0.0,
        done_seconds: float = 0.0,
        shrink_runs: int = 0,
        excerpts: tuple[Excerpt, ...] = (),
    ) -> CampaignFinding:
        """A finding as part of a campaign."""
        verdict = finding.verdict
        return cls(
            target=str(finding.target),
            fingerprint=verdict.fingerprint,
            oracle=verdict.oracle,
            where=verdict.where,
            detail=verdict.detail,
            seed=finding.seed,
            failed=finding.failed,
            tried=finding.tried,
            cases=cases,
            at_case=at_case,
            at_seconds=at_seconds,
            done_seconds=done_seconds,
            shrink_runs=shrink_runs,
            case=finding.case,
            cell=verdict.cell,
            excerpts=excerpts,
            consequences=finding.consequences,
        )

    @property
    def finding(self) -> Finding:
        """Without what the campaign counted."""
        setup = self.case.setup
        verdict = Verdict(
            oracle=self.oracle,
            status=Status.FAIL,
            where=self.where,
            detail=self.detail,
            cell=self.cell,
            runner=setup.runner,
            backend=setup.backend,
        )
        return Finding(
            case=self.case,
            target=Target.parse(self.target),
            verdict=verdict,
            failed=self.failed,
            tried=self.tried,
            seed=self.seed,
            consequences=self.consequences,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A running campaign: what it has done so far, the transitions covered of those possible, what it does now."""

    target: Target
    cases: int
    replays: int
    seconds: float
    transitions: int
    transitions_possible: int
    findings: tuple[CampaignFinding, ...]
    doing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A stored case run on a target: which status, failed of tried runs, and one line for a person.

    For a case that was found on another target, failed counts the runs with the same fingerprint. errors: runs that
    an error of the harness prevented.
    """

    seed: str
    fingerprint: str
    target: str
    status: Status
    failed: int
    tried: int
    line: str
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """One target, one seed number, many cases.

    seed: the number from which all cases were drawn. started and ended: UTC, ISO 8601. stopped: why it ended
    (cases, time, first finding, cannot run, interrupted, error). error: what went wrong, where that is "error". cases:
    run; judged: those whose verdicts came to more than UNKNOWN. replays: steps whose graph path was recorded.
    setups: captured setups drawn. skipped: cases drawn and not run, as their setup could not be built. verdicts:
    per oracle the number of pass, unknown and fail. endings: runs by how they ended. unsupported and errors: why runs
    could not be made, and how often; errors also of runs that triage a failure. unknown: why oracles said UNKNOWN of
    the others, and how often; of those that differ in numbers alone the first. transitions_possible: how many
    transitions the setups drawn allow; transitions_missing: those of them that no replay made. states: cases with
    replays in each state; states_missing: those that none had. lines: of sglang that cases ran, by file, as in
    `12-15, 20`, where they were noted; lines_missing: those of these files that none ran. stages: seconds spent on
    draw, build, graph, eager, record, pass (the rest of a run: process and transport), judge, store, confirm,
    shrink. facts: what the traces said about release, adapter, engine, torch, machine. known: how many cases showed
    a known issue, by issue, where known issues were asked about; such failures are no findings. only_mended:
    failures that cases showed only with known issues mended, and how often: the fault of a patch, or hidden by the
    issue that it mends; no findings. only_mended_seeds: where the first case of each is stored. stale: in how many
    cases each value was stale and had no known reader. aim: what all setups had, as options of python -m fuzz run;
    empty: whatever was drawn. workers: processes that ran cases at the same time; seconds is then the longest, stages
    are added up.
    """

    target: Target
    runner: str
    backend: str
    seed: int
    started: str
    ended: str
    stopped: str
    seconds: float
    cases: int
    judged: int
    replays: int
    setups: int
    skipped: int = 0
    verdicts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    endings: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, int] = field(default_factory=dict)
    unsupported: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    transitions: tuple[Covered, ...] = ()
    transitions_possible: int = 0
    transitions_missing: tuple[Transition, ...] = ()
    findings: tuple[CampaignFinding, ...] = ()
    error: str = ""
    stages: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    workers: int = 1
    known: Mapping[str, int] = field(default_factory=dict)
    only_mended: Mapping[str, int] = field(default_factory=dict)
    only_mended_seeds: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, int] = field(default_factory=dict)
    states_missing: tuple[str, ...] = ()
    lines: Mapping[str, str] = field(default_factory=dict)
    lines_missing: Mapping[str, str] = field(default_factory=dict)
    stale: Mapping[str, int] = field(default_factory=dict)
    aim: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, texts and numbers."""
        form = {name: getattr(self, name) for name in self.__slots__}
        form |= {"target": str(self.target), "transitions": list(map(covered_to_json, self.transitions))}
        form["transitions_missing"] = [asdict(transition) for transition in self.transitions_missing]
        form |= {"findings": list(map(found_to_json, self.findings)), "states_missing": list(self.states_missing)}
        form |= {name: dict(value) for name, value in form.items() if isinstance(value, Mapping)}
        form["verdicts"] = {oracle: dict(counts) for oracle, counts in self.verdicts.items()}
        return form

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Campaign:
        """The reverse of to_json. BadRecord if a part is missing, unknown or of the wrong kind."""
        try:
            parts = dict(form)
            if UNFIT in parts:
                parts |= reasons_told_apart(parts.pop(UNFIT), parts.get("endings", {}))
            parts["target"] = Target.parse(parts["target"])
            parts["transitions"] = tuple(covered_from_json(part) for part in parts["transitions"])
            parts["transitions_missing"] = tuple(
                typed(Transition(**part)) for part in parts.get("transitions_missing", ())
            )
            parts["states_missing"] = tuple(parts.get("states_missing", ()))
            for text in (*parts.get("lines", {}).values(), *parts.get("lines_missing", {}).values()):
                line_numbers(text)
            parts["findings"] = tuple(finding for part in parts["findings"] for finding in _founds(part))
            return typed(cls(**parts))
        except BadRecord:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadRecord(f"campaign: {type(error).__name__}: {error}") from error


def covered_to_json(covered: Covered) -> dict[str, Any]:
    return asdict(covered.transition) | {"count": covered.count}


def covered_from_json(form: Mapping[str, Any]) -> Covered:
    parts = dict(form)
    return typed(Covered(count=parts.pop("count"), transition=typed(Transition(**parts))))


def found_to_json(finding: CampaignFinding) -> dict[str, Any]:
    form = {name: getattr(finding, name) for name in finding.__slots__}
    form["case"] = case_to_json(finding.case)
    form["cell"] = asdict(finding.cell) if finding.cell else None
    form["excerpts"] = [asdict(excerpt) for excerpt in finding.excerpts]
    # For who reads the record without us, and the mark of one whose fingerprints are of runners, too.
    return form | {"runner": finding.case.setup.runner, "backend": finding.case.setup.backend}


def found_from_json(form: Mapping[str, Any]) -> CampaignFinding:
    parts = {name: value for name, value in form.items() if name not in _SETUP}
    parts["case"] = case_from_json(parts["case"])
    parts["cell"] = typed(Cell(**parts["cell"])) if parts["cell"] else None
    parts["excerpts"] = tuple(_excerpt_from_json(part) for part in parts.get("excerpts", ()))
    parts["consequences"] = tuple(parts.get("consequences", ()))
    return typed(CampaignFinding(**parts))


def _founds(form: Mapping[str, Any]) -> tuple[CampaignFinding, ...]:
    """A finding, as it is called now; of a record whose fingerprints were of oracle and `where` alone one for each
    place that it names."""
    finding = found_from_json(form)
    setup, earlier = finding.case.setup, not form.keys() >= _SETUP
    named = [
        renamed(finding.oracle, w) for w in (places(finding.oracle, finding.where) if earlier else [finding.where])
    ]
    if not earlier and named == [(finding.oracle, finding.where)]:
        name = finding.finding.verdict.fingerprint if finding.oracle in OF_PLANS else finding.fingerprint
        return (replace(finding, fingerprint=name),)
    return tuple(
        replace(
            finding,
            oracle=oracle,
            where=where,
            fingerprint=fingerprint(setup.runner, setup.backend, oracle, where),
            cell=finding.cell if _is_of(finding.cell, where) or len(named) == 1 else None,
        )
        for oracle, where in named
    )


def _is_of(cell: Cell | None, where: str) -> bool:
    return cell is not None and where.endswith(f" {cell.buffer}")


def _excerpt_from_json(form: Mapping[str, Any]) -> Excerpt:
    # JSON has no tuples.
    excerpt = typed(Excerpt(**(dict(form) | {"graph": tuple(form["graph"]), "eager": tuple(form["eager"])})))
    if len(excerpt.graph) != len(excerpt.eager):
        raise BadRecord("Excerpt: graph and eager are of several lengths")
    return excerpt


def replay_to_json(replay: Replay) -> dict[str, Any]:
    return asdict(replay) | {"status": replay.status.name}


def replay_from_json(form: Mapping[str, Any]) -> Replay:
    return typed(Replay(**(dict(form) | {"status": Status[form["status"]]})))


def _renamed(forms: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Today's fingerprints of findings of an earlier version's record, by the seed and the fingerprint that they
    had."""
    names: dict[tuple[str, str], list[str]] = {}
    for form in (part for campaign in forms for part in campaign["findings"]):
        known = names.setdefault((form["seed"], form["fingerprint"]), [])
        known += [finding.fingerprint for finding in _founds(form) if finding.fingerprint not in known]
    return names


def _replays(form: Mapping[str, Any], names: Mapping[tuple[str, str], Sequence[str]]) -> tuple[Replay, ...]:
    replay = replay_from_json(form)
    now = names.get((replay.seed, replay.fingerprint), [replay.fingerprint])
    return tuple(replace(replay, fingerprint=name) for name in now)


def dumps(campaigns: Sequence[Campaign], replays: Sequence[Replay] = ()) -> str:
    """The record of one command as JSON text: totals over all targets first, then every campaign in full.

    elsewhere: the replays of found cases on other targets.
    """
    form = {
        "format": FORMAT,
        "cases": sum(campaign.cases for campaign in campaigns),
        "replays": sum(campaign.replays for campaign in campaigns),
        "seconds": sum(campaign.seconds for campaign in campaigns),
        "transitions": len({covered.transition for campaign in campaigns for covered in campaign.transitions}),
        "findings": [found_to_json(finding) for campaign in campaigns for finding in campaign.findings],
        "campaigns": [campaign.to_json() for campaign in campaigns],
        "elsewhere": [replay_to_json(replay) for replay in replays],
    }
    return json.dumps(form, indent=1) + "\n"


def loads(text: str) -> tuple[tuple[Campaign, ...], tuple[Replay, ...]]:
    """The campaigns and replays of a text that dumps wrote. BadRecord, naming the part, if it is not one."""
    try:
        form = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"not JSON: {error}") from error
    if not isinstance(form, dict) or form.get("format") != FORMAT:
        version = repr(form.get("format")) if isinstance(form, dict) else "of " + type(form).__name__
        raise BadRecord(f"format {version[:80]}: expected {FORMAT}")
    try:
        campaigns = tuple(Campaign.from_json(part) for part in form["campaigns"])
        names = _renamed(form["campaigns"])
        return campaigns, tuple(replay for part in form["elsewhere"] for replay in _replays(part, names))
    except BadRecord:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadRecord(f"{type(error).__name__}: {error}") from error
