"""The known bugs that concern a server's flags: by runner, backend, release and the conditions of their issues."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pytest

import repro.commands.concerns as command
from repro.__main__ import main
from repro.cases.codec import read
from repro.cases.launch import command as launch_command
from repro.cases.release_list import ADAPTED
from repro.cases.releases import expected, in_range
from repro.cases.server_args import BadOption, arguments
from repro.ledger import known
from repro.ledger.concerns import ALSO, Concern, concerns, server
from repro.traces.exit_codes import ExitCode
from repro.upstream import findings

SEEDS = {path.name: read(path) for path in sorted(Path("repro/seeds").glob("*.json"))}
BRANCHES = "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-num-draft-tokens 8"
PAGES = "draft-padded-branches-keep-pages"


def listed(flags: str, release: str, names: Sequence[str] = ()) -> list[Concern]:
    return concerns(server(arguments(flags, ALSO), names, release), release, known.load(), findings.load(), SEEDS)


def by_name(flags: str, release: str) -> dict[str, tuple[str, ...]]:
    """The names of the bugs, each with what it depends on."""
    return {bug.bug.name if bug.bug else bug.title: bug.depends for bug in listed(flags, release)}


def test_flags_that_say_all_have_bugs_that_depend_on_nothing_but_the_model() -> None:
    flags = f"{BRANCHES} --speculative-eagle-topk 4 --page-size 16 --attention-backend fa3"
    latent = {
        "verify-latent-drafts-by-page": ("model_type == deepseek_v3",),
        "verify-sinks-twice": ("model_type == gpt_oss",),
        "round-states-share-draft-rows": ("the model is recurrent",),
        "round-nan-reaches-other-drafts": ("nan_logits == target",),
        "round-retracted-shifts-prompt-logprobs": ("there are log-probabilities returned",),
        "round-grammar-ends-with-the-first-token": ("there are requests with a grammar",),
    }
    assert by_name(flags, "0.5.23") == {"pages-end-at-the-context": (), PAGES: (), **latent}


@pytest.mark.parametrize(
    "flags",
    [
        "--speculative-eagle-topk 1 --page-size 16 --attention-backend fa3",
        "--speculative-eagle-topk 4 --page-size 1 --attention-backend fa3",
        "--speculative-eagle-topk 4 --page-size 16 --attention-backend fa4",
        "--speculative-eagle-topk 4 --page-size 16 --attention-backend fa3 --decode-attention-backend triton",
    ],
)
def test_a_bug_whose_condition_cannot_be_met_is_not_listed(flags: str) -> None:
    assert PAGES not in by_name(f"{BRANCHES} {flags}", "0.5.23")


def test_a_bug_that_depends_on_what_is_not_said_says_on_what() -> None:
    bugs = by_name("--speculative-algorithm EAGLE --page-size 16", "0.5.23")
    assert bugs[PAGES] == ("the attention backend is fa3", "speculative_eagle_topk > 1")
    window = by_name("--attention-backend triton", "0.5.23")
    assert window["decode-window-one-short"] == ("the model has sliding_window",)
    override = """--attention-backend triton --json-model-override-args '{"sliding_window": 7}'"""
    assert by_name(override, "0.5.23")["decode-window-one-short"] == ()


def test_a_bug_of_recurrent_models_depends_on_the_model() -> None:
    name = "verify-one-token-as-padding"
    flags = '--attention-backend triton --json-model-override-args \'{"model_type": "%s"}\''
    assert by_name("--attention-backend triton", "0.5.13")[name] == ("the model is recurrent",)
    assert by_name(flags % "qwen3_next", "0.5.13")[name] == ()
    assert name not in by_name(flags % "deepseek_v3", "0.5.13")


def test_eager_verifies_depend_on_a_batch_without_a_graph() -> None:
    flags = f"{BRANCHES} --speculative-eagle-topk 4 --attention-backend fa3 --enable-dp-attention"
    name = "verify-tree-indexes-behind-mask"
    assert by_name(flags, "0.5.23")[name] == ("a batch runs without a graph",)
    assert by_name(f"{flags} --disable-cuda-graph", "0.5.23")[name] == ()


def test_a_release_with_the_fix_is_not_concerned() -> None:
    flags = f"{BRANCHES} --speculative-eagle-topk 1 --attention-backend flashinfer"
    assert "draft-sum-of-raw-batch" in by_name(flags, "0.5.13")
    assert "draft-sum-of-raw-batch" not in by_name(flags, "0.5.14")


def shown() -> list[tuple[str, str, str]]:
    """Each seed with its bug and the newest release that has the bug, on which it fails."""
    bugs = findings.load()
    rows = [(name, findings.of_seed(bugs, name), release) for name in SEEDS for release in ADAPTED]
    newest = {
        name: (name, bug.name, release)
        for name, bug, release in rows
        if bug and in_range(bug.releases, release) and expected(SEEDS[name].about, release, "emulated")
    }
    return list(newest.values())


def test_every_seed_is_of_a_bug() -> None:
    assert {name for name, _, _ in shown()} == {*SEEDS}


@pytest.mark.parametrize(("name", "bug", "release"), shown())
def test_the_flags_of_a_seed_are_concerned_by_its_bug(name: str, bug: str, release: str) -> None:
    assert bug in by_name(launch_command(SEEDS[name].case.setup), release)


def test_an_unknown_flag_is_refused_with_the_name_that_is_close() -> None:
    with pytest.raises(BadOption, match="did you mean page_size"):
        listed("--page-sise 16", "0.5.23", ["page_size", "tp_size"])


def test_the_command_lists_and_hands_its_seeds_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[argparse.Namespace] = []
    monkeypatch.setattr(command, "argument_names", lambda targets: frozenset({"page_size"}))

    def replay(options: argparse.Namespace) -> ExitCode:
        runs.append(options)
        return ExitCode.FAIL

    monkeypatch.setattr("repro.commands.run.go", replay)
    flags = f"{BRANCHES} --speculative-eagle-topk 4 --page-size 16 --attention-backend fa3"
    assert main(["concerns", "--like", flags, "--release", "0.5.23"]) == ExitCode.PASS
    text = capsys.readouterr().out
    assert f"  patch for 0.5.23: python -m repro repairs {PAGES} --diff" in text
    assert "known bugs that concern these flags: 2; that may, by what the flags do not say: 6" in text
    assert main(["concerns", "--like", flags, "--release", "0.5.23", "--run"]) == ExitCode.FAIL
    assert [path.name for path in runs[0].seeds] == [
        "draft-pages-end-at-the-context.json",
        "draft-extend-pages-end-at-the-context.json",
        "verify-pages-end-at-the-context.json",
        f"{PAGES}.json",
        "verify-latent-drafts-by-page.json",
        "verify-sinks-twice.json",
        "round-grammar-ends-with-the-first-token.json",
        "round-retracted-shifts-prompt-logprobs.json",
        "round-states-share-draft-rows.json",
        "round-nan-reaches-other-drafts.json",
    ]
    assert [str(target) for target in runs[0].target] == ["0.5.23/emulated"]


@pytest.mark.parametrize("flags", ["--pagesize 16", "nothing.json", "--speculative-eagle-topk many"])
def test_bad_flags_end_the_command_with_a_line(
    flags: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "argument_names", lambda targets: frozenset({"page_size"}))
    assert main(["concerns", "--like", flags, "--release", "0.5.23"]) == ExitCode.ERROR
    assert len(capsys.readouterr().err.splitlines()) == 1
