"""The cost of an opening: parts without the parts within them, and their table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from repro.cases.case import setup_problems
from repro.traces.trace import End, Termination, Trace
from tests.tools.family_costs import LLAMA, PAIRS, Cost, alike
from tests.tools.openings import Opening, table
from tests.tools.parts import Parts


def ticking(*times: float) -> Iterator[float]:
    return iter(times)


def test_a_part_does_not_count_the_parts_within_it() -> None:
    parts = Parts(ticking(0, 1, 3, 7, 8, 10).__next__)
    with parts.part("outer"), parts.part("inner"):
        pass
    assert parts.taken() == {"other": 3, "outer": 2 + 1, "inner": 4}


def test_a_part_ends_where_its_function_raises() -> None:
    parts = Parts(ticking(0, 1, 3, 4).__next__)
    with pytest.raises(ZeroDivisionError):
        parts.of("fails", lambda: 1 // 0)()
    assert parts.taken() == {"other": 2, "fails": 2}


def trace(how: Termination, **seconds: float) -> Trace:
    return Trace(ended=End(how=how, step=0, path="eager"), seen=(), facts={}, seconds=seconds)


def test_an_opening_has_all_of_its_seconds() -> None:
    seconds = {"opening: model": 1.0, "opening: other": 0.5, "case: other": 0.25, "case: dynamo": 2.0, "graph": 9.0}
    opening = Opening.of("setup", trace(Termination.DONE, **seconds), 4.0, 0.1)
    assert opening.parts == {
        "model": 1.0,
        "other": 0.5,
        "first case": 0.25,
        "dynamo in it": 2.0,
        "process": 0.25,
    }
    assert sum(opening.parts.values()) == opening.whole


def test_the_table_has_means_of_sessions_that_ran_their_case() -> None:
    done = [Opening.of("s", trace(Termination.DONE, **{"opening: model": model}), 4.0, 0.5) for model in (1.0, 3.0)]
    refused = Opening.of("s", trace(Termination.UNSUPPORTED), 9.0, 9.0)
    lines = table("draft", [*done, refused])
    assert lines[0].startswith("draft: 2 of 3 sessions")
    assert "model                          2.000   3.000" in "\n".join(lines)
    assert table("draft", [refused]) == ["draft: none of 1 sessions ran its first case", "  unsupported: "]


@pytest.mark.parametrize("pair", PAIRS)
def test_families_are_measured_in_one_setup(pair: str) -> None:
    each = alike(*pair.split("/"))
    assert next(iter(each)) == LLAMA and len(each) > 2
    assert not [problem for setup in each.values() for problem in setup_problems(setup)]
    assert (
        len({replace(setup, family="", hidden_size=0, dtype="", window=0, swa=False) for setup in each.values()}) == 1
    )


def test_a_cost_is_shown_in_times_of_llamas() -> None:
    llama = Cost(opening=0.5, step=0.02, memory=1.0)
    other = Cost(opening=1.0, step=0.05, memory=1.25)
    assert llama.row("decode/triton", LLAMA, None) == "| decode/triton | Llama | 0.50 s | 20 ms | 1.0 GiB |"
    assert other.row("decode/triton", "kda", llama) == "| decode/triton | kda | 1.00 s (2.0) | 50 ms (2.5) | 1.2 GiB |"
