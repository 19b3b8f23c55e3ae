"""The releases of sglang that adapters were written for, oldest first, and which of them are used for what.

The one place to name a new release: commands, tests, Makefile and workflows read it (python -m runners facts)."""

from __future__ import annotations

from repro.cases.releases import release_order
from repro.cases.runner_facts import RUNNER_FACTS

ADAPTED = (
    *("0.5.10.post1", "0.5.11", "0.5.12.post1", "0.5.13", "0.5.13.post1", "0.5.14", "0.5.15.post1"),
    *("0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)
OLDEST, NEWEST = ADAPTED[0], ADAPTED[-1]

# By what they are used for. hunt: `make fuzz`, a release with a bug that is found within a minute, and a later one
# without it. test: what `make test` drives, the newest. more: what `make test-more` drives besides, the one behind
# most known fixes among them; some tests of `make test` name one of these. fix: the first one with #23037, for
# the test of that fix. cuda: what gets an environment of its own on a GPU host (11 GB each): around one fix that only a
# GPU shows in full.
USES = {
    "adapted": ADAPTED,
    "hunt": (OLDEST, "0.5.13"),
    "test": (NEWEST,),
    "more": (OLDEST, "0.5.12.post1", "0.5.13", "0.5.15.post1"),
    "fix": ("0.5.11",),
    "cuda": ("0.5.12.post1", "0.5.13"),
}


def has_runner(release: str, runner: str, backend: str = "") -> bool:
    """True if the table of runners has this runner in this release, and over this backend if one is named."""
    facts, order = RUNNER_FACTS[runner], release_order(release)
    if (since := facts.backend_since.get(backend)) and order < release_order(since):
        return False
    return (not facts.since or order >= release_order(facts.since)) and (
        not facts.until or order <= release_order(facts.until)
    )
