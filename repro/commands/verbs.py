"""The verbs of the console command eagleeye, by group: each stands for one command of the four packages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

# In a wheel the packages lie in this folder of the package eagleeye, and have no names of their own.
INSTALLED = Path(__file__).resolve().parents[2].name == "home"


class Verb(NamedTuple):
    """A verb, the package and the command that it stands for, one sentence, and the words of an example."""

    name: str
    package: str
    command: str
    sentence: str
    example: str


def verb(name: str, origin: str, sentence: str, example: str = "") -> Verb:
    package, command = origin.split()
    return Verb(name, package, command, sentence, f"eagleeye {name} {example}".rstrip())


SEED = "repro/seeds/pr23037-stale-padding.json"
BUG = f"{SEED} --target 0.5.10.post1/emulated"
TWO = "--target 0.5.13/emulated 0.5.13/cuda"
FLAGS = "--release 0.5.16 --like '--speculative-algorithm EAGLE --page-size 16'"
CAMPAIGN = "--target 0.5.23/emulated"
GROUPS: dict[str, tuple[Verb, ...]] = {
    "Find": (
        verb("hunt", "fuzz hunt", "Fuzz two releases until each shows its first bug.", "--no-known-issues"),
        verb("run", "fuzz run", "Draw cases, run them, judge them, keep what fails.", f"{CAMPAIGN} --set page_size=16"),
        verb("check", "fuzz check", "Check a change of sglang for new failures.", "/src/sglang --base 0.5.23"),
        verb(
            "mutate", "fuzz mutate", "Change sglang in small places: which oracle notices?", f"{CAMPAIGN} --sample 300"
        ),
        verb("recall", "fuzz recall", "Put real bugs of sglang back on a release: which are found?", "--row 23037"),
        verb("bench", "fuzz bench", "Measure cases a second, and each stage.", CAMPAIGN),
    ),
    "Reproduce": (
        verb("replay", "repro run", "Run stored cases: which oracle fails, where, how often?", BUG),
        verb("case", "repro case", "Make a case of what a crashed server left.", "from-log server.log"),
        verb("record", "runners record", "Run a server, and keep its last calls.", "-- python -m sglang.launch_server"),
        verb("shrink", "repro shrink", "Make a failing case small, towards the same failure.", BUG),
        verb("show", "repro show", "Say a stored case in words.", SEED),
        verb("validate", "repro check", "Check that these files are seeds, and their cases valid.", SEED),
        verb("schema", "repro schema", "Print the JSON Schema of a case.", "--table"),
    ),
    "Understand": (
        verb("concerns", "repro concerns", "List the known bugs that a server's flags can meet.", FLAGS),
        verb("first", "repro first", "Name the first wrong value, and the line of sglang that wrote it.", BUG),
        verb("explain", "repro explain", "Change one thing at a time: what does a failure need?", BUG),
        verb("bisect", "repro bisect", "Find the release or commit that brought a failure.", f"{SEED} --to 0.5.13"),
        verb("patch", "repro test", "Show what a patch does to seeds, before and after.", f"{BUG} --patch FILE.diff"),
        verb("fixes", "repro fixes", "Show what each known fix does, with and without it.", "--installed"),
        verb(
            "repairs",
            "repro repairs",
            "Show that unfixed bugs pass with our patches.",
            "multi-layer-stale-padding --diff",
        ),
        verb("judge", "repro judge", "Let today's oracles judge kept traces, without a run.", "out/TRACE.npz"),
        verb("fidelity", "repro fidelity", "Say how far two targets agree on the same cases.", f"--drawn 300 {TWO}"),
        verb("trace-paths", "repro paths", "List what a session records."),
    ),
    "Report": (
        verb(
            "report", "reports html", "Write the report of a ledger as one HTML file.", "--ledger DB --out report.html"
        ),
        verb("site", "reports site", "Write a static site with a page for each finding.", "--ledger DB --out site"),
        verb("summary", "reports summary", "Print what was run and found.", "--ledger DB"),
        verb("issue", "reports issue", "Print a finding as an issue for sglang.", SEED),
        verb("script", "repro script", "Make a file that shows a bug with sglang and torch alone.", BUG),
        verb("export", "repro export", "Make a test of sglang's own suite.", f"{BUG} --sglang-test test_bug.py"),
        verb("ledger", "repro ledger", "Summarise, check and merge ledgers.", "show out/report/ledger.db"),
    ),
    "Set up": (
        verb("install", "runners install", "Install releases of sglang into the cache.", "0.5.10.post1 0.5.23"),
        verb("releases", "runners list", "List the installed releases."),
        verb("doctor", "runners doctor", "Say what is usable and what is missing; with --like, as concerns."),
        verb("conform", "runners conform", "Try whether a release can be driven, runner by runner.", "latest"),
        verb("facts", "runners facts", "Print the table of runners, or the releases of one use.", "--releases adapted"),
        verb("settings", "repro settings", "Say what commands take from eagleeye.toml, and from where."),
        verb("import-path", "runners path", "Print the import path of an installed release.", "0.5.23"),
        verb("environment", "runners environment", "Install a release with its own torch, for GPUs.", "0.5.23"),
        verb("bundle", "runners bundle", "Pack releases for hosts without a package index.", "out/bundle 0.5.23"),
        verb("unpack", "runners unpack", "Unpack a bundle into the cache.", "out/bundle"),
    ),
}
# Verbs of verbs: one sentence, and the words of an example.
NESTED: dict[str, dict[str, tuple[str, str]]] = {
    "case": {
        "from-trace": (
            "Make a case of a table of steps, requests and lengths.",
            "requests.csv --like '--page-size 16'",
        ),
        "from-log": ("Make a case of the decode lines of a server's log.", "server.log --out crash.json"),
        "from-recording": ("Make a case of what eagleeye record kept.", "recording.bin --out crash.json"),
        "from-crash-dump": (
            "Make a case of the requests that a server dumped as it crashed.",
            "dumps --out crash.json",
        ),
        "migrate": ("Write cases again, in place, in this version's format.", "mine/one.json mine/other.json"),
    },
    "ledger": {
        "show": ("Print a ledger's runs, and the state of every failure.", "out/report/ledger.db"),
        "check": ("Say whether a ledger is sound.", "out/report/ledger.db"),
        "merge": ("Merge ledgers of several hosts into the first one.", "all.db host-a.db host-b.db"),
    },
}
VERBS = {each.name: each for group in GROUPS.values() for each in group}
# Commands of a checkout alone, and what does the same elsewhere; the longer ones first.
_MAKE = {"make setup-cuda": "pip install sglang", "make setup": "pip install 'eagleeye[emulated]'"}
# Packages' commands in a text.
_COMMAND = re.compile(r"python -m (fuzz|repro|runners|reports) ([a-z]+)")


def spelled(text: str, *, installed: bool = INSTALLED) -> str:
    """The text, in which commands are what a person here can type: as they stand in a checkout, else by their verbs."""
    if not installed:
        return text
    for command, instead in _MAKE.items():
        text = text.replace(command, instead)
    verbs = {(each.package, each.command): each.name for each in VERBS.values()}
    return _COMMAND.sub(lambda match: f"eagleeye {verbs[match[1], match[2]]}", text)
