"""The paths of a trace in words, as docs/traces.md has them, and docs/traces-of-rounds.md those of rounds and of what
else replays no graph."""

from __future__ import annotations

from collections.abc import Iterator

from repro.traces.paths import EAGER_VERIFY, EMULATED, EVERY, GRAPHS, OF_MOVES, OF_ROUNDS, PATHS, PathRow

HEAD = """# What a session records

One row of `repro/traces/paths.py` a path; `python -m repro paths` prints this page. An array is named by step, path and
name. Row-shaped arrays have one row per request (raw_bs in the batch, bs in the bucket, max_bs in the largest bucket);
where a row is one value wide, they are flat. NAME stands for the names that a runner's batch or model gives. Sessions
of runners with a graph record a path, where it does not say of which. Those of
`round`, `kv_move`, `verify_eager` and its kin alone are on [a page of their own](traces-of-rounds.md).
"""
HEAD_OF_ROUNDS = """# What a session of rounds, of KV moves, or of a verify without a graph records

Besides what [all sessions](traces.md) do; `python -m repro paths --rounds` prints this page.
"""


_APART = (OF_ROUNDS, OF_MOVES, EAGER_VERIFY)
_ENGINES = {EVERY: ", and of the toy", EMULATED: ", on the emulated engine alone"}


def page(*, rounds: bool = False) -> str:
    """In Markdown, one section a path. rounds: those that `round`, `kv_move` or `verify_eager` alone
    records; else all others."""
    rows = (row for row in PATHS if (row.sessions in _APART) == rounds)
    sections = (f"\n## {row.name}\n\n" + "\n".join(_lines(row)) + "\n" for row in rows)
    return (HEAD_OF_ROUNDS if rounds else HEAD) + "".join(sections)


def _lines(row: PathRow) -> Iterator[str]:
    calls = f" (then {row.name}.1, ...)" if row.numbered else ""
    by = "" if row.sessions is GRAPHS else f" of {row.sessions.words}"
    where = f", where {row.where}" if row.where else ""
    yield f"{row.when[0].upper()}{row.when[1:]}{calls}{by}{_ENGINES.get(row.engines, '')}{where}."
    if row.oracle:
        yield f"The oracle `{row.oracle}` is not asked without it."
    yield f"\n- {row.arrays}\n\n{row.meaning}"
