"""about.expect of a seed file: ranges of releases and what must happen there."""

from __future__ import annotations

import random
from typing import Any

import pytest

from repro.cases.codec import BadSeed
from repro.cases.releases import expected, release_order

RISING = (
    *("0.5.9", "0.5.10rc1", "0.5.10", "0.5.10.post1", "0.5.10.post2", "0.5.10.post10", "0.5.11.dev3", "0.5.11a1"),
    *(
        "0.5.11b1",
        "0.5.11rc1",
        "0.5.11",
        "0.5.11+cu130",
        "0.5.12.post1",
        "0.5.13",
        "0.5.14.dev3",
        "0.5.14.dev3+gabcdef1",
    ),
    *("0.5.14", "1.0", "1.0.1"),
)


def test_releases_have_an_order() -> None:
    shuffled = random.Random(0).sample(RISING, len(RISING))
    assert tuple(sorted(shuffled, key=release_order)) == RISING
    assert len({release_order(release) for release in RISING}) == len(RISING)


@pytest.mark.parametrize("text", ["", "main", "0.5.", "v0.5", "0.5.13post1", "0.5.13\n"])
def test_what_is_no_release_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a release number"):
        release_order(text)


ABOUT = {
    "expect": {"<=0.5.10.post1": "fail by slot0_padding", ">=0.5.11, <0.5.13": "pass", "==0.5.13": "fail by ended"}
}


@pytest.mark.parametrize(
    ("release", "want"),
    [
        ("0.5.9", "slot0_padding"),
        ("0.5.10.post1", "slot0_padding"),
        ("0.5.10.post2", None),
        ("0.5.11", ""),
        ("0.5.12.post1", ""),
        ("0.5.13", "ended"),
        ("0.5.13.post1", None),
    ],
)
def test_the_range_that_holds_speaks(release: str, want: str | None) -> None:
    assert expected(ABOUT, release) == want


@pytest.mark.parametrize(
    ("release", "engine", "want"),
    [
        ("0.5.22", "cuda", "row_width"),
        ("0.5.23", "cuda", "ended"),
        ("0.5.23", "emulated", "row_width"),
        ("0.5.23", "", "row_width"),
        ("0.5.24", "emulated", ""),
        ("0.5.24", "cuda", "row_width"),
    ],
)
def test_what_is_said_of_one_engine_goes_before_what_is_said_of_all(release: str, engine: str, want: str) -> None:
    ranges = {">=0.5.22": "fail by row_width", "==0.5.23 /cuda": "fail by ended", ">0.5.23/emulated": "pass"}
    assert expected({"expect": ranges}, release, engine) == want


def test_a_seed_need_not_say_anything() -> None:
    assert expected({"found": "0.5.13/emulated"}, "0.5.13") is None


@pytest.mark.parametrize(
    ("expect", "reason"),
    [
        ("pass", "about.expect: expected an object of release ranges"),
        ({"<0.5.13": "pass", ">0.5.1": "pass"}, "'<0.5.13' and '>0.5.1' both speak of 0.5.12"),
        ({"0.5.12": "pass"}, "'0.5.12' is not a range of releases"),
        ({"<=": "pass"}, "'<=' is not a range of releases"),
        ({"<=0.5.12,": "pass"}, "is not a range of releases"),
        ({"<=0.5.12.final": "pass"}, "is not a range of releases"),
        ({"~=0.5.12": "pass"}, "is not a range of releases"),
        ({">9": "fail"}, "about.expect['>9']: 'fail' is neither \"pass\" nor \"fail by ORACLE\""),
        ({">9": "fail by"}, "is neither"),
        ({">9/tpu": "pass"}, "'>9/tpu': no engine of "),
        ({"/cuda": "pass"}, "'' is not a range of releases"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name(expect: Any, reason: str) -> None:
    with pytest.raises(BadSeed) as refused:
        expected({"expect": expect}, "0.5.12")
    assert reason in str(refused.value)
