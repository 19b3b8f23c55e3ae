"""Git, asked in a repository of others: it reads what is there, and runs nothing that the repository's own
configuration names. There are no hooks, filters, drivers, monitors, pagers, signatures or fetches."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from repro.upstream.rig import Refused

LIMIT_S = 300.0
# They win over the repository's own. Of the same keys in a user's configuration none counts either.
_SETTINGS = {
    # Any owner will do: it was named, and it can run nothing.
    "safe.directory": "*",
    "protocol.allow": "never",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.sshCommand": "false",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "gpg.program": "false",
    "log.showSignature": "false",
    "log.mailmap": "false",
    "submodule.recurse": "false",
}
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    # A protocol's own setting would win over protocol.allow; this wins over both.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
# Settings that run a command to show a difference.
_NO_DRIVERS = dict.fromkeys(("diff", "log", "show"), ("--no-ext-diff", "--no-textconv"))
# Filters of files have no such switch, and a repository may have any number, under names of its own.
_FILTERS = r"^filter\."


def git(folder: Path, *arguments: str, stdin: str = "", top: Path | None = None) -> str:
    """Everything that git prints in this folder. top: a folder above which no repository is looked for. Refused, with
    git's last words, if it fails, is not there or takes too long."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _ENVIRONMENT
    if top:
        environment["GIT_CEILING_DIRECTORIES"] = str(top)
    filters = _run(folder, ("config", "--null", "--name-only", "--get-regexp", _FILTERS), "", environment)
    words = (arguments[0], *_NO_DRIVERS.get(arguments[0], ()), *arguments[1:])
    done = _run(folder, words, stdin, environment | _emptied(filters.stdout.split("\0")[:-1]))
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        raise Refused(f"git {arguments[0]}: {'; '.join(errors[:2]) or lines[-1]}")
    return done.stdout


def _emptied(names: list[str]) -> dict[str, str]:
    """Settings without a value, by variables: a name may hold what ends one on the command line."""
    pairs = [(f"GIT_CONFIG_KEY_{n}", name) for n, name in enumerate(names)]
    pairs += [(f"GIT_CONFIG_VALUE_{n}", "") for n in range(len(names))]
    return {"GIT_CONFIG_COUNT": str(len(names)), **dict(pairs)}


def _run(
    folder: Path, arguments: tuple[str, ...], stdin: str, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    settings = (word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}"))
    try:
        return subprocess.run(
            ["git", "-C", str(folder), "--no-pager", *settings, *arguments],
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            timeout=LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise Refused("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"git {arguments[0]}: took longer than {LIMIT_S:.0f} s") from None
