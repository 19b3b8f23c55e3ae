"""The pytest plugin: --target, and the fixtures target, run_case and replay (docs/api.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # to import them takes a second, which other tests of a suite need not wait for
    from eagleeye.api import Run, Session, Target


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("eagleeye")
    meaning = "run eagleeye's tests on this sglang: RELEASE/ENGINE or PATH@ENGINE; may be repeated"
    group.addoption("--target", action="append", default=[], metavar="TARGET", help=meaning)
    parser.addini("eagleeye_target", "the --target of eagleeye's tests if none is given", type="args", default=[])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames and not metafunc.definition.get_closest_marker("parametrize"):
        texts = metafunc.config.getoption("--target") or metafunc.config.getini("eagleeye_target")
        if texts:
            metafunc.parametrize("target", texts, indirect=True, scope="session", ids=str)


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    """The sglang under test."""
    from eagleeye.api import Target

    text = getattr(request, "param", "")
    if not text:
        raise pytest.UsageError("eagleeye: --target RELEASE/ENGINE or PATH@ENGINE, or eagleeye_target in pytest's ini")
    try:
        return Target.parse(text)
    except ValueError as error:
        raise pytest.UsageError(f"--target: {error}") from error


@pytest.fixture(scope="session")
def eagleeye_session(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session on the target, for all tests: to import sglang takes seconds."""
    from eagleeye.api import HarnessError, opened

    try:
        with opened(target, log=tmp_path_factory.mktemp("eagleeye") / "worker.log") as session:
            yield session
    except HarnessError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def run_case(eagleeye_session: Session) -> Callable[..., Run]:
    """run_case(case): the case on the target, judged."""
    return eagleeye_session.run_case


@pytest.fixture(scope="session")
def replay(eagleeye_session: Session) -> Callable[..., Run]:
    """replay(seed): a seed file's case on the target, in a fresh process, judged."""
    return eagleeye_session.replay
