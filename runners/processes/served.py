"""The setups that one session process may serve, one after the other (--setups-per-session). Where it may not, a fresh
process is forked for the next setup."""

from __future__ import annotations

from repro.cases.case import Setup
from repro.cases.families import family_facts
from runners.processes.warm import Open

# Runners and backends whose traces were compared, bit by bit, with those of fresh processes
# (tests/runners/processes/test_served.py).
RUNNERS = frozenset(
    {"draft", "decode", "verify", "draft_extend", "multi_layer", "frozen_kv_mtp", "kv_move", "toy"}
    | {"verify_eager", "verify_eager_tree", "verify_eager_multi_layer"}
)
BACKENDS = frozenset({"triton", "flashinfer", "fa3", "toy"})
# How many setups a process serves by default: on a GPU a process has a CUDA context and traced functions, which
# cost as much as dozens of setups do; without one it has next to nothing that a fork has not.
SETUPS_PER_SESSION = {"cuda": 200}


def setups_per_session(engine: str) -> int:
    return SETUPS_PER_SESSION.get(engine, 1)


def may_serve(session: Open, setup: Setup, setups_per_session: int) -> bool:
    """True if this session's process may open a session for the setup once it is closed. Not where modules of sglang
    are changed for one kind of model (latent attention, sliding layers with a pool of their own), nor where kernels
    take the place of torch's for good, as in deterministic inference."""
    before = session.setup
    return (
        not session.spent
        and len(session.past) + 1 < setups_per_session
        and setup.runner in RUNNERS
        and setup.backend in BACKENDS
        and kind(before) == kind(setup)
    )


class Idle:
    """Up to `room` processes that setups were left in: the next setup of the same kind opens in one. Mutable. wanted:
    whether one may serve several."""

    def __init__(self, setups_per_session: int, room: int) -> None:
        self.wanted = setups_per_session > 1
        self._setups_per_session = setups_per_session
        self._room = room
        self._left: list[Open] = []  # the one that was left last stands last

    def put(self, session: Open) -> Open | None:
        """Store the session. Returns the least recently used one if there was no room."""
        self._left.append(session)
        return self._left.pop(0) if len(self._left) > self._room else None

    def pop(self) -> Open | None:
        """One that was left, which is the caller's from now on."""
        return self._left.pop() if self._left else None

    def reopened(self, setup: Setup) -> Open | None:
        """A session of this setup that is to be opened in the process that was left last; None if there is none that
        may."""
        fitting = (session for session in reversed(self._left) if may_serve(session, setup, self._setups_per_session))
        left = next(fitting, None)
        if left is None:
            return None
        self._left.remove(left)
        left.before = None
        past, mark = (*left.past, left.setup), left.log.mark()
        return Open(setup=setup, inbox=left.inbox, pid=left.pid, log=left.log, past=past, before=left, mark=mark)


def kind(setup: Setup) -> tuple[object, ...]:
    return setup.runner, setup.backend, family_facts(setup), setup.swa, setup.dp_attention, setup.deterministic
