"""Edits of source: exactly the named places change, and a place that is not as expected is an error of one line."""

from __future__ import annotations

import pytest

from repro.upstream.edits import Edit, EditNotFound, edited

TEXT = '''\
"""A file — with a comment kept."""
class Runner:
    def replay(self, batch):  # the one
        if batch.bs != batch.raw_bs:
            self.seq_lens.fill_(1)
            self.rows.zero_( )   # why
        größe = "ä" + width(batch.max_bs,
                            self.topk)
        return batch,  größe


class Other:
    def replay(self):
        self.rows.zero_()

        def inner():
            self.rows.zero_()


if True:
    def late():
        x = 1; y = 2
        return x
'''


def edit(function: str, old: str, new: str = "", times: int = 1) -> Edit:
    return Edit(file="sglang/x.py", function=function, old=old, new=new, times=times)


def changes(*edits: Edit) -> list[tuple[str, str]]:
    """The lines that became others, of a result with as many lines."""
    before, after = TEXT.splitlines(), edited(TEXT, edits).splitlines()
    assert len(before) == len(after)
    return [(a, b) for a, b in zip(before, after, strict=True) if a != b]


def test_a_statement_is_dropped_and_nothing_else() -> None:
    assert changes(edit("Runner.replay", "self.rows.zero_()")) == [
        ("            self.rows.zero_( )   # why", "            pass   # why")
    ]


def test_an_expression_is_replaced_wherever_its_lines_end() -> None:
    result = edited(TEXT, [edit("Runner.replay", "width(batch.max_bs, self.topk)", "batch.max_bs")])
    expected = TEXT.replace("width(batch.max_bs,\n                            self.topk)", "batch.max_bs")
    assert result == expected != TEXT


def test_a_statement_becomes_several_at_its_indentation() -> None:
    new = """
        if batch.early:
            self.plan(batch)
        return batch, größe
    """
    result = edited(TEXT, [edit("Runner.replay", "return (batch, größe)", new)])
    indented = "        if batch.early:\n            self.plan(batch)\n        return batch, größe\n"
    assert result == TEXT.replace("        return batch,  größe\n", indented) != TEXT


def test_several_edits_of_one_file() -> None:
    result = edited(
        TEXT,
        [
            edit("Runner.replay", "self.seq_lens.fill_(1)"),
            edit("Runner.replay", "self.rows.zero_()"),
            edit("Other.replay", "self.rows.zero_()", times=2),
            edit("late", "x = 1", "x = 3"),
        ],
    )
    assert result.count("pass") == 4
    assert "zero_" not in result
    assert "        x = 3; y = 2\n" in result


def test_ends_of_lines_stay() -> None:
    windows = TEXT.replace("\n", "\r\n")
    result = edited(windows, [edit("Runner.replay", "self.rows.zero_()")])
    assert result == windows.replace("self.rows.zero_( )", "pass") != windows


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (edit("Runner.replay", "self.gone.zero_()"), "'self.gone.zero_()' is 0 times in Runner.replay, expected 1"),
        (edit("Other.replay", "self.rows.zero_()"), "'self.rows.zero_()' is 2 times in Other.replay, expected 1"),
        (edit("late", "x = 1", times=2), "'x = 1' is 1 times in late, expected 2"),
        (edit("Runner.execute", "pass"), "Runner.execute is defined 0 times, expected 1"),
        (edit("replay", "pass"), "replay is defined 0 times, expected 1"),
        (edit("late", "x = 1", "return ("), "not valid Python after the edit, line"),
    ],
)
def test_a_place_that_is_not_as_expected_is_refused(wrong: Edit, reason: str) -> None:
    with pytest.raises(EditNotFound) as refused:
        edited(TEXT, [wrong])
    assert str(refused.value).startswith(f"sglang/x.py: {reason}")
    assert "\n" not in str(refused.value)


def test_an_edit_of_several_statements_is_an_error_of_its_author() -> None:
    with pytest.raises(ValueError, match=r"an edit replaces one statement, not 2: 'x = 1; y = 2'"):
        edited(TEXT, [edit("late", "x = 1; y = 2")])


def test_a_function_that_is_there_twice_is_refused() -> None:
    with pytest.raises(EditNotFound, match=r"late is defined 2 times, expected 1"):
        edited(TEXT + "def late():\n    x = 1\n", [edit("late", "x = 1")])


def test_an_edit_within_another_is_refused() -> None:
    within = edit("Runner.replay", "batch.max_bs", "2")
    around = edit("Runner.replay", "width(batch.max_bs, self.topk)", "1")
    with pytest.raises(EditNotFound, match="overlap"):
        edited(TEXT, [within, around])


def test_what_is_no_python_is_refused() -> None:
    with pytest.raises(EditNotFound, match=r"sglang/x\.py: not Python, line 1"):
        edited("def (", [edit("late", "x = 1")])
