"""Which setups one session process may serve, one after the other (--setups-per-session). Where it may not, a fresh
process is forked for the next setup."""

from __future__ import annotations

from repro.cases.case import Setup
from runners.processes.warm import Open

# Runners and backends whose traces were compared, bit by bit, with those of fresh processes (tests/test_served.py).
RUNNERS = frozenset({"draft", "decode", "verify", "draft_extend", "toy"})
BACKENDS = frozenset({"triton", "flashinfer", "toy"})


def may_serve(session: Open, setup: Setup, setups_per_session: int) -> bool:
    """Whether this session's process may open a session for the setup once it is closed. Not where modules of sglang
    are changed for one kind of model: latent attention, sliding layers with a pool of their own."""
    before = session.setup
    return (
        not session.spent
        and len(session.past) + 1 < setups_per_session
        and setup.runner in RUNNERS
        and setup.backend in BACKENDS
        and kind(before) == kind(setup)
    )


class Idle:
    """The processes that setups were left in, one of each kind: each setup leaves one behind, and the next one of its
    kind opens in it. Mutable. wanted: whether one may serve several."""

    def __init__(self, setups_per_session: int) -> None:
        self.wanted = setups_per_session > 1
        self._setups_per_session = setups_per_session
        self._left: dict[object, Open] = {}

    def put(self, session: Open) -> Open | None:
        """Have this one; the one before of its kind, if it was not used, is the caller's."""
        before = self._left.pop(kind(session.setup), None)
        self._left[kind(session.setup)] = session
        return before

    def pop(self) -> Open | None:
        """One that was left, which is the caller's from now on."""
        return self._left.popitem()[1] if self._left else None

    def reopened(self, setup: Setup) -> Open | None:
        """A session of this setup that is to be opened in that process; None if there is none that may."""
        left = self._left.get(kind(setup))
        if left is None or not may_serve(left, setup, self._setups_per_session):
            return None
        del self._left[kind(setup)]
        past, mark = (*left.past, left.setup), left.log.mark()
        return Open(setup=setup, channel=left.channel, pid=left.pid, log=left.log, past=past, mark=mark)


def kind(setup: Setup) -> tuple[object, ...]:
    return setup.runner, setup.backend, setup.algorithm == "NEXTN", setup.swa, setup.dp_attention
