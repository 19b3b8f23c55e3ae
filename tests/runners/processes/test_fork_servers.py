"""Workers of one process are forked from what has imported all that releases have in common."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from repro.cases.case import Target
from repro.traces.trace import Termination
from runners.processes import fork_servers
from runners.processes.fork_server import places
from runners.processes.fork_servers import common_environment
from runners.processes.pool import Pool
from tests.builders.misbehaving import going
from tests.builders.project import PROJECT
from tests.runners.processes.test_pool import MODULE, TARGET, gone_within

OLD, NEW = Target("0.5.13", "emulated"), Target("0.5.23", "emulated")
TELLING = "tests.builders.telling_session"


def pool_of(target: Target, log: Path | None = None, **variables: str) -> Pool:
    return Pool(target, session=MODULE, timeout_s=20, log=log, variables=variables)


def parents_of(pid: int) -> list[int]:
    """The worker of a session, and the worker's parent."""
    pids = []
    for _ in range(2):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        pids.append(pid)
    return pids


def running(pool: Pool) -> list[int]:
    assert pool.run(going("well")).ended.how is Termination.DONE
    assert pool.session_pid
    return [pool.session_pid, *parents_of(pool.session_pid)]


def test_only_what_sessions_read_may_differ(tmp_path: Path) -> None:
    (tmp_path / "release" / "sglang").mkdir(parents=True)
    path = os.pathsep.join([str(tmp_path / "release"), "/packages/transformers-5", "/project"])
    variables = {"EAGLEEYE_REFERENCE": "1", "SGLANG_X": "y", "PYTEST_CURRENT_TEST": "z"}
    common = common_environment({**variables, "OMP_NUM_THREADS": "1", "PYTHONPATH": path})
    assert common == {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"/packages/transformers-5{os.pathsep}/project"}


def test_an_import_path_is_absolute_and_names_each_place_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert places(os.pathsep.join(["/a", ".", "", "/a"])) == ["/a", str(tmp_path)]


@pytest.mark.exhaustive
@pytest.mark.emulated("0.5.13", "0.5.23")
def test_workers_share_a_server_where_their_packages_are_the_same() -> None:
    with pool_of(OLD) as first, pool_of(Target("0.5.15.post1", "emulated"), EAGLEEYE_X="1") as second:
        (_, session, server), (_, other, same) = running(first), running(second)
        assert server == same != os.getpid()
        assert session != other
        with pool_of(NEW) as third:
            assert running(third)[2] not in (server, os.getpid()), "it has other packages in front"


@pytest.mark.emulated("0.5.13")
def test_a_worker_has_its_own_environment_import_path_and_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Pool(OLD, session=TELLING, log=log, variables={"EAGLEEYE_X": "1"}) as pool:
        facts = dict(pool.run(going("well")).facts)
    assert (facts["variable"], facts["version"]) == ("1", "0.5.13")
    front = json.loads(facts["path"])
    assert front[0].endswith("0.5.13") and front[1] == str(PROJECT)
    assert "a session was imported" in log.read_text()
    with Pool(OLD, session=TELLING, log=log) as pool:
        again = dict(pool.run(going("well")).facts)
    assert again["variable"] == "absent"
    assert again["drawn"] != facts["drawn"], "two workers would draw the same ports"


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("raise", "the worker cannot import what it needs: ImportError: no module named moon"),
        ("die", "the worker ended: SIGSEGV"),
    ],
)
def test_a_worker_that_cannot_start_says_why(way: str, why: str) -> None:
    with Pool(TARGET, session=TELLING, variables={"EAGLEEYE_X": way}) as pool:
        assert pool.run(going("well")).ended.what == why


def test_a_killed_server_is_replaced_and_its_workers_end() -> None:
    with pool_of(TARGET) as pool:
        session, worker, server = running(pool)
        os.kill(server, signal.SIGKILL)
        assert gone_within(worker, 5) and gone_within(session, 5)
        pool.run(going("well", steps=1))
        assert running(pool)[2] != server


class Server:
    """In place of a running one."""

    def __init__(self, preloaded: str, environment: Mapping[str, str], within_s: float) -> None:
        self.environment, self.alive, self.ended = environment, set[int](), False

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str], log: int) -> Server:
        self.alive.add(len(self.alive))
        return self

    def end(self) -> None:
        self.ended = True


def test_servers_without_workers_are_few_and_the_oldest_ends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_servers, "ForkServer", Server)
    monkeypatch.setattr(fork_servers, "_servers", {})

    def asked(name: str) -> Any:
        return fork_servers.forked("toy", [], {"NAME": name}, 0, 1.0)

    costly: Any = fork_servers.forked("emulated", [], {"NAME": "a"}, 0, 1.0)
    costly.alive.clear()
    made = [asked(name) for name in "abcd"]
    assert asked("a") is made[0] and asked("e") is not made[0]
    assert [server.ended for server in made] == [False] * 4, "all of them have workers"
    for server in made[:2]:
        server.alive.clear()
    asked("f")
    assert [server.ended for server in made] == [True, True, False, False]
    assert not costly.ended, "it is of another kind"


@pytest.mark.slow
def test_nothing_is_left_of_a_parent_that_is_killed() -> None:
    script = """
        import json
        from tests.builders.misbehaving import going
        from tests.runners.processes.test_fork_servers import TARGET, pool_of, running
        with pool_of(TARGET) as pool:
            print(json.dumps(running(pool)), flush=True)
            pool.run(going("hang"))
    """
    words = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(words, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout
        processes = json.loads(parent.stdout.readline())
        parent.kill()
        parent.wait(30)
    assert [pid for pid in processes if not gone_within(pid, 10)] == []
