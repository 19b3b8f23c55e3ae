"""Attacked from outside: texts of seeds, of ledgers and of sglang that are commands or markup where they are shown."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from pathlib import Path

import pytest

from reports import __main__ as reports
from reports.wording import one_line
from repro import __main__ as repro
from repro.cases import codec
from repro.cases.places import code, docstring, fenced, log, log_line, markdown, printed_json
from repro.commands.cli import complain, say
from repro.upstream.fixes import SEEDS
from repro.upstream.patch_test import Answer, Question, Side, table
from repro.upstream.rig import Sighting, Wanted
from repro.upstream.script import script, upstream_test
from tests.builders.refusals import refusal

COMMANDS = (
    "::error title=x::pwned",
    "  ::warning file=a,line=1::pwned",
    "\t::add-mask::e",
    "::SET-OUTPUT name=a::b",
    "::stop-commands::token",
    ":::error::x",
    "::::error::x",
    "a text ::error::in its midst",
    "word::error::in a word",
    "##[error]pwned",
    "a ##[group]in its midst",
    "###[error]pwned",
    "##vso[task.setvariable variable=PATH]/tmp",
    "a ##VSO[task.complete]in its midst",
    "##teamcity[buildProblem description='x']",
)
TERMINAL = (
    *("\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x1b]52;c;AAAA\x07", "\r::error::x"),
    *("\x9b31m", "a\u202eb", "\x00", "\ud800"),
)
MARKUP = (
    "`x` | [a](javascript:b)",
    "<img src=x onerror=alert(1)>",
    "<!-- hidden",
    "</details>",
    "# heading",
    "- item",
    "```",
    "~~~",
    "~~gone~~",
    "**bold** and *slanted* and _slanted_",
    "@everyone",
    "cc @some-one",
    "![image](https://x/y.png)",
    "[a][b]",
    "[a]: https://x",
    "$\\frac{1}{2}$",
    "a\\",
    "| a | b |",
    "&lt;script&gt; &#64;everyone",
)
NAMES = ("req_pool_indices[1,0] is 2, expected 0", "at::native::fill of c10::Half", "out_cache_loc, 0.5.23:181")


def obeyed(line: str) -> bool:
    """True if a CI runner takes this line for a command, as their sources say: GitHub reads :: behind blanks and ##[
    anywhere, Azure ##vso[ anywhere, TeamCity ##teamcity[."""
    start = line.lstrip()
    return start.startswith("::") or bool(re.search(r"##(?:vso|teamcity)?\[", line, re.IGNORECASE))


@pytest.mark.parametrize("text", [*COMMANDS, *TERMINAL])
def test_a_line_of_a_log_says_nothing_to_its_reader(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(text)
    complain(text)
    printed = capsys.readouterr()
    for line in (log_line(text), one_line(text), printed.out.removesuffix("\n"), printed.err.removesuffix("\n")):
        # Wherever a table breaks it.
        assert not re.search(r"::(?:error|warning|add-mask|set-output|stop-commands)\b", line, re.IGNORECASE)
        assert not obeyed(line) and all(c.isprintable() for c in line)
    assert not any(map(obeyed, log(f"first\n{text}\nlast").split("\n")))
    assert not any(map(obeyed, printed_json([text, {text: text}]).splitlines()))
    assert json.loads(printed_json([text, {text: text}])) == [text, {text: text}]


@pytest.mark.parametrize("text", NAMES)
def test_names_of_code_stay_as_they_are(text: str) -> None:
    assert log_line(text) == one_line(text) == text and markdown(text) == text


@pytest.mark.parametrize("text", [*MARKUP, *COMMANDS, *TERMINAL])
def test_a_text_in_markdown_is_a_text(text: str) -> None:
    for line in (f"# {markdown(text)}", f"- {markdown(text)}", f"| {markdown(text)} |", markdown(text)):
        assert "\n" not in line and not obeyed(line)
        bare = re.sub(r"\\[^a-zA-Z0-9\s]", "x", re.sub(r"^[#|-] | [|]$", "", line))
        assert not re.search(
            r"[<>`*|~$\\]|\]\(|\]\[|!\[|\]:|(?<!\w)@\w|(?<!\w)_|^[#-]|&#?[a-z\d]+;", bare.replace("@&#8203;", "@ ")
        ), bare
    assert code(text).count("`") in (0, 2) and "|" not in code(text)


@pytest.mark.parametrize("text", ["```\n@everyone", "````\n<b>", "`" * 20 + "\nx", "x"])
def test_a_block_of_code_ends_where_its_text_does(text: str) -> None:
    first, *middle, last = fenced(text, "diff").split("\n")
    assert first == last + "diff" and set(last) == {"`"} and len(last) >= 3
    assert "\n".join(middle) == text and not any(line.startswith(last) for line in middle)


STALE = codec.read(SEEDS / "pr23037-stale-padding.json")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A seed whose every text is a command, and markup."""
    seed = dataclasses.replace(
        STALE,
        about={
            "::error title=key::pwned": "x",
            "##[error]key": {"::error::inner": "##vso[task.complete]", "b": "::error::x"},
            "list": ("::error::x", "##[group]y"),
            "title": "::error::x <b> @everyone ##[error] # a | b `c` [d](javascript:e)",
            "fix": "</details> @everyone ![a](b)",
            "note": "<script>alert(1)</script>",
            "detail": "`code` | <img src=x>",
            "oracle": "slot0_padding",
            "where": "padded rows of <b>",
            "cell": "``` | @everyone",
            "failed": "2 of 2 runs, @everyone",
            "found": "/<b>@everyone@emulated",
            "expect": {"<b>": "@everyone"},
            "shrunk": "<b>",
        },
    )
    path = tmp_path / "hostile.json"
    codec.write(path, seed)
    return path


def test_a_seed_is_shown_without_commands(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["show", str(hostile)], ["check", str(hostile)]):
        assert repro.main(words) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines and not any(map(obeyed, lines))


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_seed_is_run_without_commands(hostile: Path, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    repro.main(["run", str(hostile), "--target", "clean/toy", *more])
    printed = capsys.readouterr()
    assert not any(map(obeyed, (printed.out + printed.err).splitlines()))


def test_an_issue_obeys_no_text(hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / name for name in ("first", "script", "patch", "test")}
    for name, path in files.items():
        path.write_text(f"{name}\n```\n</details> <b> @everyone\n::error::x\n")
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert reports.main(["issue", str(hostile), *words]) == 0
    text = capsys.readouterr().out
    assert not any(map(obeyed, text.splitlines()))
    outside = re.sub(r"^(`{3,})\w*\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    outside = re.sub(r"</?(?:details|summary)>|`[^`\n]*`|\\[^\w\s]", "", outside)
    assert not re.search(r"[<>]|(?<!\w)@\w|\]\(", outside), outside
    assert text.count("<details>") == text.count("</details>") - text.count("</details> <b>")
    assert text.startswith("# \\[Bug] " if text.startswith("# \\") else "# [Bug] ")


SPAN = ("first_bad", "last_good", "as_old_as", "last_bad", "first_fixed")
RANGES = {
    "a list": "[]",
    "nothing": "",
    "other keys": '{"first_bad": "0.5.13"}',
    "deep": "[" * 100_000,
    "candidates that are none": json.dumps(dict.fromkeys(SPAN, "") | {"candidates": [1]}),
}


@pytest.mark.parametrize("text", RANGES.values(), ids=RANGES)
def test_a_range_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "range.json").write_text(text)
    line = refusal(reports.main, "issue", SEEDS / "pr23037-stale-padding.json", "--range", tmp_path / "range.json")
    assert "is not what python -m repro bisect --json writes" in line


def test_a_table_of_a_patch_obeys_no_text(hostile: Path) -> None:
    odd = "<b> | @everyone `x` ##[error]"
    failure = Wanted(oracle=odd, where=odd)
    before = Side(runs=(Sighting(bad=True, others=frozenset({odd})),))
    after = Side(runs=(Sighting(bad=None, why=odd),))
    question = Question(path=hostile, seed=codec.read(hostile), failure=failure)
    answer = Answer(question=question, before=before, after=after)
    for line in table([answer], odd, odd):
        bare = re.sub(r"`[^`]*`|\\[^\w\s]", "", line)
        assert not obeyed(line) and not re.search(r"[<>`]|@\w", bare)
        assert bare.count("|") in (0, 6)


CODE = (
    '"""\nimport os\n'.replace("\n", " "),
    '"""; raise SystemExit(7); """',
    '""" + str(__import__("os").system("true")) + """',
    "\\",
    'ends with a quote"',
    "\\u0022\\u0022\\u0022",
    "\\x22\\x22\\x22",
    "$data $own $look $report $modules $words",
    "@era 0.5.10 0.5.11",
)


@pytest.mark.parametrize("text", CODE)
def test_a_script_of_a_seed_holds_no_code_of_its_texts(text: str) -> None:
    """The file is run before it is handed over."""
    failure = Wanted(oracle="slot0_padding", where=str(STALE.about["where"]))
    assert docstring(text).count('"""') == 0
    for name in ("pr23037-stale-padding", "own"):
        plain, odd = (
            ast.parse(script(name, dataclasses.replace(STALE, about={"fix": fix}), failure, ("0.5.10.post1",)))
            for fix in ("harmless", text)
        )
        assert ast.dump(ast.Module(odd.body[1:], [])) == ast.dump(ast.Module(plain.body[1:], []))
        assert " ".join(text.replace("$", "").split())[:20] in (ast.get_docstring(odd) or "").replace("$ ", "")
    tests = [
        ast.parse(
            upstream_test("x", dataclasses.replace(STALE, about={"fix": fix}), failure, ("0.5.10.post1",), "cuda")
        )
        for fix in ("harmless", text)
    ]
    assert ast.dump(ast.Module(tests[0].body[1:], [])) == ast.dump(ast.Module(tests[1].body[1:], []))
