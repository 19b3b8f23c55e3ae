"""Issue texts and the static site: what is known of a finding stands in them, and nothing that is not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from reports import site
from reports.__main__ import main
from reports.issue import Material, issue, material
from reports.records import history_of
from repro.cases import codec
from repro.cases.codec import AboutValue
from repro.cases.json_parts import plain
from repro.cases.places import markdown
from repro.upstream.fixes import SEEDS
from tests.builders import sample_ledger
from tests.builders.sample_record import campaign, stale_found

SEED = SEEDS / "multi-layer-stale-padding.json"
STORED = codec.read(SEED)
SPAN = {
    "last_good": "",
    "first_bad": "0.5.11",
    "last_bad": "0.5.15.post1",
    "first_fixed": "",
    "as_old_as": "as old as the feature: 0.5.10.post1 cannot run the case",
    "candidates": [
        {"name": "0.5.10.post1", "failed": 0, "runs": 0, "skipped": "no such runner", "besides": []},
        {"name": "0.5.11", "failed": 3, "runs": 3, "skipped": "", "besides": []},
    ],
}


def told(text: str) -> dict[str, str]:
    """The sections by their headings."""
    first, *rest = re.split(r"^### (.*)\n\n", text, flags=re.MULTILINE)
    return {"": first} | dict(zip(rest[::2], rest[1::2], strict=True))


def test_all_that_is_known_stands_in_an_issue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / name for name in ("range", "first", "script", "patch", "test")}
    files["range"].write_text(json.dumps(SPAN))
    files["first"].write_text("first wrong: here\n")
    for name, text in (("script", "print('repro')\n"), ("patch", "--- a/x\n+++ b/x\n"), ("test", "class Test: ...\n")):
        files[name].write_text(text)
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert main(["issue", str(SEED), *options]) == 0
    shown_page = told(capsys.readouterr().out)
    assert shown_page[""].startswith("# [Bug] padded rows of multi-layer EAGLE keep an earlier request's slot\n")
    assert "sglang 0.5.15.post1, on CPU tensors" in shown_page["Environment"]
    assert "--enable-multi-layer-eagle" in shown_page["Smallest configuration"]
    assert (
        "0. a batch of 2 (bucket 2): request slot 1 with 1 token in its KV cache, request slot 2" in shown_page["Steps"]
    )
    assert "first wrong value: `step 1 req_pool_indices[1,0] is 2, expected 0`" in shown_page["Expected and seen"]
    assert (
        "first bad: 0.5.11" in shown_page["Affected releases"]
        and "it is still there" in shown_page["Affected releases"]
    )
    assert "0.5.10.post1 was not measured: no such runner" in shown_page["Affected releases"]
    assert "where it comes from:\n\n```\nfirst wrong: here\n```" in shown_page["Expected and seen"]
    assert "print('repro')" in shown_page["Reproducer"] and "+++ b/x" in shown_page["Candidate patch"]
    assert "class Test" in shown_page["Test"]
    assert "with the patch above, and nothing else changed" in shown_page["Ruled out"]
    assert "chance: it failed in 3 of 3 runs" in shown_page["Ruled out"]


def test_a_seed_may_say_its_own_title() -> None:
    text = issue(Material(case=STORED.case, about={"title": "rows are stale", "where": "padded rows"}))
    assert text.startswith("# [Bug] rows are stale\n") and "padded rows" not in text


def test_what_is_not_known_has_no_section() -> None:
    text = issue(Material(case=STORED.case, about={}))
    assert set(told(text)) == {"", "Smallest configuration", "Steps"}
    assert "chance" not in text and "patch" not in text and "GPU" not in text


@pytest.mark.parametrize(
    ("about", "phrase"),
    [
        ({"failed": "1 of 1 runs in fresh processes"}, ""),
        ({"failed": "2 of 3 runs in fresh processes"}, ""),
        ({"failed": "2 of 2 runs in fresh processes"}, "- chance: it failed in 2 of 2 runs in fresh processes"),
        ({"shrunk": "until nothing more could be left out"}, "until nothing more could be left out"),
    ],
)
def test_only_what_was_run_is_ruled_out(about: dict[str, AboutValue], phrase: str) -> None:
    assert phrase in told(issue(Material(case=STORED.case, about=about))).get("Ruled out", "")
    assert bool(phrase) == ("Ruled out" in issue(Material(case=STORED.case, about=about)))


def test_a_checkout_is_named_whole_and_a_summary_is_never_empty() -> None:
    about = {"found": "/home/me/sglang/python@emulated", "oracle": "staged", "where": "real rows of select_index"}
    shown_page = told(issue(Material(case=STORED.case, about=about)))
    assert "- sglang at /home/me/sglang/python, on CPU tensors" in shown_page["Environment"]
    assert "real rows of select_index are not the batch's." in shown_page[""]


@pytest.mark.parametrize("path", sorted(SEEDS.glob("*.json")), ids=lambda path: path.stem)
def test_every_seed_is_an_issue(path: Path) -> None:
    stored = codec.read(path)
    text = issue(material(str(path), [], None))
    assert text.startswith("# [Bug] ") and markdown(str(stored.about["detail"])) in text
    assert plain(text, len(text)).count("eagleeye") == 0
    assert ("--speculative-algorithm" in text) == (stored.case.setup.runner not in ("decode", "cpu_decode"))


@pytest.mark.parametrize(
    ("seed", "phrase"),
    [
        ("decode-window-one-short", "The target's layers have a sliding window: a token attends to 7 tokens before it"),
        ("draft-window-not-planned", "The draft model's layers have a sliding window"),
        ("flashinfer-logit-cap-not-planned", "Attention's logits level off at 1 (attn_logit_softcapping)."),
        ("draft-rows-end-at-the-context", "their drafts reach behind it"),
        ("multi-layer-lengths-absent", "No attention backend asks for lengths on the host."),
        ("no-replay-without-padding", "--disable-cuda-graph-padding"),
    ],
)
def test_what_few_cases_have_is_said(seed: str, phrase: str) -> None:
    text = issue(material(str(SEEDS / f"{seed}.json"), [], None))
    assert phrase in told(text)["Smallest configuration"]


def test_a_draft_model_of_other_sizes_has_a_line_of_its_own() -> None:
    setup = replace(codec.read(SEEDS / "draft-rows-end-at-the-context.json").case.setup, hidden_size=32, num_heads=2)
    apart = replace(setup, num_kv_heads=2, head_dim=16, draft_hidden_size=48, draft_num_heads=4)
    drafts = "The draft model has other sizes: hidden size 48, 4 heads, 2 of them for keys and values, of 16."
    for each, is_said in ((setup, False), (apart, True)):
        text = issue(Material(case=replace(STORED.case, setup=each), about=STORED.about))
        assert (drafts in told(text)["Smallest configuration"]) == is_said


def test_a_finding_of_a_ledger_is_an_issue_too() -> None:
    shown_page = stale_found()
    history = history_of([campaign(findings=(shown_page,))], [])
    leaf = next(
        leaf_of_site
        for leaf_of_site in site.leaves(history)
        if leaf_of_site.subject.fingerprint == shown_page.fingerprint
    )
    assert f"- seen: {shown_page.detail}" in leaf.issue and "found by a campaign of random cases" in leaf.issue


def test_bad_input_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "range.json"
    bad.write_text("{}")
    for arguments, text in (
        (["a2dfbbbe8eea"], "a2dfbbbe8eea: no such seed file, and no such finding in the ledger"),
        ([str(tmp_path / "absent.json")], "No such file"),
        ([str(SEED), "--range", str(bad)], "is not what python -m repro bisect --json writes"),
        ([str(SEED), "--patch", str(tmp_path / "absent.diff")], "No such file"),
        (["site", "--out", str(tmp_path)], ""),
    ):
        assert main(["issue", *arguments] if arguments[0] != "site" else arguments) == 3
        error = capsys.readouterr().err
        assert text in error and error.count("\n") == 1


@pytest.mark.slow
def test_a_page_a_finding_under_a_name_that_stays(tmp_path: Path) -> None:
    history = sample_ledger.history(40, sample_ledger.case_rows(40))
    index, *others = site.write(history, tmp_path)
    pages = [path for path in others if path.suffix == ".html"]
    assert pages and all(path.is_file() for path in others)
    links = re.findall(r'href="(findings/[^"]+)"', index.read_text())
    assert sorted(tmp_path / link for link in links) == sorted(pages)
    names = [path.name for path in pages]
    assert len(set(names)) == len(names)
    # Whatever else is found later, and whatever order it comes in.
    again = [path.name for path in site.write(history, tmp_path / "again") if path.suffix == ".html"]
    assert set(names) < set(again) and "finding-" in " ".join(names)


def test_what_others_wrote_is_escaped(tmp_path: Path) -> None:
    shown_page = stale_found()
    hostile = "<script>alert(1)</script>\x1b[31m"
    history = history_of([campaign(findings=(replace(shown_page, detail=hostile),))], [])
    for path in site.write(history, tmp_path):
        text = path.read_text()
        assert "<script>alert" not in text and "\x1b" not in text


@pytest.mark.parametrize(
    ("state", "color"), [("failing in 0.5.14", "#c0392b"), ("passing in 0.5.14", "#2e7d32"), ("2 <&>", "#777777")]
)
def test_a_badge_is_a_picture(state: str, color: str) -> None:
    picture = ElementTree.fromstring(site.badge("eagleeye", state))
    texts = [part.text for part in picture.iter() if part.text and part.text.strip()]
    assert texts == ["eagleeye", state]
    assert color in ElementTree.tostring(picture, encoding="unicode")


def test_an_empty_ledger_is_a_site(tmp_path: Path) -> None:
    index, badge = site.write(history_of([], []), tmp_path)
    assert "Nothing is recorded here." in index.read_text() and "nothing measured" in badge.read_text()
