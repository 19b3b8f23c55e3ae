"""pytest's view of the targets: --target, the `target` fixture, and skips that say what would help.

A test that asks for `target` runs once per target named by --target; without it, once per release used for tests, on
the emulated engine. One that asks for `cuda_target` runs once per target of the cuda engine among those named; without
any, once per adapted release. A test marked `emulated` or `cuda` drives real sglang; named releases, as in
`@pytest.mark.emulated("0.5.13")`, are those that it needs.

Under xdist each worker owns one GPU, out of those that the caller's CUDA_VISIBLE_DEVICES names; --workers-per-gpu K
lets so many share one. A worker that dies hands its GPU to the one that takes its place.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzz.draw import profiles
from repro.cases.case import Target
from repro.cases.release_list import ADAPTED, NEWEST, USES
from repro.cases.releases import release_order
from repro.ledger.known import KNOWN_ISSUES
from repro.ledger.write import VARIABLE
from repro.upstream.fixes import SEEDS
from runners.processes.pool import Pool
from runners.targets.devices import VISIBLE, Seats, gpus, visible
from runners.targets.environments import engine_lacks, installed, lacks, own_environments
from tests.nightly import plugin as nightly

ENGINES = {
    "emulated": "drives sglang on CPU tensors; arguments: the releases that it needs",
    "cuda": "drives sglang on an NVIDIA GPU; arguments: the releases that it needs",
}
# Their tests wait for what others do, for most of half a minute.
SLEEPY = ("test_warm.py", "test_pool.py")
# The mark of a whole test module.
WHOLE_MODULE = re.compile(r"^pytestmark = pytest\.mark\.(\w+)", re.MULTILINE)
INSTALLED = "installed/"
# Workers that may die before xdist gives up: a test that kills its own must not cost the others theirs.
RESTARTS_MAX = 1000
SEATS = pytest.StashKey[Seats]()
TARGETS = pytest.StashKey[list[Target]]()
CUDA_TARGETS = pytest.StashKey[list[Target]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target",
        action="append",
        default=[],
        metavar="TARGET",
        help="run tests of targets on this one: RELEASE/ENGINE or PATH@ENGINE, or installed/ENGINE for all releases "
        "that are installed; may be repeated, or several with commas",
    )
    parser.addoption("--workers-per-gpu", type=int, default=1, metavar="K", help="xdist workers that share one GPU")
    parser.addoption(
        "--ledger", type=Path, metavar="DB", help="-m nightly: add to this ledger (default: EAGLEEYE_LEDGER)"
    )
    parser.addoption(
        "--minutes", type=float, metavar="M", help="-m nightly: for each campaign (default: the profile's)"
    )
    parser.addoption(
        "--max-minutes",
        type=float,
        metavar="M",
        help="-m nightly: for the whole run; campaigns come first, each pair's as long as it leaves",
    )
    parser.addoption(
        "--install", action="store_true", help="-m nightly: fetch releases that a job wants, where there is an index"
    )
    parser.addoption("--seeds", default=str(SEEDS), metavar="DIR", help="-m nightly: the stored seeds")
    parser.addoption("--known-issues", default=str(KNOWN_ISSUES), metavar="FILE", help="-m nightly: what may fail")


# Before Hypothesis's own plugin, which loads the profile.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for engine, meaning in ENGINES.items():
        config.addinivalue_line("markers", f"{engine}(*releases): {meaning}")
    config.addinivalue_line(
        "markers", "exhaustive: shows of every stored thing what another test shows of one; left out of make test"
    )
    config.addinivalue_line(
        "markers",
        "further: needs a release that make test does not install; given to tests by their releases",
    )
    config.addinivalue_line("markers", "slow: takes seconds, as whole commands do; left out of make test-fast")
    config.addinivalue_line("markers", "nightly: part of a nightly run, and of no other")
    # What is started dozens of times is compiled once, whatever the shell says.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # What a shell starts in the background ignores Ctrl-C, and so would every command that a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    targets(config)
    choose_profile(config)
    if nightly.asked(config):
        config.pluginmanager.register(nightly.Nightly(config, targets(config)), nightly.NAME)
    else:
        # Commands under test keep no books on the developer's ledger, and draw the same cases every time.
        os.environ.pop(VARIABLE, None)
        os.environ["CI"] = "1"
    if config.getoption("--workers-per-gpu") < 1:
        raise pytest.UsageError("--workers-per-gpu: expected a whole number from 1 on")
    if getattr(config.option, "maxworkerrestart", "absent") is None:
        config.option.maxworkerrestart = RESTARTS_MAX
    device = getattr(config, "workerinput", {}).get("gpu", "")
    if device:
        # Whatever this worker starts sees this device and no other.
        os.environ[VISIBLE] = device


def choose_profile(config: pytest.Config) -> None:
    """--hypothesis-profile, or what goes without saying."""
    chosen = config.getoption("--hypothesis-profile", None) or (
        profiles.NIGHTLY if nightly.asked(config) else profiles.DEFAULT
    )
    try:
        profiles.register(chosen)
    except profiles.BadExamples as error:
        raise pytest.UsageError(str(error)) from error
    config.option.hypothesis_profile = chosen


# GPUs ------------------------------------------------------------------------------------------------------------


def seats(config: pytest.Config) -> Seats:
    """The places on GPUs that are still free."""
    if SEATS not in config.stash:
        config.stash[SEATS] = Seats(visible(len(gpus())), config.getoption("--workers-per-gpu"))
    return config.stash[SEATS]


def needs_gpus(config: pytest.Config) -> bool:
    """True if the command line asks for GPUs."""
    marked = re.search(r"(?<!not )\bcuda\b", config.getoption("markexpr"))
    return bool(marked) or any(target.engine == "cuda" for target in targets(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """-n auto: one worker per place."""
    return (len(seats(config)) or None) if needs_gpus(config) else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    places = len(seats(config))
    if needs_gpus(config) and 0 < places < len(specs):
        raise pytest.UsageError(
            f"{len(specs)} workers need a place on a GPU each, and there are {places}: -n {places}, or more of them "
            "on each GPU with --workers-per-gpu"
        )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["gpu"] = seats(node.config).take() or ""


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    if node.workerinput["gpu"]:
        seats(node.config).give_back(node.workerinput["gpu"])


def pytest_runtest_setup(item: pytest.Item) -> None:
    has_none = getattr(item.config, "workerinput", {"gpu": "all"})["gpu"] == ""
    if has_none and any(item.iter_markers("cuda")):
        pytest.fail("this xdist worker has no GPU of its own: fewer workers, or --workers-per-gpu K", pytrace=False)


# Targets ---------------------------------------------------------------------------------------------------------


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Reading a module that imports torch takes seconds: not where all of its tests are left out anyway."""
    in_folder = nightly.FOLDER in collection_path.parts
    if not collection_path.name.startswith("test_"):
        return None
    if nightly.asked(config) != in_folder:
        return True
    mark = WHOLE_MODULE.search(collection_path.read_text(encoding="utf-8"))
    return True if mark and f"not {mark[1]}" in config.getoption("markexpr").split(" and ") else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that a run without the tests of sglang imports no torch: it is to take seconds."""
    if "not emulated" in session.config.getoption("markexpr") and "torch" in sys.modules:
        raise pytest.UsageError("a test module imports torch; its mark must be: pytestmark = pytest.mark.emulated")


# pytest keeps a fixture for as long as its parameter is the very same object, so these are made once.
def targets(config: pytest.Config) -> list[Target]:
    """The targets that were asked for. UsageError where one of them is none."""
    if TARGETS not in config.stash:
        try:
            texts = [text for option in config.getoption("--target") for text in option.split(",")]
            named = [target for text in texts for target in meant(text.strip())]
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        config.stash[TARGETS] = named or [Target(release, "emulated") for release in USES["test"]]
    return config.stash[TARGETS]


def meant(text: str) -> list[Target]:
    """The target of this name, or those. ValueError if there are none."""
    if not text.startswith(INSTALLED):
        return [Target.parse(text)]
    engine = Target.parse(text).engine
    environments = [environment.release for environment in own_environments()] if engine == "cuda" else []
    releases = (
        sorted({*environments, *(environment.release for environment in installed())}, key=release_order)
        if engine in ENGINES
        else []
    )
    if not releases:
        raise ValueError(f"target {text!r}: no such release is installed: python -m runners install {ADAPTED[-1]}")
    return [Target(release, engine) for release in releases]


def cuda_targets(config: pytest.Config) -> list[Target]:
    """The targets of the cuda engine that were asked for; all adapted releases if none was."""
    if CUDA_TARGETS not in config.stash:
        named = [target for target in targets(config) if target.engine == "cuda"]
        every = [Target(release, "cuda") for release in ADAPTED]
        config.stash[CUDA_TARGETS] = named if config.getoption("--target") else every
    return config.stash[CUDA_TARGETS]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, listed in (("target", targets), ("cuda_target", cuda_targets)):
        if fixture in metafunc.fixturenames:
            parameters = [
                pytest.param(
                    target,
                    id=str(target),
                    marks=getattr(pytest.mark, target.engine) if target.engine in ENGINES else (),
                )
                for target in listed(metafunc.config)
            ]
            metafunc.parametrize(fixture, parameters, scope="session")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """--dist loadgroup, with groups of ours: those of xdist 3.8 get lost on the way under pytest 9.2."""
    if config.getoption("dist") != "loadgroup" and not nightly.asked(config):
        return None
    scheduler = importlib.import_module("xdist.scheduler").LoadGroupScheduling(config, log)
    scheduler._split_scope = lambda nodeid: group(nodeid, config)
    return scheduler


def group(nodeid: str, config: pytest.Config) -> str:
    """Tests of one group go to one worker. Importing a release takes seconds, so all its tests stay together, as do
    those of a file. Not so on GPUs, which are worth more than the seconds; and not the jobs of a nightly run that have
    a worker of their own."""
    if "::test_campaign[" in nodeid or "::test_fix[" in nodeid:
        return nodeid
    parameters = nodeid.partition("[")[2]
    for target in (*targets(config), *cuda_targets(config)):
        if str(target) in parameters:
            return nodeid if target.engine == "cuda" and not nightly.asked(config) else str(target)
    return nodeid.partition("::")[0]


# Before pytest asks for marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    usual = {*USES["test"], *USES["more"], *USES["fix"]}
    for item in items:
        if any({*mark.args} - usual for engine in ENGINES for mark in item.iter_markers(engine)):
            item.add_marker(pytest.mark.further)
        why = missing(item)
        if why:
            item.add_marker(pytest.mark.skip(reason=why))
    # The cheap ones first: a mistake in the line shows before the first release is imported. Of these, what sleeps and
    # keeps to one worker begins at once, so that no other waits for it in the end.
    items.sort(key=lambda item: (any(map(item.get_closest_marker, ENGINES)), item.path.name not in SLEEPY))


def target_of(item: pytest.Item) -> Target | None:
    """The target that this test was given: by itself, or first of a nightly run's job."""
    call = getattr(item, "callspec", None)
    params = call.params if call else {}
    target = params.get("target") or params.get("cuda_target") or next(iter(params.get("job", ())), None)
    return target if isinstance(target, Target) else None


def missing(item: pytest.Item) -> str:
    """Why this test cannot be run here, and the command that helps; empty if it can."""
    target = target_of(item)
    if target:
        return lacking(target)
    for engine in ENGINES:
        for mark in item.iter_markers(engine):
            for why in [lacking(Target(release, engine)) for release in mark.args] or [without(engine, item.config)]:
                if why:
                    return why
    return ""


def without(engine: str, config: pytest.Config) -> str:
    """Why nothing can be run on this engine; empty if this interpreter has all that it needs, or a target that was
    asked for brings it along, as those of a bundle and those with an environment of their own do."""
    why = lacking(engine)
    return "" if any(not lacking(target) for target in targets(config) if why and target.engine == engine) else why


@functools.cache
def lacking(what: Target | str) -> str:
    """Why this target or engine cannot be used here. Looking takes a while, and hundreds of tests ask for the same."""
    return engine_lacks(what) if isinstance(what, str) else lacks(what)


@pytest.fixture(scope="session")
def newest_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool on the newest release, for tests of that release alone."""
    with Pool(Target(NEWEST, "emulated"), timeout_s=300, log=tmp_path_factory.mktemp("newest") / "log") as shared:
        yield shared


@pytest.fixture
def newest(newest_worker: Pool) -> Iterator[Pool]:
    """The same, in which a test may change sglang."""
    yield newest_worker
    newest_worker.change({})


@pytest.fixture(scope="session")
def pool(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool on the target, a real one, with one worker for all tests: importing a release takes seconds."""
    if target.engine == "toy":
        pytest.skip("drives sglang, which the toy is not")
    with Pool(target, log=tmp_path_factory.mktemp("worker") / "log") as shared:
        yield shared
