"""The rows of OPTIONS: one for each field of a setup, by sglang's own names."""

from __future__ import annotations

import dataclasses

import pytest

from repro.cases.option import DRAFT, HARNESS, SERVER, TARGET
from repro.cases.options import NAMED, OPTION, OPTIONS
from repro.cases.release_list import NEWEST
from repro.cases.setup import Setup
from tests.builders.sglang_parser import argument_names


def test_each_field_of_a_setup_has_a_row_and_each_row_a_field() -> None:
    assert sorted(option.field for option in OPTIONS) == sorted(f.name for f in dataclasses.fields(Setup))
    assert len(OPTION) == len(OPTIONS)
    keys = [(option.part, name) for option in OPTIONS for name in (option.name, *option.older)]
    assert len(set(keys)) == len(keys)
    # A draft model may have what a target has, and is named apart.
    assert all(NAMED[option.names[-1]] is NAMED[option.field] is option for option in OPTIONS)
    assert all(NAMED[option.name] is option for option in OPTIONS if option.part != DRAFT)


def test_a_row_says_what_its_readers_need() -> None:
    for option in OPTIONS:
        assert option.part in (SERVER, TARGET, DRAFT, HARNESS) and option.meaning
        by_setup = option.field in ("pool", "chunk")  # sizes that are drawn from those of pages and requests
        assert not option.later or (option.words and option.reset and (option.drawn or by_setup)), option.field
        assert not option.later or option.default not in option.drawn, option.field
        assert not option.state or option.smallest[option.field] != option.default


@pytest.mark.emulated(NEWEST)
def test_the_arguments_of_a_server_are_named_as_in_the_newest_release() -> None:
    unknown = {option.name for option in OPTIONS if option.part == SERVER} - argument_names()
    assert not unknown
