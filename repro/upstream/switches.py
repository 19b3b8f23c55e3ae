"""The switches of a failing case: one row each, a change of the case or of its target that takes one thing away."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Case, Request, Setup, Target, engine_refuses, problems
from repro.cases.options import OPTIONS
from repro.cases.runner_facts import RUNNER_FACTS
from repro.shrinking.moves import batches, each, refit, with_steps
from repro.upstream.edits import Edit, EditNotFound, edited
from repro.upstream.rig import Refused, Rig, Wanted

# The switch from a checkout to the release that it counts as.
BASE = "the published release"


class Kind(StrEnum):
    """The sides from which a switch looks at a failure."""

    CASE = "case"
    BACKEND = "backend"
    RELEASE = "release"
    PATCH = "patch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A case and the target to run it on. note: changes besides the switch's own, without which it is not valid."""

    case: Case
    target: Target
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The failing case. failure: the one that is followed; besides: other failures of the same runs, as "oracle at
    where". step: the one in which it goes wrong. releases: those that can be used with the target's engine, oldest
    first. counts_as: the release that known issues take the target for. in_capture: whether the run ends before the
    first step."""

    case: Case
    target: Target
    failure: Wanted
    step: int
    besides: frozenset[str] = frozenset()
    releases: tuple[str, ...] = ()
    counts_as: str = ""
    in_capture: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One row. needed: the thing that the switch takes away, in words. change: what is to be run instead, or why the
    switch does not apply."""

    name: str
    needed: str
    change: Callable[[Subject], Variant | str]
    kind: Kind = Kind.CASE


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A change of sglang that may mend the failure. why: what the edits do. title, link: of the known issue that it
    belongs to; empty if there is none."""

    name: str
    why: str
    edits: tuple[Edit, ...]
    title: str = ""
    link: str = ""

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f"{edit.file}, {edit.function}" for edit in self.edits))


def together(patches: Sequence[Patch]) -> Patch:
    """All of them as one; an edit that several make is made once."""
    edits = dict.fromkeys(edit for patch in patches for edit in patch.edits)
    why = "; ".join(patch.why for patch in patches)
    return Patch(name=" + ".join(patch.name for patch in patches), why=why, edits=tuple(edits))


def switches(setup: Setup) -> Iterator[Switch]:
    """All switches of a case with this setup, those of its releases last."""
    yield Switch(name="graph off", needed="graph", change=_without_graph)
    yield Switch(name="padding off", needed="padding", change=_without_padding)
    yield Switch(name="history off", needed="history", change=_without_history)
    yield Switch(name="one request", needed="more than one request", change=_one_request)
    yield Switch(name="topk 1", needed="topk > 1", change=partial(_set, {"topk": 1}))
    fewest = RUNNER_FACTS[setup.runner].num_steps_min
    yield Switch(
        name=f"num_steps {fewest}", needed=f"num_steps > {fewest}", change=partial(_set, {"num_steps": fewest})
    )
    yield Switch(name="page size 1", needed="page size > 1", change=partial(_set, {"page_size": 1}))
    for backend in RUNNER_FACTS[setup.runner].backends:
        if backend != setup.backend:
            yield Switch(name=f"backend {backend}", needed="", change=partial(_on_backend, backend), kind=Kind.BACKEND)
    yield Switch(name="window off", needed="window", change=partial(_set, {"window": 0, "swa": False}))
    yield from _options(setup)
    yield from _steps()
    yield Switch(name="older release", needed="", change=partial(_neighbour, -1), kind=Kind.RELEASE)
    yield Switch(name="newer release", needed="", change=partial(_neighbour, 1), kind=Kind.RELEASE)
    yield Switch(name=BASE, needed="", change=_published, kind=Kind.RELEASE)


# Options with a switch of their own, and the size of the model, which a shrunk case has as small as it can be.
_APART = ("window", "mirrored", "backend", "vocab_size", "hidden_size", "num_heads", "head_dim", "dtype")


def _options(setup: Setup) -> Iterator[Switch]:
    """A switch for each other option that is not at its default, by the rows of the options."""
    defaults = {option.field: option.default for option in OPTIONS}
    for option in OPTIONS:
        if option.field in _APART or not (option.reset and option.is_set(setup)):
            continue
        value = getattr(setup, option.field)
        needed = option.words.format(value) or f"{option.field} {value}"
        fields = {name: defaults[name] for name in option.reset}
        yield Switch(name=f"{option.field} at its default", needed=needed, change=partial(_set, fields))


def _steps() -> Iterator[Switch]:
    """Switches for the fields of steps and requests."""
    yield Switch(name="lengths on the host", needed="lengths on the device alone", change=_mirrored)
    for name, needed, plain in (
        ("one layout", "another layout of KV slots", {"layout": 0}),
        ("no hidden states asked for", "hidden states asked for", {"hidden": ""}),
        ("other rank idle", "a busy other rank", {"elsewhere": 0}),
    ):
        yield Switch(name=name, needed=needed, change=partial(_plain_steps, plain))
    for name, needed, value in (
        ("nothing accepted", "accepted drafts", {"accepted": 0}),
        ("nobody greedy", "greedy requests", {"greedy": False}),
    ):
        yield Switch(name=name, needed=needed, change=partial(_plain_requests, value))


def patch_switch(patch: Patch, rig: Rig) -> Switch:
    """The switch that mends sglang by this patch."""

    def change(subject: Subject) -> Variant | str:
        source = rig.source(subject.target)
        try:
            contents = {
                file: edited(
                    (source / file).read_text(encoding="utf-8"), [edit for edit in patch.edits if edit.file == file]
                )
                for file in dict.fromkeys(edit.file for edit in patch.edits)
            }
            which = hashlib.sha256(repr(patch.edits).encode()).hexdigest()[:8]
            target = rig.overlay(subject.target, f"explained with {which}", contents)
        except (EditNotFound, OSError, Refused) as error:
            return f"refused: {error}"
        return Variant(case=subject.case, target=target)

    return Switch(name=f"patch {patch.name}", needed="", change=change, kind=Kind.PATCH)


def _valid(subject: Subject, case: Case, already: str, note: str = "") -> Variant | str:
    """The changed case, or why there is none. already: the text for a case that the switch does not change."""
    if case == subject.case:
        return already
    reasons = problems(case)
    refused = reasons[0] if reasons else engine_refuses(case.setup, subject.target.engine)
    return f"refused: {refused}" if refused else Variant(case=case, target=subject.target, note=note)


def _set(fields: Mapping[str, object], subject: Subject) -> Variant | str:
    return _valid(subject, _changed(subject.case, **fields), f"{_shown(fields)} already")


def _shown(fields: Mapping[str, object]) -> str:
    """The first of the fields and its value."""
    name, value = next(iter(fields.items()))
    return f"{name} is {'off' if value is False else value if value != '' else 'empty'}"


def _changed(case: Case, **fields: object) -> Case:
    """The refit case; the case itself where it has these values, so that nothing else is made to fit."""
    if all(getattr(case.setup, name) == value for name, value in fields.items()):
        return case
    return refit(case, **fields)


def _with_setup(case: Case, **fields: object) -> Case:
    return dataclasses.replace(case, setup=dataclasses.replace(case.setup, **fields))  # type: ignore[arg-type]  # by name


def _sizes(case: Case) -> set[int]:
    """The sizes of batches for which graphs are replayed."""
    replayed = (step.busiest for step in case.steps if case.setup.replays(step.busiest, step.hidden))
    return {size for size in replayed if size}


def _no_graph(subject: Subject) -> str:
    setup = subject.case.setup
    if not RUNNER_FACTS[setup.runner].graph:
        return f"the {setup.runner} runner's session replays no graph of a chosen size"
    return "" if _sizes(subject.case) else "no step of the case replays a graph"


def _without_graph(subject: Subject) -> Variant | str:
    """No bucket fits a batch exactly, and none is padded: the session leaves every batch to eager."""
    if reason := _no_graph(subject):
        return reason
    if subject.in_capture:
        return "it fails before the first step, and graphs are captured in each case"
    setup = subject.case.setup
    if not RUNNER_FACTS[setup.runner].falls_back:
        return f"the {setup.runner} runner never falls back to eager"
    used = {step.busiest for step in subject.case.steps}
    free = next(size for size in itertools.count(1) if size not in used)
    slots = max(setup.slots, free)
    return _valid(subject, _with_setup(subject.case, capture_bs=(free,), padded=False, slots=slots), "")


def _without_padding(subject: Subject) -> Variant | str:
    """Buckets of just the sizes of the batches, and no idle step, which would be all padding."""
    case = subject.case
    if reason := _no_graph(subject):
        return reason
    steps = tuple(
        dataclasses.replace(step, elsewhere=min(step.elsewhere, len(step.requests)))
        for step in case.steps
        if step.requests
    )
    padded = any(
        len(step.requests) not in case.setup.capture_bs for step in steps if case.setup.replays(len(step.requests))
    )
    if steps == case.steps and not padded:
        return "no batch is padded already"
    exact = dataclasses.replace(case, steps=steps)
    return _valid(subject, _with_setup(exact, capture_bs=tuple(sorted(_sizes(exact))) or case.setup.capture_bs), "")


def _without_history(subject: Subject) -> Variant | str:
    case = subject.case
    alone = dataclasses.replace(case, steps=case.steps[subject.step : subject.step + 1])
    return _valid(subject, alone, "the case has one step already", f"step {subject.step} alone")


def _one_request(subject: Subject) -> Variant | str:
    """Each batch with one request: where it takes part, the first of the step that goes wrong."""
    first = next(iter(subject.case.steps[subject.step].requests), None)
    slot = first.slot if first else 0

    def alone(batch: Sequence[Request]) -> Sequence[Request]:
        return [request for request in batch if request.slot == slot][:1] or batch[:1]

    case = with_steps(subject.case, map(alone, batches(subject.case)))
    return _valid(subject, case, "batches have one request already")


def _on_backend(backend: str, subject: Subject) -> Variant | str:
    setup, facts = subject.case.setup, BACKEND_FACTS[backend]
    changes: dict[str, object] = {"backend": backend}
    if facts.head_dims and setup.head_dim not in facts.head_dims:
        changes["head_dim"] = facts.drawn_head_dims[0]
    emulated = facts.emulation_lacks if subject.target.engine == "emulated" else ()
    if setup.dtype in (*facts.without_dtypes, *emulated):
        changes["dtype"] = facts.drawn_dtypes[0]
    note = ", ".join(f"with {field} {value}" for field, value in changes.items() if field != "backend")
    return _valid(subject, refit(subject.case, **changes), "", note)


def _mirrored(subject: Subject) -> Variant | str:
    case = _changed(subject.case, mirrored=True)
    steps = tuple(dataclasses.replace(step, mirrored=True) for step in case.steps)
    return _valid(subject, dataclasses.replace(case, steps=steps), "lengths are on the host already")


def _plain_steps(plain: Mapping[str, object], subject: Subject) -> Variant | str:
    steps = tuple(dataclasses.replace(step, **plain) for step in subject.case.steps)  # type: ignore[arg-type]  # by name
    return _valid(subject, dataclasses.replace(subject.case, steps=steps), f"{_shown(plain)} in each step already")


def _plain_requests(plain: Mapping[str, object], subject: Subject) -> Variant | str:
    return _valid(subject, each(subject.case, lambda _: plain), f"{_shown(plain)} in each request already")


def _neighbour(offset: int, subject: Subject) -> Variant | str:
    target, which = subject.target, "older" if offset < 0 else "newer"
    if target.is_checkout:
        return "a checkout has no neighbours among releases"
    if target.sglang not in subject.releases:
        return f"{target.sglang} is not among the installed releases"
    place = subject.releases.index(target.sglang) + offset
    if not 0 <= place < len(subject.releases):
        return f"no {which} release is installed"
    return Variant(case=subject.case, target=Target(subject.releases[place], target.engine))


def _published(subject: Subject) -> Variant | str:
    if not subject.target.is_checkout:
        return "the target is a release already"
    if subject.counts_as not in subject.releases:
        return f"{subject.counts_as or 'its release'} is not installed"
    return Variant(case=subject.case, target=Target(subject.counts_as, subject.target.engine))
