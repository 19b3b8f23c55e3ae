"""Cases of an aim as a strategy of Hypothesis, for tests; campaigns draw them round by round (fuzz/draw/rounds.py)."""

from __future__ import annotations

from hypothesis import strategies as st

from fuzz.draw.aim import Aim, aimed_setups
from fuzz.draw.covering import rows
from fuzz.draw.near import near_cases, near_setups
from fuzz.draw.strategies import cases
from fuzz.draw.swarm import swarms
from repro.cases.case import Case


@st.composite
def aimed_cases(draw: st.DrawFn, runner: str, backend: str, aim: Aim) -> Case:
    """Cases of this runner over this backend; the aim is one that they can have."""
    if aim.near:
        return draw(near_cases(draw(near_setups(aim))))
    row = draw(st.sampled_from(rows(runner, backend, "strategy")))
    swarm = row.swarm(draw(swarms()))
    return draw(cases(draw(aimed_setups(runner, backend, swarm, aim)), aim.swarm(swarm)))
