"""Failing cases that campaigns share, on any number of hosts: kept in Hypothesis's example database, as Hypothesis
keeps what failed its property tests, and tried first the next time, on every target.

The database keeps seed files and not Hypothesis's bytes, which mean another case as soon as a strategy changes.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis.database import ExampleDatabase

from repro.cases import codec
from repro.cases.case import Case
from repro.cases.codec import BadSeed, Seed
from repro.cases.sort_key import sort_key
from repro.traces.finding import Finding

# The simplest ones, if there are more: a replay of each takes a second or a session.
TRIED_MAX = 64


class SharedCorpus:
    """The shared cases. Mutable: it knows which form of a failure it has stored. Without a database it is empty and
    stores nothing. complain: called once if the database fails later on, which costs the campaign nothing else."""

    def __init__(self, database: ExampleDatabase | None, complain: Callable[[str], None]) -> None:
        self._database = database
        self._complain = complain
        self._stored: dict[str, bytes] = {}

    def cases(self, runner: str, backend: str) -> list[Case]:
        """The cases for this runner and backend, simplest first."""
        texts: list[bytes] = []
        self._ask(lambda database: texts.extend(database.fetch(_key(runner, backend))))
        cases = {codec.digest(case): case for case in map(_case, texts) if case}
        return sorted(cases.values(), key=lambda case: (sort_key(case), codec.digest(case)))[:TRIED_MAX]

    def remember(self, finding: Finding) -> None:
        """Store a confirmed finding; a better form replaces the one that was stored before it."""
        if not finding.failed:
            return
        setup = finding.case.setup
        key, fingerprint = _key(setup.runner, setup.backend), finding.verdict.fingerprint
        text = codec.dumps(Seed(about={"fingerprint": fingerprint}, case=finding.case)).encode()
        before = self._stored.get(fingerprint)
        self._ask(lambda database: database.save(key, text))
        if before and before != text:
            self._ask(lambda database: database.delete(key, before))
        self._stored[fingerprint] = text

    def _ask(self, question: Callable[[ExampleDatabase], None]) -> None:
        if self._database is None:
            return
        try:
            question(self._database)
        except Exception as error:
            # A database may raise anything. Findings are safe in their folder; the database only saves time.
            self._complain(f"examples are not shared from here on: {type(error).__name__}: {error}")
            self._database = None


def _key(runner: str, backend: str) -> bytes:
    return f"eagleeye {runner} {backend}".encode()


def _case(text: bytes) -> Case | None:
    """None if it cannot be read: another version, on another host, may have stored it."""
    try:
        return codec.loads(text.decode()).case
    except (BadSeed, UnicodeDecodeError):
        return None
