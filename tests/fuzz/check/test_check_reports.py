"""fuzz check: JUnit, SARIF, annotations and the page of a comment, in which texts of others stay texts. There is no
schema of SARIF here: the members that it requires are asked for one by one."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fuzz.__main__ import options_of
from fuzz.check.annotations import github_errors
from fuzz.check.causes import Cause, Failing
from fuzz.check.guard import Checked
from fuzz.check.junit import junit
from fuzz.check.location import Location, Names, location, names_of, repository
from fuzz.check.plan import Plan, directed
from fuzz.check.sarif import ROOT, sarif
from fuzz.check.summary import comment, exit_code, lines, markdown
from repro.cases.case import Target
from repro.cases.codec import loads
from repro.commands.cli import BadInput
from repro.traces.exit_codes import ExitCode
from repro.traces.finding import Cell, Finding, Status, Verdict

BRANCH = Target("/gone/sglang/python", "emulated")
PLAIN, KINDS, _ = directed("draft", "triton")
DECODE = directed("decode", "triton")[0]
HOSTILE = (
    "]]> </failure> ::error file=x,line=1::no",
    "\n::error::no\n::set-output name=a::b",
    "`code` | cell <b>bold</b> <!-- @someone [link](http://x) ![](y) $x$",
    "nul \x00 escape \x1b[31m surrogate \ud800 and 100%0A ##[error]no",
    "{0} ](http://x)",
)


def cause(detail: str = "It is wrong.", where: str = "rows of seq_lens", line: Location | None = None) -> Cause:
    verdict = Verdict(
        oracle="staged",
        status=Status.FAIL,
        where=where,
        detail=detail,
        cell=Cell(step=0, buffer="seq_lens", row=2, column=0, got="7", want="1"),
        runner="draft",
        backend="triton",
    )
    case = PLAIN.cases[0]
    finding = Finding(case=case, target=BRANCH, verdict=verdict, failed=1, tried=1, seed="/gone/out/draft-staged.json")
    failing = Failing(item=PLAIN.name, case=case, failures=(verdict,))
    return Cause(cases=(failing,), finding=finding, wrote="Here it is written at sglang/srt/a.py:12.", location=line)


def checked(*causes: Cause, **fields: Any) -> Checked:
    items = (PLAIN, *KINDS[:2], DECODE)
    judged = Counter({item.pair: len(item.cases) for item in items})
    names = Names(folder="python", target="./sglang/python@emulated")
    result = Checked(target=BRANCH, plan=Plan(items=items), done=len(items), judged=judged, names=names)
    return dataclasses.replace(result, causes=list(causes), **fields)


LINE = Location(file="sglang/srt/a.py", line=12)


def test_the_setups_that_find_a_regression_are_the_failures_of_junit() -> None:
    suite = ElementTree.fromstring(junit(checked(cause()))).find("testsuite")
    assert suite is not None and (suite.get("tests"), suite.get("failures")) == ("4", "1")
    rows = {row.get("name"): row for row in suite.iter("testcase")}
    assert list(rows) == [PLAIN.name, *(item.name for item in KINDS[:2]), DECODE.name]
    failure = rows[PLAIN.name].find("failure")
    assert failure is not None and "seq_lens[2,0] is 7" in failure.get("message", "")
    assert "repro run draft-staged.json --target ./sglang/python@emulated" in (failure.text or "")
    assert all(not list(row) for name, row in rows.items() if name != PLAIN.name)


@pytest.mark.parametrize(("unknown", "tag"), [("", "error"), ("fail", "error"), ("pass", "skipped")])
def test_a_doubt_is_an_error_of_junit_unless_it_is_to_pass(unknown: str, tag: str) -> None:
    doubtful = checked(
        errors={DECODE.pair: "because"},
        judged=Counter(),
        doubtful=[PLAIN.name],
        refused={KINDS[0].name: "no such runner"},
        unsure=["it came once"],
    )
    root = ElementTree.fromstring(junit(doubtful, unknown))
    tags = {row.get("name"): [element.tag for element in row] for row in root.iter("testcase")}
    assert tags[PLAIN.name] == tags[DECODE.name] == tags["uncertain 1"] == [tag]
    assert tags[KINDS[0].name] == ["skipped"] and tags[KINDS[1].name] == []


def test_an_interrupted_check_is_not_green_in_junit() -> None:
    root = ElementTree.fromstring(junit(checked(stopped=True, done=1), "pass"))
    tags = [[element.tag for element in row] for row in root.iter("testcase")]
    assert tags == [[], ["skipped"], ["skipped"], ["skipped"], ["error"]]


def require(form: dict[str, Any], *names: str) -> None:
    assert set(names) <= set(form), form


def test_sarif_has_what_its_schema_requires_and_a_result_for_each_cause() -> None:
    done = checked(cause(line=LINE), cause(where="other rows"), unsure=["it came once"])
    log = json.loads(sarif(done))
    require(log, "version", "runs")
    assert log["version"] == "2.1.0" and len(log["runs"]) == 1
    run = log["runs"][0]
    require(run, "tool", "results")
    require(run["tool"]["driver"], "name", "rules")
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["staged"]
    for call in run["invocations"]:
        require(call, "executionSuccessful")
        assert call["exitCode"] == ExitCode.FAIL
        assert [note["message"]["text"] for note in call["toolExecutionNotifications"]] == ["Uncertain: it came once"]
    for result, origin in zip(run["results"], done.causes, strict=True):
        require(result, "message", "ruleId", "level", "locations")
        assert rules[result["ruleIndex"]] == result["ruleId"] and "seq_lens[2,0] is 7" in result["message"]["text"]
        assert result["fingerprints"] == {"identity/v1": origin.first.fingerprint}
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "python/sglang/srt/a.py", "uriBaseId": ROOT}
    assert place["region"] == {"startLine": 12} and run["results"][1]["locations"] == []


def test_sarif_says_that_an_interrupted_check_did_not_succeed() -> None:
    call = json.loads(sarif(checked(stopped=True)))["runs"][0]["invocations"][0]
    assert call["executionSuccessful"] is False and call["exitCode"] == ExitCode.ERROR


def test_annotations_name_file_and_line_where_they_are_known() -> None:
    first, second = github_errors(checked(cause(line=LINE), cause()))
    assert first.startswith("::error file=python/sglang/srt/a.py,line=12,title=eagleeye%3A staged::draft on triton")
    assert second.startswith("::error title=eagleeye%3A staged::draft on triton")


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_others_stay_texts(text: str) -> None:
    done = checked(
        cause(detail=text, where=text.replace("\ud800", ""), line=LINE), unsure=[text], errors={DECODE.pair: text}
    )
    root = ElementTree.fromstring(junit(done))
    assert [element.tag for row in root.iter("testcase") for element in row] == ["failure", "error", "error"]
    results = json.loads(sarif(done))["runs"][0]["results"]
    assert len(results) == 1 and re.search(r"(?<!\\)\]\(", results[0]["message"]["text"]) is None
    (line,) = github_errors(done)
    head, _, message = line.removeprefix("::").partition("::")
    assert line.isprintable() and head.startswith("error file=") and ":" not in head
    assert not re.search(r"::(error|set-output)( .*)?::", message)
    assert re.search(r"%(?!25|3A|2C)", line) is None and "##[" not in line
    for page in (markdown(done), comment(done)):
        outside = re.sub(r"```json.*?```", "", page, flags=re.DOTALL)
        assert not re.search(r"^\s*::|##\[|(?<!\\)</?(?:b|failure)>|(?<!\\)<!--|@someone", outside, re.MULTILINE)
        rows = [row for row in page.splitlines() if row.startswith("| draft")]
        assert len(rows) == 1 and len(re.findall(r"(?<!\\)\|", rows[0])) == 7
    (junit(done) + sarif(done) + line + comment(done)).encode()


def test_a_page_for_a_comment_leaves_out_parts_and_says_so() -> None:
    done = checked(*(cause(where=f"rows {number}", line=LINE) for number in range(5)))
    whole = markdown(done)
    assert comment(done) == whole and whole.count("<details>") == 5
    assert "| python/sglang/srt/a.py:12 |" in whole
    assert loads(whole.partition("```json\n")[2].partition("\n```")[0]).case == PLAIN.cases[0]
    for limit in (len(whole) - 1, len(whole) // 2, 1200):
        page = comment(done, limit)
        assert len(page.encode()) <= limit and page.startswith("## eagleeye: 5 new failures\n")
        assert page.count("<details>") == page.count("</details>") < 5
        assert page.endswith("Some parts are left out here: the whole page has them.\n")
    assert len(comment(done, 300)) <= 300


def test_commands_for_a_reader_elsewhere_name_no_file_of_this_machine() -> None:
    done = checked(cause(line=LINE))
    log = "\n".join(lines(done, elsewhere=True))
    command = "python -m repro run draft-staged.json --target ./sglang/python@emulated"
    for text in (log, markdown(done), *github_errors(done)):
        assert command in text and "/gone/out" not in text
    assert "python -m repro run /gone/out/draft-staged.json" in "\n".join(lines(done))


def test_repositories_have_names_elsewhere(tmp_path: Path) -> None:
    for name in ("sglang", "sglang/base"):
        (tmp_path / name / ".git").mkdir(parents=True)
        (tmp_path / name / "python").mkdir()
    here, base = (Target(str(tmp_path / name / "python"), "emulated") for name in ("sglang", "sglang/base"))
    names = names_of(here, base, lambda target: Path(target.sglang))
    assert names.target == "./sglang/python@emulated" and names.folder == "python"
    assert names.elsewhere(f"{here} against {base}") == "./sglang/python@emulated against ./base/python@emulated"
    assert names_of(Target("0.5.23", "emulated"), base, lambda target: Path(target.sglang)) == Names()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sglang/srt/a.py:12 in replay", LINE),
        ("sglang/srt/a.py:12", LINE),
        ("sglang/../../etc/a.py:12", None),
        ("/x/sglang/srt/a.py:12", None),
        ("sglang/srt/a.py:0", None),
        ("sglang/srt/a.py:12345678901", None),
        ("", None),
    ],
)
def test_a_location_is_a_line_of_sglang(text: str, expected: Location | None) -> None:
    assert location(text) == expected


def test_the_repository_of_an_import_path(tmp_path: Path) -> None:
    source = tmp_path / "clone" / "python"
    source.mkdir(parents=True)
    assert repository(source) == source.parent
    (tmp_path / ".git").touch()  # of a worktree it is a file
    assert repository(source) == tmp_path


def test_no_cause_is_a_green_file_of_each_kind() -> None:
    done = checked()
    assert exit_code(done) is ExitCode.PASS and list(github_errors(done)) == []
    root = ElementTree.fromstring(junit(done))
    assert (root.get("failures"), root.get("errors"), root.get("skipped")) == ("0", "0", "0")
    assert json.loads(sarif(done))["runs"][0]["results"] == []


def test_annotations_are_for_github_or_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert not options_of(["check", "0.5.23"]).annotate and options_of(["check", "0.5.23", "--annotate"]).annotate
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert options_of(["check", "0.5.23"]).annotate
    with pytest.raises(BadInput):
        options_of(["check", "0.5.23", "--runners", "no-such-runner"])
