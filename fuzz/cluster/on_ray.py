"""A cluster on Ray: one actor a node, which reserves the node's GPUs and starts our own processes (agent.py).

The one module that imports Ray. CUDA never lives in a worker of Ray, since a fault there would take the worker with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from subprocess import DEVNULL
from typing import Any, Generic

# Ray reads these when it is imported: no usage reports, and no warnings of its own.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray.cluster_utils import Cluster
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fuzz.cluster import agent
from fuzz.cluster.nodes import LOCAL, Answer, Doing, Event, Joined, Left, Refused, W
from fuzz.cluster.schedule import IN_FLIGHT
from repro.commands.last_resort import descendants, end_all

# Seconds between two looks at which nodes there are, and at what they are doing.
LOOK_EVERY = 2.0
# A node whose agent was lost so often is left alone.
AGENTS_MAX = 20
# A node of the cluster on this machine that is lost is noticed after two or three seconds instead of fifteen.
WATCHFUL = {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
# For a node on this machine to end.
END_NODES_S = 2.0


class RayNodes(Generic[W]):
    """A Nodes. job: what agents are told, and the `code` that they must have. slots: on each node; None: one a GPU it
    has, or one a core where the target needs none. Mutable: agents come and go."""

    def __init__(self, job: Mapping[str, Any], slots: int | None, local: LocalNodes | None) -> None:
        self._job, self._asked_slots, self._local = dict(job), slots, local
        self._agents: dict[str, Any] = {}
        self._on: dict[str, str] = {}  # which node of Ray's an agent is on
        self._begun: dict[str, int] = {}  # agents of a node so far
        self._slots: dict[str, int] = {}
        self._asked: dict[Any, tuple[str, str, W | None]] = {}  # what was asked of whom, by Ray's reference
        self._looked = float("-inf")
        self._stopped = False
        ray.cloudpickle.register_pickle_by_value(agent)

    def send(self, node: str, chunk: W, seconds: float | None) -> None:
        self._ask(node, "run", chunk, chunk.to_json(), seconds)

    def wait(self, seconds: float) -> Sequence[Event[W]]:
        self._look()
        if not self._asked:
            time.sleep(seconds)
            return ()
        ready, _ = ray.wait(list(self._asked), num_returns=1, timeout=seconds)
        return [event for reference in ready if reference in self._asked for event in self._told(reference)]

    def interrupt(self) -> None:
        self._stopped = True
        for node in self._slots:
            self._ask(node, "interrupt", None)

    def close(self) -> None:
        """End all agents and their processes, within a moment."""
        references = []
        for actor in self._agents.values():
            with contextlib.suppress(RayError):
                references.append(actor.close.remote())
        if references:
            ray.wait(references, num_returns=len(references), timeout=2 * agent.STOP_S)
        for actor in self._agents.values():
            with contextlib.suppress(RayError):
                ray.kill(actor)

    def _ask(self, node: str, method: str, chunk: W | None, *arguments: Any) -> None:
        # One that is gone answers by an error; its reference says so.
        reference = getattr(self._agents[node], method).remote(*arguments)
        self._asked[reference] = (node, method, chunk)

    def _told(self, reference: Any) -> Iterator[Event[W]]:
        node, method, chunk = self._asked.pop(reference)
        try:
            message = ray.get(reference)
        except RayError as error:
            yield from self._gone(node, error)
            return
        if method == "start":
            yield self._started(node, message)
        elif method == "run" and chunk:
            yield Answer(node=node, chunk=chunk, message=message)
        elif method == "doing":
            yield Doing(node=node, slots=message)

    def _started(self, node: str, message: Mapping[str, Any]) -> Event[W]:
        lack = message.get("lacks", "")
        if "code" in message and message["code"] != self._job["code"]:
            codes = f"{message['code']}, not {self._job['code']}"
            lack = f"its eagleeye or Hypothesis version differs from the driver's ({codes})"
        if "trouble" in message or lack:
            slots = self._slots[node]
            self._drop(node)
            if not lack:
                return Left(node=node, why=f"a slot did not start: {message['trouble']}")
            self._begun[self._on[node]] = AGENTS_MAX  # it will lack that the next time, too
            return Refused(node=f"{self._on[node][:8]} ({slots} slots)", why=str(lack))
        return Joined(node=node, slots=self._slots[node])

    def _gone(self, node: str, error: Exception) -> Iterator[Event[W]]:
        """An agent that does not answer. Whatever else was asked of it will not be answered either."""
        if node not in self._agents:
            return
        self._asked = {reference: request for reference, request in self._asked.items() if request[0] != node}
        self._drop(node)
        self._looked = float("-inf")
        yield Left(node=node, why=f"node or agent lost ({type(error).__name__})")

    def _drop(self, node: str) -> None:
        agent = self._agents.pop(node)
        self._slots.pop(node, None)
        with contextlib.suppress(RayError):
            ray.kill(agent)

    def _look(self) -> None:
        """Start an agent on every node that has none, and ask the others what they do."""
        if time.monotonic() - self._looked < LOOK_EVERY or self._stopped:
            return
        if self._local:
            self._local.tend()
        busy = {self._on[node] for node in self._agents}
        for entry in ray.nodes():
            if entry["Alive"] and entry["NodeID"] not in busy:
                self._begin(entry["NodeID"], entry["Resources"])
        silent = {node for node, method, _ in self._asked.values() if method in ("doing", "start")}
        for node in self._agents.keys() - silent:
            self._ask(node, "doing", None)
        self._looked = time.monotonic()

    def _begin(self, place: str, resources: Mapping[str, float]) -> None:
        cores, devices = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
        cuda = bool(self._job["cuda"])
        slots = self._asked_slots or (devices if cuda else cores)
        number = self._begun.get(place, 0)
        if not slots or not cores or (cuda and not devices) or number >= AGENTS_MAX:
            return
        self._begun[place] = number + 1
        node = f"{place}:{number}"
        options = {
            "num_cpus": min(slots, cores),
            "num_gpus": devices if cuda else 0,
            # What is lost is done again by us, who count it; Ray must not do it behind our back.
            "max_restarts": 0,
            "max_task_retries": 0,
            # Chunks that run and wait, and questions and an interrupt beside them.
            "max_concurrency": IN_FLIGHT * slots + 4,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=place, soft=False),
        }
        self._agents[node] = ray.remote(agent.Agent).options(**options).remote(self._job, slots)
        self._on[node], self._slots[node] = place, slots
        self._ask(node, "start", None)


class LocalNodes:
    """So many nodes on this machine, of one core or more each, beside one for Ray itself. Those that are lost are
    started again. Mutable."""

    def __init__(self, count: int) -> None:
        self._cores = max(1, len(os.sched_getaffinity(0)) // count)
        head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "_system_config": WATCHFUL}
        self.cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
        self._nodes = [self._start() for _ in range(count)]

    def _start(self) -> subprocess.Popen[bytes]:
        # As on any other host; Cluster.add_node would wait, half a minute for a node that is lost meanwhile.
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={self.cluster.address}"]
        command += [f"--num-cpus={self._cores}", "--num-gpus=0", "--disable-usage-stats", "--block"]
        return subprocess.Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, process_group=0)

    def tend(self) -> None:
        """Each process ends when one of its node does."""
        self._nodes = [node if node.poll() is None else self._start() for node in self._nodes]

    def close(self) -> None:
        until = time.monotonic() + END_NODES_S
        for node in self._nodes:
            node.terminate()
        for node in self._nodes:
            try:
                node.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                end_all([node.pid, *descendants(node.pid)])
                node.wait()
        self.cluster.shutdown()


def _hush() -> None:
    """Have Ray keep its daemons' complaints in its logs: the driver reports lost work and repeats it. Ray has no option
    for this, so its printing function is replaced."""
    if hasattr(ray._private.worker, "print_to_stdstream"):
        ray._private.worker.print_to_stdstream = lambda *arguments, **named: None


@contextlib.contextmanager
def connected(place: str, job: Mapping[str, Any], slots: int | None) -> Iterator[RayNodes[Any]]:
    """The nodes of the cluster at this place: auto, HOST:PORT, or local:N. ConnectionError if there is none."""
    terminated = signal.getsignal(signal.SIGTERM)
    local = LocalNodes(int(place.removeprefix(LOCAL))) if place.startswith(LOCAL) else None
    try:
        address = local.cluster.address if local else place
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        _hush()
        # Ray has put its own in place.
        signal.signal(signal.SIGTERM, terminated)
        nodes: RayNodes[Any] = RayNodes(job, slots, local)
        try:
            yield nodes
        finally:
            nodes.close()
    finally:
        ray.shutdown()
        if local:
            local.close()
