"""--shard I/N: parts of one campaign that are disjoint, the same for ever, and together the whole."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz import __main__ as fuzz
from fuzz.draw.rounds import EVERY, SHORT_CASES, SHORT_ROUNDS, Rounds, enough_rounds, part, room, round_cases, rounds
from repro import __main__ as repro
from repro.cases.codec import digest
from repro.ledger.read import read
from repro.traces.campaign import loads

counts = st.integers(1, 40)


@given(limit=st.integers(1, 400), a_round=counts, count=st.integers(1, 9))
def test_the_parts_are_disjoint_and_together_the_whole(limit: int, a_round: int, count: int) -> None:
    parts = [part(limit, a_round, index, count) for index in range(1, count + 1)]
    together = Counter(itertools.chain(*parts))
    assert together == Counter(range(enough_rounds(limit, a_round)))
    assert sum(room(limit, a_round, number) for number in together) == limit
    assert room(limit, a_round, len(together) - 1) > room(limit, a_round, len(together)) == 0
    lengths = [room(None, a_round, number) for number in range(SHORT_ROUNDS + 2)]
    assert lengths == [min(SHORT_CASES, a_round)] * SHORT_ROUNDS + [a_round] * 2


def drawn(some: Rounds) -> list[str]:
    return [digest(case) for case in some]


def test_a_part_has_the_cases_of_its_rounds_and_no_others() -> None:
    whole = [digest(c) for n in range(5) for c in itertools.islice(round_cases(7, n, "toy", "triton", 4), 4)][:18]
    parts = [drawn(rounds(7, "toy", "triton", 4, part(18, 4, index, 3), 18)) for index in (1, 2, 3)]
    assert parts == [drawn(rounds(7, "toy", "triton", 4, part(18, 4, index, 3), 18)) for index in (1, 2, 3)]
    by_number = dict(zip([0, 3, 1, 4, 2], [*_by_four(parts[0]), *_by_four(parts[1]), parts[2]], strict=True))
    assert [by_number[number] for number in range(5)] == _by_four(whole)


def _by_four(texts: list[str]) -> list[list[str]]:
    return [texts[at : at + 4] for at in range(0, len(texts), 4)]


def test_a_part_tells_which_cases_its_own_rounds_will_have() -> None:
    second = rounds(7, "toy", "triton", 4, part(None, 4, 2, 3))
    coming = second.coming()
    assert list(itertools.islice(second, 12)) == [case for some in coming[:3] for case in some]
    assert len(part(None, 4, 1, 1)) == len(EVERY)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ledgers_of_all_parts_hold_each_case_of_the_whole_once(tmp_path: Path, workers: str) -> None:
    def run(name: str, *more: str) -> int:
        arguments = ["run", "--target", "stale_padding/toy", "--cases", "40", "--seed", "3", "--cases-per-setup", "6"]
        place = ["--out", str(tmp_path / name), "--ledger", str(tmp_path / f"{name}.db"), "--workers", workers]
        return fuzz.main([*arguments, *place, *more])

    names = [f"part{index}" for index in (1, 2, 3)]
    codes = [run(name, "--shard", f"{index}/3") for index, name in enumerate(names, start=1)]
    assert 1 in codes and set(codes) <= {0, 1}
    assert run("whole") == 1
    assert repro.main(["ledger", "merge", str(tmp_path / "all.db"), *(str(tmp_path / f"{n}.db") for n in names)]) == 0
    merged, whole = ([row[6] for row in read(tmp_path / f"{name}.db").case_rows()] for name in ("all", "whole"))
    assert Counter(merged) == Counter(whole) and len(merged) == 40
    findings = [{row.fingerprint for row in read(tmp_path / f"{name}.db").findings} for name in ("all", "whole")]
    assert findings[0] == findings[1] != set()
    judged = [loads((tmp_path / name / "record.json").read_text())[0][0].judged for name in [*names, "whole"]]
    assert sum(judged[:3]) == judged[3]


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2"])
def test_what_is_no_part_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["run", "--target", "clean/toy", "--shard", text]) == 3
    assert "--shard" in capsys.readouterr().err


def test_a_part_without_a_round_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--target", "clean/toy", "--cases", "6", "--shard", "2/2", "--out", str(tmp_path)]
    assert fuzz.main(arguments) == 3
    assert "--shard 2/2" in capsys.readouterr().err
