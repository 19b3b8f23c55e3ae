"""The table of runners in words, as docs/runners.md has it: what is driven of sglang, in which releases, with what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from repro.cases.runner_facts import RUNNER_FACTS, TOY, RunnerFacts

HEAD = ("runner", "what of sglang", "releases", "backends", "algorithms", "graph", "oracle of its own")


def table() -> str:
    """In Markdown, one row a runner; without the toy, which no sglang has."""
    rows = [_row(name, facts) for name, facts in RUNNER_FACTS.items() if name != TOY]
    return "\n".join(_line(cells) for cells in (HEAD, ["---"] * len(HEAD), *rows)) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _row(name: str, facts: RunnerFacts) -> list[str]:
    return [
        f"`{name}`",
        facts.what,
        _in_words(facts),
        ", ".join(_backend(facts, name) for name in facts.backends),
        ", ".join(facts.algorithms),
        "yes" if facts.graph else "no",
        ", ".join(f"`{oracle}`" for oracle in facts.own_oracles),
    ]


def _backend(facts: RunnerFacts, name: str) -> str:
    return f"{name} (from {facts.backend_since[name]} on)" if name in facts.backend_since else name


def _in_words(facts: RunnerFacts) -> str:
    limits = list(_limits(facts))
    return "; ".join(limits if facts.since or facts.until else ["all", *limits])


def _limits(facts: RunnerFacts) -> Iterator[str]:
    if facts.since:
        yield f"from {facts.since} on"
    if facts.until:
        yield f"up to {facts.until}"
    if facts.branches_since:
        yield f"topk > 1 from {facts.branches_since} on"
