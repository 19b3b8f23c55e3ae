"""pytest's view of the targets: --target, the `target` fixture, and skips that say what would help.

A test that asks for `target` runs once per target named by --target; without it, once per adapted release on the
emulated engine. A test marked `emulated` or `cuda` drives real sglang; named releases, as in
`@pytest.mark.emulated("0.5.13")`, are those that it needs.
"""

from __future__ import annotations

import pytest

from repro.case import Target
from runners.environments import ADAPTED, engine_lacks, lacks

ENGINES = {
    "emulated": "drives sglang on CPU tensors; arguments: the releases that it needs",
    "cuda": "drives sglang on an NVIDIA GPU; arguments: the releases that it needs",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target",
        action="append",
        default=[],
        metavar="TARGET",
        help="run tests of targets on this one: RELEASE/ENGINE or PATH@ENGINE; may be repeated",
    )


def pytest_configure(config: pytest.Config) -> None:
    for engine, meaning in ENGINES.items():
        config.addinivalue_line("markers", f"{engine}(*releases): {meaning}")
    targets(config)


def targets(config: pytest.Config) -> list[Target]:
    """The targets that were asked for. UsageError where one of them is none."""
    try:
        named = [Target.parse(text) for text in config.getoption("--target")]
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    return named or [Target(release, "emulated") for release in ADAPTED]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" not in metafunc.fixturenames:
        return
    asked = targets(metafunc.config)
    parameters = [
        pytest.param(one, id=str(one), marks=getattr(pytest.mark, one.engine) if one.engine in ENGINES else ())
        for one in asked
    ]
    metafunc.parametrize("target", parameters, scope="session")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        target = target_of(item)
        # Importing a release takes seconds, so all its tests go to one worker; other files stay whole as well.
        item.add_marker(pytest.mark.xdist_group(str(target) if target else item.path.stem))
        why = missing(item)
        if why:
            item.add_marker(pytest.mark.skip(reason=why))
    # The cheap ones first: a mistake in the line shows before the first release is imported.
    items.sort(key=lambda item: any(item.get_closest_marker(engine) for engine in ENGINES))


def target_of(item: pytest.Item) -> Target | None:
    """The target that this test was given."""
    call = getattr(item, "callspec", None)
    target = call.params.get("target") if call else None
    return target if isinstance(target, Target) else None


def missing(item: pytest.Item) -> str:
    """Why this test cannot be run here, and the command that helps; empty if it can."""
    target = target_of(item)
    if target:
        return lacks(target)
    for engine in ENGINES:
        for mark in item.iter_markers(engine):
            for why in (engine_lacks(engine), *(lacks(Target(release, engine)) for release in mark.args)):
                if why:
                    return why
    return ""
