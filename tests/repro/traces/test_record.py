"""Results of campaigns as JSON: what is written is read back, and invalid files are refused, naming the part."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from fuzz.draw.rounds import rounds
from repro.cases.case import Target
from repro.traces.campaign import Campaign, CampaignFinding, Covered, Replay, Transition, dumps, loads
from repro.traces.earlier import told_apart
from repro.traces.finding import Cell, Status
from repro.traces.trace import Termination
from repro.traces.typed import BadRecord
from tests.builders.project import DATA

CASE = next(itertools.islice(rounds(1, "draft", "triton", 4), 2, None))
MOVE = Transition(runner="draft", backend="triton", topk=2, num_steps=3, before=0, after=4, padded=True)
FOUND = CampaignFinding(
    target="0.5.10.post1/emulated",
    fingerprint="0123456789ab",
    oracle="slot0_padding",
    where="padded rows",
    detail='quotes " and \x1b and ünïcode \u2028',
    seed="out/a.json",
    failed=4,
    tried=5,
    cases=7,
    at_case=3,
    at_seconds=1.25,
    done_seconds=9.5,
    shrink_runs=20,
    case=CASE,
    cell=Cell(step=1, buffer="topk_p", row=2, column=0, got="0.5", want="0"),
)
CAMPAIGN = Campaign(
    target=Target("/src/sglang/python", "cuda"),
    runner="draft",
    backend="triton",
    seed=3,
    started="2026-01-01T00:00:00+00:00",
    ended="2026-01-01T00:01:00+00:00",
    stopped="time",
    seconds=60.5,
    cases=100,
    judged=99,
    replays=250,
    setups=7,
    verdicts={"slot0_padding": {"pass": 60, "fail": 7, "unknown": 33}},
    endings={"done": 97, "unsupported": 1, "error": 2},
    unknown={"slot0_padding: no padding exercised": 33},
    unsupported={"no such kernel": 1},
    errors={"no memory": 2},
    transitions=(Covered(transition=MOVE, count=12),),
    transitions_possible=2,
    transitions_missing=(Transition(**{**{n: getattr(MOVE, n) for n in MOVE.__slots__}, "padded": False}),),
    findings=(FOUND,),
    stages={"graph": 3.5},
    facts={"torch": "2.13.0"},
)
REPLAY = Replay(seed="a", fingerprint="b", target="0.5.13/emulated", status=Status.PASS, failed=0, tried=5, line="no")


def test_round_trip() -> None:
    assert loads(dumps([CAMPAIGN, CAMPAIGN], [REPLAY])) == ((CAMPAIGN, CAMPAIGN), (REPLAY,))
    assert loads(dumps([])) == ((), ())


def test_totals_come_first() -> None:
    form = json.loads(dumps([CAMPAIGN, CAMPAIGN]))
    assert list(form)[:5] == ["format", "cases", "replays", "seconds", "transitions"]
    assert (form["cases"], form["replays"], form["seconds"], form["transitions"]) == (200, 500, 121.0, 1)
    finding = form["findings"][0]
    assert [finding[name] for name in ("fingerprint", "oracle", "where", "seed", "failed", "tried")] == [
        "0123456789ab",
        "slot0_padding",
        "padded rows",
        "out/a.json",
        4,
        5,
    ]


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda form: form.update(format=99), "format 99: expected 1"),
        (lambda form: form["campaigns"][0].pop("cases"), "cases"),
        (lambda form: form["campaigns"][0].update(surprise=1), "surprise"),
        (lambda form: form["campaigns"][0].update(target="nowhere"), "target 'nowhere'"),
        (lambda form: form["campaigns"][0]["findings"][0]["case"].pop("steps"), "steps"),
        (lambda form: form["campaigns"][0]["transitions"][0].pop("count"), "count"),
        (lambda form: form.update(campaigns=5), "campaigns|int"),
        (lambda form: form["elsewhere"][0].update(status="GOOD"), "GOOD"),
    ],
)
def test_what_is_no_record_is_refused_by_part(change: Callable[[Any], object], says: str) -> None:
    form = json.loads(dumps([CAMPAIGN], [REPLAY]))
    change(form)
    with pytest.raises(BadRecord, match=says):
        loads(json.dumps(form))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"format": 1}', "null"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadRecord):
        loads(text)


def test_a_record_from_before_what_could_not_be_run_was_told_apart() -> None:
    """Made by the version before; where a reason is one of the harness's own, it is an error now."""
    text = (DATA / "record-1-unfit.json").read_text()
    [campaign], _ = loads(text)
    assert (campaign.unsupported, campaign.errors) == ({"this toy target cannot be built anywhere": 4}, {})
    assert campaign.endings == {"unsupported": 4}
    failed = "the session failed: AttributeError: no such field"
    form = json.loads(text)
    form["campaigns"][0]["unfit"][failed] = 2
    [campaign], _ = loads(json.dumps(form))
    assert (campaign.errors, campaign.endings) == ({failed: 2}, {"unsupported": 4, "error": 2})


@pytest.mark.parametrize(
    ("why", "how"),
    [
        ("flashinfer has no stand-in on the verify runner's way", Termination.UNSUPPORTED),
        (
            "sglang 0.5.10.post1 is older than 0.5.12, the oldest release in which it can be driven",
            Termination.UNSUPPORTED,
        ),
        ("the worker ended: SIGKILL", Termination.ERROR),
        ("TypeError: TpModelWorker.__init__() missing 1 required positional argument: 'ps'", Termination.ERROR),
        ("SIGSEGV while building", Termination.ERROR),
        ("the launch could not be recorded: RuntimeError: shape is invalid", Termination.ERROR),
        ("asked for sglang 0.5.13, found 0.5.14 on the import path", Termination.ERROR),
    ],
)
def test_which_of_the_two_an_older_file_meant(why: str, how: Termination) -> None:
    assert told_apart("unfit", why) is how
    assert told_apart("raised", why) is Termination.RAISED
