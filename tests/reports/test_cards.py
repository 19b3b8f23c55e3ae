"""The report leads with what fails, a card a cause."""

from __future__ import annotations

from dataclasses import replace

from reports.cards import cards
from reports.html import render
from reports.records import history_of
from reports.subjects import subjects
from repro.ledger.known import load
from repro.upstream.findings import load as published
from tests.builders.sample_record import BUGGY, FIXED, campaign, stale_found

ISSUES = load()


def test_failures_of_one_issue_are_one_card_with_its_impact_and_links() -> None:
    issue = next(issue for issue in ISSUES if "seed:pr23037-stale-padding.json" in issue.probes)
    record = campaign(BUGGY, (stale_found(),))
    known = subjects(history_of([record], ()))
    failing = [subject for subject in known if subject.fails]
    assert failing
    put_down = [
        replace(
            subject,
            squares={
                target: replace(square, issue=str(issue), state="known") for target, square in subject.squares.items()
            },
        )
        for subject in (failing[0], replace(failing[0], fingerprint="other", anchor="other"))
    ]
    (card,) = cards(put_down, ISSUES, published())
    assert len(card.subjects) == 2 and card.state == "known"
    assert card.impact and card.cause and card.links
    assert all(address.startswith("https://github.com/sgl-project/sglang/pull/") for _, address in card.links)


def test_a_failure_that_nothing_explains_comes_first_and_says_what_was_seen() -> None:
    history = history_of([campaign(BUGGY, (stale_found(),))], ())
    causes = cards(subjects(history), (), published())
    assert causes and causes[0].state == "new" and not causes[0].impact
    assert causes[0].sentence == stale_found().detail
    page = render(history)
    assert page.index('id="failures"') < page.index('id="changes"')
    assert page.index(causes[0].subjects[0].anchor) > page.index('id="failures"')


def test_a_card_leads_to_the_line_of_sglang_and_shows_the_patch() -> None:
    stale = replace(stale_found(), detail="Row 1 is wrong. It came out wrong at sglang/srt/a.py:12 in replay.")
    (card,) = cards(subjects(history_of([campaign(BUGGY, (stale,))], ())), (), published())
    assert card.sentence == "Row 1 is wrong."
    address = f"https://github.com/sgl-project/sglang/blob/v{BUGGY.sglang}/python/sglang/srt/a.py#L12"
    assert card.lines == (("sglang/srt/a.py:12", address),) and len(card.panels) == 1
    issue = next(issue for issue in ISSUES if "seed:multi-layer-stale-padding.json" in issue.probes)
    (subject,) = card.subjects
    squares = {target: replace(square, issue=str(issue)) for target, square in subject.squares.items()}
    (card,) = cards([replace(subject, squares=squares, detail="")], ISSUES, published())
    assert "- tl.store(req_pool_indices_ptr + i, rpi, mask=is_real)" in card.patch
    assert card.lines and all("multi_layer_eagle.py" in line for line, _ in card.lines)
    page = render(history_of([campaign(BUGGY, (stale,))], ()))
    assert f'<a href="{address}">' in page and 'id="card-1-command"' in page


def test_a_card_names_the_lines_of_a_release_that_fails() -> None:
    failure = replace(stale_found(), target=str(FIXED), detail="")
    (card,) = cards(subjects(history_of([campaign(FIXED, (failure,))], ())), (), published())
    (subject,) = card.subjects
    issue = next(issue for issue in ISSUES if "seed:draft-mrope-not-staged.json" in issue.probes)
    squares = {target: replace(square, issue=str(issue)) for target, square in subject.squares.items()}
    (card,) = cards([replace(subject, squares=squares)], ISSUES, published())
    line, address = card.lines[0]
    assert line == "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py:276 in 0.5.13"
    assert address.endswith("/v0.5.13/python/sglang/srt/speculative/eagle_draft_cuda_graph_runner.py#L276")


def test_nothing_fails() -> None:
    assert cards((), ISSUES, published()) == []
