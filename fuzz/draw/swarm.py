"""One campaign round's bias: which features are on and how heavily, drawn before any setup or case.

A round that never shrinks, or that only has long prompts, reaches states that a mix of everything dilutes away
(Groce et al., Swarm Testing, ISSTA 2012).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st

# Differences of one call from the call before it; fuzz/draw/moves.py says what each does.
MOVES = ("grow", "shrink", "finish_and_reuse", "same", "alike", "one", "full")
# How the length of a new request is chosen.
LENGTHS = ("one", "short", "any", "page", "long", "limit")
WEIGHT_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Upper limits of what is captured. The cost of a replay rises with their product."""

    topk: int
    num_steps: int
    max_bs: int
    hidden_size: int
    num_heads: int
    context_len: int


SMALL = Size(topk=2, num_steps=3, max_bs=4, hidden_size=32, num_heads=2, context_len=64)
MIDDLE = Size(topk=4, num_steps=4, max_bs=6, hidden_size=64, num_heads=4, context_len=96)
LARGE = Size(topk=8, num_steps=6, max_bs=8, hidden_size=64, num_heads=4, context_len=128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """moves and lengths: names of MOVES and LENGTHS, a name repeated as often as it weighs. calls_max: the most
    steps of a case. sparse: buckets may leave gaps. shuffled: rows may change places between calls. jumps: a continued
    request may also stay or leap in length.
    Where the runner, its backend and the features before it allow: branching: topk is above 1. paged: page sizes are.
    single: whether there is one draft step; None: either. algorithm, family: its name; empty: any.
    options: fields of Setup that are not at their defaults (repro/cases/options.py); batches ask for hidden states if
    graphs return them. unmirrored: there are no lengths on the host. crowded: some batches have more requests than the
    largest bucket; idle: some have none. halfway: some calls have no lengths on the host. relocating: request slots own
    other KV slots from one call to the next."""

    size: Size = MIDDLE
    moves: tuple[str, ...] = MOVES
    lengths: tuple[str, ...] = LENGTHS
    calls_max: int = 6
    branching: bool = True
    paged: bool = True
    single: bool | None = None
    algorithm: str = ""
    family: str = ""
    sparse: bool = True
    shuffled: bool = True
    jumps: bool = True
    options: frozenset[str] = frozenset()
    unmirrored: bool = False
    crowded: bool = False
    relocating: bool = False
    halfway: bool = False
    idle: bool = False

    def having(self, *options: str) -> Swarm:
        """The swarm whose setups have these options, too."""
        return replace(self, options=self.options | set(options))


# Contexts longer than the blocks of 512 over which kernels loop.
LONG = Size(topk=2, num_steps=3, max_bs=2, hidden_size=16, num_heads=1, context_len=640)
# Shapes far beyond what people usually run.
WIDE = Size(topk=10, num_steps=20, max_bs=2, hidden_size=16, num_heads=1, context_len=256)
# Hidden states wider than the blocks of 2,048 over which kernels loop.
BROAD = Size(topk=2, num_steps=2, max_bs=2, hidden_size=2560, num_heads=1, context_len=64)

EVERYTHING = Swarm(
    size=LARGE,
    options=frozenset({"window", "logit_cap", "padded", "overhang", "returns_hidden"}),
    unmirrored=True,
    crowded=True,
    relocating=True,
    halfway=True,
    idle=True,
)


@st.composite
def swarms(draw: st.DrawFn) -> Swarm:
    """The ways in which batches follow each other; small setups most often, because they give more cases a second. What
    setups have is not drawn: it goes by a plan (fuzz/draw/covering.py)."""
    return Swarm(
        size=draw(st.sampled_from((SMALL, SMALL, SMALL, MIDDLE, MIDDLE, LARGE))),
        moves=draw(_weighted(MOVES)),
        lengths=draw(_weighted(LENGTHS)),
        calls_max=draw(st.integers(2, 6)),
        # Without gaps between the buckets no batch is ever padded.
        sparse=draw(st.sampled_from((True, True, True, False))),
        shuffled=draw(st.booleans()),
        jumps=draw(st.booleans()),
        unmirrored=draw(st.sampled_from((False, False, False, True))),
        crowded=draw(st.booleans()),
        relocating=draw(st.sampled_from((False, False, False, True))),
        halfway=draw(st.sampled_from((False, False, False, True))),
        idle=draw(st.sampled_from((False, False, True))),
    )


@st.composite
def _weighted(draw: st.DrawFn, names: tuple[str, ...]) -> tuple[str, ...]:
    """Some of the names, at least one, each repeated 1..WEIGHT_MAX times."""
    first = draw(st.sampled_from(names))
    weights = [draw(st.sampled_from((0, 0, 1, 2, WEIGHT_MAX))) for _ in names]
    return tuple(
        name for name, weight in zip(names, weights, strict=True) for _ in range(max(weight, int(name == first)))
    )
