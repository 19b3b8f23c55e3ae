"""The amounts that are tried: the profiles ci, nightly and soak, in the one place where they are made.

A profile is a Hypothesis profile under the same name, which the property tests run under (`pytest
--hypothesis-profile`), and what a campaign takes from it (`python -m fuzz run --profile`).
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

# Which example database to use, where no option says so.
VARIABLE = "EAGLEEYE_EXAMPLES"
# Hypothesis's own place, under the current directory.
DIRECTORY = ".hypothesis/examples"
REDIS = ("redis://", "rediss://", "unix://")
# What has failed is worth keeping for longer than Hypothesis's eight days: a release may be looked at once a month.
REDIS_KEEPS = timedelta(days=90)
_REDIS_WAIT_S = 5


class BadExamples(ValueError):
    """There is no such example database. The text is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """examples_max: of a property test. derandomize: whether such a test tries the same examples every time. remembers:
    whether the example database is used, by property tests and campaigns. minutes: of a campaign. cases_per_setup: as
    python -m fuzz run has it. tries: how often a stored seed is run."""

    examples_max: int
    derandomize: bool
    remembers: bool
    minutes: float
    cases_per_setup: int
    tries: int


PROFILES = {
    # The same every time, so that a red build is the fault of the change.
    "ci": Profile(examples_max=100, derandomize=True, remembers=False, minutes=1, cases_per_setup=16, tries=1),
    "nightly": Profile(examples_max=1000, derandomize=False, remembers=True, minutes=10, cases_per_setup=32, tries=3),
    "soak": Profile(examples_max=10_000, derandomize=False, remembers=True, minutes=240, cases_per_setup=64, tries=10),
}
DEFAULT, NIGHTLY = "ci", "nightly"


def register(chosen: str, where: str | None = None) -> None:
    """Make the profiles known to Hypothesis. where: as in database(), which is asked only if the chosen one remembers.
    BadExamples."""
    for name, profile in PROFILES.items():
        settings.register_profile(
            name,
            max_examples=profile.examples_max,
            derandomize=profile.derandomize,
            database=database(where) if name == chosen and profile.remembers else None,
            # A case takes as long as it takes, and the machine may be busy.
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            print_blob=True,
        )


def database(where: str | None = None) -> ExampleDatabase:
    """The example database at this directory or URL; without one, at the one that the environment names, or in
    Hypothesis's own place. BadExamples if there is none to be had."""
    where = where or os.environ.get(VARIABLE) or DIRECTORY
    if where.startswith(REDIS):
        return _redis(where)
    if where == DIRECTORY:
        return DirectoryBasedExampleDatabase(where)  # made when there is something to put into it
    if "://" in where:
        raise BadExamples(f"{where}: neither a directory nor a URL that begins with one of {', '.join(REDIS)}")
    path = Path(where)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadExamples(f"{where}: {error.strerror or error}") from error
    if not os.access(path, os.W_OK):
        raise BadExamples(f"{where}: is read-only")
    return DirectoryBasedExampleDatabase(path)


def _redis(url: str) -> ExampleDatabase:
    # Only here: most have no Redis, and no package for it.
    try:
        redis = importlib.import_module("redis")
        shared = importlib.import_module("hypothesis.extra.redis")
    except ImportError as error:
        raise BadExamples(f"{url}: the package for it is not installed: pip install redis") from error
    try:
        client = redis.Redis.from_url(url, socket_connect_timeout=_REDIS_WAIT_S, socket_timeout=_REDIS_WAIT_S)
        client.ping()
    except (redis.RedisError, ValueError) as error:
        raise BadExamples(f"{url.rpartition('@')[2]}: {error}") from error
    made: ExampleDatabase = shared.RedisExampleDatabase(client, expire_after=REDIS_KEEPS)
    return made
