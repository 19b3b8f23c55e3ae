"""Failures that are known, from the files that say so: known issues, and what stored seeds expect."""

from __future__ import annotations

from repro.cases import codec
from repro.cases.releases import expected
from repro.cases.runner_facts import RUNNER_FACTS
from repro.ledger import known
from repro.ledger.rows import SEED
from repro.upstream.fixes import SEEDS

# Failures that any padded batch of a runner shows where the release has the bug: others need a batch of their own.
SHOWN_BY_PADDING = frozenset({"slot0_padding", "metadata_once"})


def may_fail(runner: str, backend: str, release: str, engine: str) -> frozenset[str]:
    """The oracles that a known issue lets fail for this runner, or what it launches, and backend on this target: those
    that it names, and those of its reproducers."""
    places = tuple(f"{each}/{backend} " for each in (runner, *RUNNER_FACTS[runner].launches))
    issues = [issue for issue in known.load() if issue.holds_on(release, engine)]
    named = {
        text.partition(" ")[2].partition(":")[0]
        for issue in issues
        for text in issue.explains
        if text.startswith(places)
    }
    stored = [
        codec.read(SEEDS / probe.removeprefix(SEED)) for issue in issues for probe in issue.probes if SEED in probe
    ]
    shown = {
        oracle
        for seed in stored
        if (seed.case.setup.runner, seed.case.setup.backend) == (runner, backend)
        for oracle in (expected(seed.about, release), seed.about["oracle"])
        if oracle
    }
    return frozenset(named | {str(oracle) for oracle in shown})


def must_fail(runner: str, backend: str, release: str) -> frozenset[str]:
    """The oracles that fail on a padded batch: seeds of the same runner and backend say so of this release."""
    explained = set()
    for path in sorted(SEEDS.glob("*.json")):
        seed = codec.read(path)
        oracle = expected(seed.about, release)
        if (seed.case.setup.runner, seed.case.setup.backend) == (runner, backend) and oracle in SHOWN_BY_PADDING:
            explained.add(oracle)
    return frozenset(explained)


def has_fix_of(seed: str, release: str) -> bool:
    """True if this stored seed passes on this release."""
    outcome = expected(codec.read(SEEDS / f"{seed}.json").about, release)
    assert outcome is not None, f"{seed} says nothing of {release}"
    return outcome == ""
