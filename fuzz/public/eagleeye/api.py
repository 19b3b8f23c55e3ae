"""The public API: run a case or a stored seed on sglang and have it judged, and draw cases with Hypothesis.

What __all__ names keeps its meaning from version to version; CHANGELOG.md says what changes. All else may change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagleeye.console import at_home

at_home()

from fuzz.aiming import asked, pairs  # noqa: E402  # where a wheel has its packages is known now
from fuzz.draw.aimed import aimed_cases  # noqa: E402  # as above
from fuzz.like import like as of_server  # noqa: E402  # as above
from oracles.catalogue import judge_all, overall  # noqa: E402  # as above
from repro.cases.case import Case, Request, Setup, Step, Target  # noqa: E402  # as above
from repro.cases.codec import BadSeed, read  # noqa: E402  # as above
from repro.cases.own_place import temporary_folder  # noqa: E402  # as above
from repro.cases.release_list import NEWEST  # noqa: E402  # as above
from repro.cases.server_args import BadOption, arguments  # noqa: E402  # as above
from repro.shrinking.replay import trouble  # noqa: E402  # as above
from repro.traces.finding import Status, Verdict  # noqa: E402  # as above
from repro.traces.trace import Termination, Trace  # noqa: E402  # as above
from runners.processes.pool import Pool  # noqa: E402  # as above
from runners.targets.environments import lacks  # noqa: E402  # as above
from runners.targets.server_arguments import argument_names  # noqa: E402  # as above

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = [
    "BadOption",
    "BadSeed",
    "Case",
    "HarnessError",
    "Request",
    "Run",
    "Session",
    "Setup",
    "Status",
    "Step",
    "Target",
    "Trace",
    "Verdict",
    "cases",
    "opened",
    "replay",
    "run_case",
]


class HarnessError(Exception):
    """A run that says nothing of sglang: the target cannot be used, or eagleeye itself failed. The text says why."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run:
    """One run of a case on a target. trace: what was recorded. verdicts: what each oracle concluded of it, empty where
    the target does not support the case."""

    case: Case
    target: Target
    trace: Trace
    verdicts: tuple[Verdict, ...]

    @property
    def status(self) -> Status:
        """FAIL if an oracle says so; UNKNOWN where nothing was compared."""
        return overall(self.verdicts) if self.verdicts else Status.UNKNOWN

    @property
    def passed(self) -> bool:
        """True if something was compared and nothing fails."""
        return self.status is Status.PASS

    @property
    def failures(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.status is Status.FAIL)

    def __repr__(self) -> str:
        """The status, and a line for each failure: what pytest shows of `assert run.passed, run`."""
        texts = [f"{verdict.oracle} at {verdict.where}: {verdict.detail}" for verdict in self.failures]
        ending = trouble(self.trace.ended)
        return "\n".join([f"{self.target}: {self.status.name}{ending and f' ({ending})'}", *texts])


@dataclass(frozen=True, slots=True)
class Session:
    """Runs cases on one target, whose worker stays up from case to case."""

    pool: Pool

    def run_case(self, case: Case) -> Run:
        """The case in a process that is kept for the next cases of its setup. HarnessError."""
        return self._judged(case, self.pool.run(case))

    def replay(self, seed: Path | str) -> Run:
        """The case of a seed file in a fresh process. BadSeed, HarnessError."""
        case = read(Path(seed)).case
        return self._judged(case, self.pool.run_fresh(case))

    def _judged(self, case: Case, trace: Trace) -> Run:
        if trace.ended.how is Termination.ERROR:
            raise HarnessError(f"{self.pool.target}: {trouble(trace.ended)}")
        verdicts: Sequence[Verdict] = judge_all(case, trace) if trace.ended.how.took_place else ()
        return Run(case=case, target=self.pool.target, trace=trace, verdicts=tuple(verdicts))


@contextmanager
def opened(target: Target | str, *, timeout_s: float = 120.0, log: Path | None = None) -> Iterator[Session]:
    """A session on a target: RELEASE/ENGINE or PATH@ENGINE. timeout_s: seconds of silence that are a hang. log: where
    the worker's prints go; a temporary file if None. HarnessError if the target cannot be used, ValueError if it is
    none."""
    named = Target.parse(target) if isinstance(target, str) else target
    if lack := lacks(named):
        raise HarnessError(f"{named}: {lack}")
    with (
        temporary_folder("eagleeye-api-") as folder,
        Pool(named, timeout_s=timeout_s, log=log or folder / "worker.log") as pool,
    ):
        yield Session(pool)


def run_case(case: Case, target: Target | str, *, timeout_s: float = 120.0) -> Run:
    """One run of a case. HarnessError."""
    with opened(target, timeout_s=timeout_s) as session:
        return session.run_case(case)


def replay(seed: Path | str, target: Target | str, *, timeout_s: float = 120.0) -> Run:
    """One run of a seed file's case. BadSeed, HarnessError."""
    with opened(target, timeout_s=timeout_s) as session:
        return session.replay(seed)


def cases(
    runner: str = "",
    backend: str = "",
    *,
    like: str = "",
    near: Path | str = "",
    having: Sequence[str] = (),
    without: Sequence[str] = (),
    **values: Any,
) -> SearchStrategy[Case]:
    """Cases, every one valid. runner, backend: the first that can have what else is asked for if they are empty. like:
    a server's flags, its server_args as JSON, or a file of these. near: a seed file around which cases are drawn.
    having, without: options at a drawn value or at their defaults. values: options by sglang's names. BadOption where
    no setup has all of that."""
    server = of_server(arguments(like), argument_names(_installed())) if like else None
    sets = [f"{name}={_text(value)}" for name, value in values.items()]
    request = replace(asked(sets, having, without, server), near=str(near))
    return aimed_cases(*next(pairs(request, runner, backend)), request.aim)


def _text(value: object) -> str:
    """The value as --set takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _installed() -> tuple[Target, ...]:
    """The release whose arguments a server's flags are held against."""
    return tuple(target for target in (Target(NEWEST, "emulated"),) if not lacks(target))
