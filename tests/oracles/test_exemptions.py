"""The table of what oracles let pass: where its rows hold, what they allow, and that each is needed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles import slot0_padding
from oracles.catalogue import judge_all
from repro.cases import exemptions
from repro.cases.case import Case
from repro.cases.exemptions import EXEMPTIONS, Exemption, exempted
from repro.cases.families import MAMBA2, fitted
from repro.cases.release_list import ADAPTED, has_runner
from repro.cases.releases import release_order
from repro.cases.runner_facts import RUNNER_FACTS, TOY
from repro.traces.finding import Status
from repro.traces.trace import RecordedArray, Trace
from runners.processes.pool import Pool
from tests.builders.cases import FULL, case_of, setup_of, step
from tests.builders.cases import PADDED as THREE
from tests.builders.sound_trace import CASE, PADDED, RAW, SETUP, SOUND
from tests.builders.toy_traces import changed
from tests.runners.releases.test_round_blocks import STEPS

PAIRS = [(runner, backend) for runner, facts in RUNNER_FACTS.items() for backend in facts.backends]
RANGED = [row for row in EXEMPTIONS if row.oracle == slot0_padding.ORACLE and row.within]
LIMITED = [row for row in EXEMPTIONS if row.since or row.until]
# A buffer of the toy's with two columns, which stands for any.
BUFFER = "hidden_states"


def name_of(row: Exemption) -> str:
    return " ".join((row.oracle, row.value, *row.runners, row.since or row.until))


def release_of(row: Exemption) -> str:
    return row.until or row.since or ADAPTED[-1]


def places(row: Exemption) -> Iterator[tuple[str, str]]:
    """The places where it holds in some release."""
    return ((runner, backend) for runner, backend in PAIRS if row.holds(runner, backend, release_of(row)))


def test_no_two_rows_are_about_the_same() -> None:
    for release, (runner, backend) in itertools.product(ADAPTED, PAIRS):
        pairs = [(row.oracle, row.value) for row in EXEMPTIONS if row.holds(runner, backend, release)]
        assert len(pairs) == len(set(pairs)), (release, runner, backend)


def test_every_row_says_where_it_holds_and_why() -> None:
    for row in EXEMPTIONS:
        assert row.because and list(places(row)), name_of(row)


@pytest.mark.parametrize("row", LIMITED, ids=name_of)
def test_a_row_ends_with_its_releases(row: Exemption) -> None:
    """And there is none in a text that is no release's number."""
    runner, backend = next(places(row))
    order = {release: release_order(release) for release in ADAPTED}
    for release in ADAPTED:
        is_early = bool(row.since) and order[release] < release_order(row.since)
        is_late = bool(row.until) and order[release] > release_order(row.until)
        assert row.holds(runner, backend, release) is not (is_early or is_late), release
        setup = replace(
            SETUP,
            runner=runner,
            backend=backend,
            family=row.family,
            algorithm=next(iter(row.algorithms), SETUP.algorithm),
        )
        exemption = exempted(row.oracle, setup, release).get(row.value)
        assert (exemption == row) is not (is_early or is_late)
    assert not row.holds(runner, backend, "toy with a bug")


def left_alone(row: Exemption, *values: float, release: str = "") -> tuple[Case, Trace]:
    """The sound trace, but in a release, and of a runner, that leaves the padded row of this buffer as it is."""
    runner, backend = next(places(row))

    def renamed(seen: RecordedArray) -> RecordedArray:
        return replace(seen, name=row.value) if seen.name == BUFFER else seen

    def stale(launched: np.ndarray) -> np.ndarray:
        launched = launched.astype(np.float64)
        launched[RAW].reshape(-1)[:] = values[0]
        launched[RAW].reshape(-1)[: len(values)] = values
        return launched

    trace = changed(SOUND, PADDED, "launch", BUFFER, stale)
    other = tuple(renamed(seen) for seen in trace.seen if seen.name == BUFFER or seen.name != row.value)
    case = replace(CASE, setup=replace(SETUP, runner=runner, backend=backend))
    return case, replace(trace, seen=other, facts={"sglang": release or release_of(row)})


@pytest.mark.parametrize("row", RANGED, ids=name_of)
def test_the_limits_themselves(row: Exemption) -> None:
    """The lower limit is inside, the upper one is not, nor is what is below or no number. What is stale is told."""
    assert row.within is not None
    low, high = row.within(SETUP)
    assert low < high
    [inside] = slot0_padding.judge(*left_alone(row, low, np.nextafter(high, low)))
    assert (inside.status, inside.stale) == (Status.PASS, (row.value,) if row.stale else ())
    for wrong in (high, np.nextafter(low, -np.inf), np.nan):
        [verdict] = slot0_padding.judge(*left_alone(row, low, wrong))
        assert (verdict.status, verdict.where) == (Status.FAIL, f"padded rows of {row.value}")
        assert verdict.cell is not None
        assert (verdict.cell.row, verdict.cell.column) == (RAW, 1)


@pytest.mark.parametrize("row", [row for row in RANGED if row.until], ids=name_of)
def test_a_release_behind_a_row_is_held_to_the_neutral_value(row: Exemption) -> None:
    assert row.within is not None
    inside = np.nextafter(row.within(SETUP)[1], 0)
    [verdict] = slot0_padding.judge(*left_alone(row, inside, release=ADAPTED[-1]))
    assert (verdict.status, verdict.where) == (Status.FAIL, f"padded rows of {row.value}")


def test_a_batch_without_lengths_on_the_host_leaves_their_buffer_alone() -> None:
    arrays = {"launch": np.array([20, 4, 12, 77]), "neutral": np.array([1])}
    more = tuple(
        RecordedArray(step=PADDED, path=path, name="seq_lens_cpu", array=array) for path, array in arrays.items()
    )
    stale = replace(SOUND, seen=SOUND.seen + more, facts={"sglang": ADAPTED[-1]})
    assert [verdict.where for verdict in slot0_padding.judge(CASE, stale)] == ["padded rows of seq_lens_cpu"]
    [verdict] = slot0_padding.judge(CASE, changed(stale, PADDED, "before", "seq_lens_cpu", lambda _: None))
    assert (verdict.status, verdict.stale) == (Status.PASS, ("seq_lens_cpu",))


GREEDY = tuple((*row, 0, True) for row in FULL)


def plain(runner: str, backend: str) -> Case:
    """A full bucket, and one with a padded row in what that leaves. The setup is no other module's: they share the
    pool, and some look at how a session was opened."""
    return case_of(setup_of(runner, backend, slots=7), FULL, THREE)


def without_lengths(runner: str, backend: str) -> Case:
    """On the host, behind a batch that has them."""
    first, *others = plain(runner, backend).steps
    return Case(setup=setup_of(runner, backend), steps=(first, *(replace(each, mirrored=False) for each in others)))


def at_random(runner: str, backend: str) -> Case:
    """Drafts, behind some of greedy requests."""
    setup = setup_of(runner, backend, topk=1, rejection=True)
    return Case(setup=setup, steps=(step(*GREEDY), step(*THREE), step(*FULL), step(*THREE)))


def of_other_counts(runner: str, backend: str) -> Case:
    """Than the history that a session learns, in which all drafts are accepted."""
    return case_of(setup_of(runner, backend), FULL[::-1], THREE)


def trees_of_mamba2(runner: str, backend: str) -> Case:
    """Whose parents padded rows find as an earlier batch left them."""
    setup = fitted(setup_of(runner, backend, capture_bs=(4,), family=MAMBA2))
    return Case(setup=setup, steps=(step(*FULL), step(*THREE), step(*THREE[:1]), step(*FULL[:2])))


def in_rounds(row: Exemption) -> Case:
    """Blocks, or drafts of a layer each, some of which the target does not take."""
    family: dict[str, Any] = {"family": row.family, "num_steps": 3, "num_draft_tokens": 4, "capture_bs": (1, 2, 3, 4)}
    blocks: dict[str, Any] = {
        "algorithm": "".join(row.algorithms[:1]),
        "num_steps": 1,
        "num_draft_tokens": 4,
        "overlap": True,
    }
    setup = setup_of("round", "triton", topk=1, disagreement=60, **(blocks if row.algorithms else family))
    return Case(setup=setup, steps=STEPS)


CASE_OF: dict[str, Callable[[str, str], Case]] = {
    slot0_padding.UNPUBLISHED: without_lengths,
    "num_accept_tokens": of_other_counts,
    "retrieve_parent_token_list": trees_of_mamba2,
    "select_index": of_other_counts,
    "temperatures": at_random,
    "top_ks": at_random,
}
# Those of sessions, which leave a buffer unwatched: no oracle asks for them.
OF_SESSIONS = {"staged", "unwatched"}


def is_of_rounds(row: Exemption) -> bool:
    return bool(row.algorithms) or "round" in row.runners


def is_dear(row: Exemption) -> bool:
    """True of a row whose session takes ten seconds or more, mostly to compile."""
    compiled = "draft_extend" in row.runners and row.value == "input_ids"
    return "cpu_decode" in row.runners or compiled or is_of_rounds(row)


JUDGED = [row for row in EXEMPTIONS if row.oracle not in OF_SESSIONS]


@pytest.mark.emulated
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=pytest.mark.exhaustive if is_dear(row) else (), id=name_of(row)) for row in JUDGED],
)
def test_without_a_row_its_case_fails(row: Exemption, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    release = pool.target.sglang
    here = [pair for pair in PAIRS if pair[0] != TOY and row.holds(*pair, release) and has_runner(release, *pair)]
    if not here:
        pytest.skip(f"no row of {release}")  # the row ends before it, or begins behind it
    case = in_rounds(row) if is_of_rounds(row) else CASE_OF.get(row.value, plain)(*here[0])
    trace = pool.run(case)
    assert not fails(row, case, trace)
    monkeypatch.setattr(exemptions, "EXEMPTIONS", tuple(other for other in EXEMPTIONS if other is not row))
    assert fails(row, case, trace), name_of(row)


def fails(row: Exemption, case: Case, trace: Trace) -> bool:
    """True if its oracle fails at its value."""
    value = row.value.partition(" of a batch")[0]
    failed = [verdict for verdict in judge_all(case, trace) if verdict.status is Status.FAIL]
    return any(verdict.oracle == row.oracle and value in verdict.where for verdict in failed)
