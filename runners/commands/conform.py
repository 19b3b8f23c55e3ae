"""python -m runners conform: whether releases can be driven, runner by runner."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence

from fuzz.cluster.fan import fan_out
from fuzz.cluster.piece import LOG, RESULT, Piece
from oracles.catalogue import judge_all, overall
from repro.cases.atomic_file import write_text
from repro.cases.case import Target
from repro.cases.places import log
from repro.ledger.known import load
from repro.traces.exit_codes import ExitCode, severest
from runners.commands.install import aside
from runners.conformance import conform, report
from runners.conformance.rows import Row
from runners.targets.install import install, newest


def go(options: argparse.Namespace) -> ExitCode:
    """FAIL where a runner could not be driven or judged that was not declared unsupported."""
    names = list(dict.fromkeys(newest(options.pip) if name == "latest" else name for name in options.releases))
    options.log.parent.mkdir(parents=True, exist_ok=True)
    if options.cache:
        os.environ["EAGLEEYE_CACHE"] = str(options.cache)  # the worker's side looks there
    families = " --families" * options.families
    command = f"python -m runners conform {' '.join(options.releases)}{families}"
    done: list[report.Release] = []
    codes: list[ExitCode] = []
    for release in _spread(options, names, codes) if options.cluster else _here(options, names):
        done.append(release)
        codes += [ExitCode.FAIL] * bool(release.red)
        print(log("\n".join(report.summary(release))), flush=True)
        # As it grows: many releases take a while.
        if options.json:
            write_text(options.json, report.to_json(done))
        if options.markdown:
            write_text(options.markdown, report.to_markdown(done, f"{command} --markdown {options.markdown}"))
    return severest(codes)


def _here(options: argparse.Namespace, names: Sequence[str]) -> Iterator[report.Release]:
    for name in names:
        if "/" not in name:
            install(name, options.cache, pip=options.pip, say=aside)
        yield conform.release(
            Target(name, "emulated"),
            judge_all,
            overall,
            log=options.log,
            tell=_show,
            issues=load(),
            families=options.families,
        )


def _spread(options: argparse.Namespace, names: Sequence[str], codes: list[ExitCode]) -> Iterator[report.Release]:
    """The same from the nodes of a cluster, which have these releases. codes: takes that of what could not be done."""
    targets = [Target(name, "emulated") for name in names]
    cache = {"EAGLEEYE_CACHE": str(options.cache)} if options.cache else {}
    with fan_out(options.cluster, options.slots, targets, cache) as fan:
        more = ("--families",) * options.families
        words = [("runners", "conform", name, "--json", RESULT, "--log", LOG, *more) for name in names]
        for done in fan.work(Piece(name=words_of_piece[2], arguments=words_of_piece) for words_of_piece in words):
            (release,) = map(report.from_json, done.result["releases"])
            for row in release.rows:
                _show(row)
            yield release
        codes += [ExitCode.ERROR] * bool(fan.errors)


def _show(row: Row) -> None:
    print(log(report.line(row)), flush=True)
