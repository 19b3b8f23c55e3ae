"""The paths of a trace: one row for everything that sessions record while a case runs. Oracles judge by them;
`python -m repro paths` prints them as docs/traces.md; the conformance suite checks that sessions record just these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum

from repro.cases.backend_facts import BACKEND_FACTS
from repro.cases.case import Setup
from repro.cases.families import is_recurrent
from repro.cases.runner_facts import RUNNER_FACTS, TOY
from repro.cases.sharing import ranks_of


class When(StrEnum):
    """The moments at which a path is recorded."""

    ONCE = "once, at step -1"
    ONCE_AND_STEPS = "once, at step -1, and in each step"
    STEP = "in each step"
    LAST = "in the last step that has requests, if a graph ran it"
    LAUNCH = "in each step, at its first launch of a graph"
    LAUNCHES = "in each step, at each launch of a graph"
    ROUND = "in each decode round, whose number is the step's"
    ROUND_LAUNCH = "at each launch of a graph, whose number among all is the step's"
    PLAN = "in each step, at each call that plans attention's metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Setups whose sessions record a path. words: for people."""

    words: str
    hold: Callable[[Setup], bool]

    def __and__(self, other: Sessions) -> Sessions:
        return Sessions(words=f"{self.words} {other.words}", hold=lambda s: self.hold(s) and other.hold(s))


def _of(*runners: str) -> Callable[[Setup], bool]:
    return lambda setup: (RUNNER_FACTS[setup.runner].session or "graph") in runners


ALL = Sessions(words="all runners", hold=lambda setup: True)
GRAPHS = Sessions(words="runners with a graph", hold=_of("graph"))
OF_MOVES = Sessions(words="kv_move", hold=_of("kv_move"))
OF_ROUNDS = Sessions(words="round", hold=_of("round"))
EAGER_VERIFY = Sessions(words="verify_eager and its kin", hold=_of("verify_eager"))
NOT_MOVES = Sessions(words="all runners but kv_move", hold=_of("graph", "verify_eager"))
NOT_VERIFY = Sessions(words="all runners but verify_eager and its kin", hold=_of("graph", "kv_move"))
RANKED = Sessions(words="of one of two ranks", hold=lambda setup: setup.dp_attention)
SHARED = Sessions(words="of one of several ranks", hold=lambda setup: ranks_of(setup) > 1)
RECURRENT = Sessions(words="models with recurrent layers", hold=is_recurrent)
ADAPTIVE = Sessions(words="whose worker changes its number of draft steps", hold=lambda setup: bool(setup.adaptive))
ON_GPU = Sessions(words="but those of CPUs", hold=lambda setup: not BACKEND_FACTS[setup.backend].on_cpu)
ONE_GRAPH = Sessions(words="with one graph a call", hold=lambda setup: setup.runner != "multi_layer" or setup.one_graph)

EMULATED, ON_SGLANG, EVERY = ("emulated",), ("emulated", "cuda"), ("emulated", "cuda", TOY)


@dataclass(frozen=True, slots=True)
class PathRow:
    """One path."""

    name: str
    when: When
    _: KW_ONLY
    # Names, dtypes and dimensions, in words. NAME stands for names that the runner's batch or model gives.
    arrays: str
    meaning: str
    sessions: Sessions = GRAPHS
    engines: tuple[str, ...] = ON_SGLANG
    # What must come about in a run besides; empty where each run of these sessions records the path.
    where: str = ""
    # The oracle that judges this alone, and is not asked of a trace without it.
    oracle: str = ""
    # True if the second and later calls of a step have paths of their own: NAME.1, NAME.2.
    numbered: bool = False


class Recorded(StrEnum):
    """The paths' names, in the order in which they are recorded."""

    row: PathRow

    def __new__(cls, row: PathRow) -> Recorded:
        member = str.__new__(cls, row.name)
        member._value_, member.row = row.name, row
        return member

    # fmt: off
    INPUT = PathRow("input", When.ONCE_AND_STEPS, sessions=ALL, engines=EVERY,
        arrays="req_pool_indices, seq_lens int64 [raw_bs]; NAME [raw_bs, ...], for draft out_cache_loc [raw_bs, topk * "
        "num_steps], positions, topk_p, topk_index [raw_bs, topk], hidden_states [raw_bs, hidden]; rewritten int64 "
        "[raw_bs, n]; busiest int64 []; at step -1 req_to_token [slots + 1, context], refilled int64 []",
        meaning="The batch that the harness passes: the fields of the runner's Family, and the values that other "
        "models compute before the call (for verify the draft: parents, scores_index, tokens). Without out_cache_loc "
        "no KV may be written. rewritten: KV slots of earlier tokens that are written again. busiest: requests of "
        "the group's busiest rank, for verify_eager. req_to_token also in a step in which slots move. refilled: the "
        "contents of every slot change in each step.")
    MEMORY = PathRow("memory", When.ONCE_AND_STEPS, sessions=ALL, engines=EMULATED, oracle="memory",
        arrays="launches int64 []; WRONG int64 [2]; starts of WRONG uint8 [n]",
        meaning="Memory accesses of kernels since the last record; at step -1 those during capture. launches: "
        "watched kernel launches. WRONG, such as `load outside kv_indices in stage1`: index and length, in elements "
        "of the argument, of the first wrong access. starts of WRONG: the row start that caused it, as NAME COLUMN "
        "GOT WANT in UTF-8.")
    NEUTRAL = PathRow("neutral", When.ONCE_AND_STEPS, engines=EVERY,
        arrays="NAME int64 or float []",
        meaning="The value that padded rows of a buffer must hold at launch; at step -1 if it is the same in all "
        "steps.")
    BUCKETS = PathRow("buckets", When.ONCE, sessions=GRAPHS & ON_GPU,
        arrays="`SIZE, N at once` int64 [buckets]",
        meaning="The graph sizes that the release's server captures for a list that ends at SIZE, with N tokens "
        "counted for each request.")
    EXTENTS_CAPTURED = PathRow("extents_captured", When.ONCE, oracle="extents",
        arrays="NAME int64 [n, 2]",
        meaning="The lengths of a captured batch's tensors and lists as attention gets them: the batch's size and "
        "the field's entries. Fields of spec_info have that prefix.")
    UNMADE = PathRow("unmade", When.ONCE, sessions=NOT_MOVES, oracle="attributes",
        arrays="compared, CLASS.ATTRIBUTE int64 []",
        meaning="Attributes that methods of sglang's objects read and nothing sets: 1 each. compared: 1 if they were "
        "searched for.")
    BACKENDS = PathRow("backends", When.ONCE,
        arrays="CLASS int64 []",
        meaning="The classes of the workers' attention backends: 1 each.")
    SWITCHES = PathRow("switches", When.ONCE, sessions=GRAPHS & ADAPTIVE,
        arrays="steps int64 [3, 5]",
        meaning="One row for each switch of an adaptive worker: the requested number of draft steps, the number that "
        "worker and draft worker use, and the number of draft tokens less one that each uses.")
    TOKENS_CAPTURED = PathRow("tokens_captured", When.ONCE,
        arrays="own, gathered int64 [n, 2]",
        meaning="The tokens of a captured batch, and the tokens that parallel layers get for this rank (own) and for "
        "all ranks (gathered).")
    RANKS_CAPTURED = PathRow("ranks_captured", When.ONCE, sessions=GRAPHS & RANKED,
        where="captured batches have a host list of the tokens of each rank",
        arrays="NAME int64 [n, 1 + ranks]",
        meaning="The size of a captured batch, and the entries of a host list with one entry for each rank.")
    COUNTS_CAPTURED = PathRow("counts_captured", When.ONCE,
        where="captured batches count their tokens",
        arrays="NAME int64 [n, 2]",
        meaning="The tokens of a captured batch, and its own token count, or its number of three-dimensional "
        "positions.")
    WIDTHS_CAPTURED = PathRow("widths_captured", When.ONCE,
        arrays="NAME int64 []",
        meaning="The bytes of one integer of a captured batch's tensor.")
    ROOM = PathRow("room", When.ONCE,
        arrays="NAME int64 [dimensions]",
        meaning="The shapes of the runner's input buffers, including those that its family does not name.")
    ASKED = PathRow("asked", When.STEP,
        where="the runner is asked in advance, or the server refuses a request",
        arrays="can_run, hidden int64 []",
        meaning="can_run: 1 if the runner would replay a graph, else 0; asked for batches that no graph holds and "
        "for batches without padding. If it is 0, or no graph holds the batch, only eager runs. hidden: 0 if the "
        "release's server refuses the hidden states that the step names, so that the batch does not ask for them.")
    BEFORE = PathRow("before", When.STEP, sessions=NOT_VERIFY, engines=EVERY,
        arrays="NAME, the batch's; for kv_move kv_slots int64 [n], kv_rows [n, ...]",
        meaning="The caller's batch just before the graph path: the fields of its Family under sglang's names "
        "(batch_size, seq_lens_cpu and seq_lens_sum among them). For kv_move the contents of the KV slots that a "
        "move may read.")
    FIELD = PathRow("field", When.STEP, engines=EMULATED,
        where="the runner has input buffers that its family does not name",
        arrays="NAME, the batch's",
        meaning="The batch's fields with the names of such buffers.")
    PLANNED = PathRow("planned", When.PLAN, engines=EVERY, numbered=True,
        where="the graph's attention is planned by its backend",
        arrays="batch_size, seq_lens_sum, backend int64 []; seq_lens, seq_lens_cpu, req_pool_indices int [bs]; "
        "out_cache_loc, positions int64 [n]; counts of spec_info int [bs]",
        meaning="The batch as the attention backend gets it, after padding and before metadata is built: the fields "
        "that the release passes; buffers may be whole. backend: its index among the workers' backends.")
    EXTENTS = PathRow("extents", When.PLAN, numbered=True,
        where="the graph's attention is planned by its backend",
        arrays="NAME int64 []",
        meaning="The lengths of that batch's tensors and lists.")
    GATHERED_ON_HOST = PathRow("gathered_on_host", When.STEP, sessions=GRAPHS & RANKED,
        where="planned batches have a host list of the tokens of each rank",
        arrays="NAME int64 [ranks]",
        meaning="The tokens of each rank in the planned batch's host list.")
    LAUNCH = PathRow("launch", When.LAUNCH, engines=EVERY,
        arrays="bs, raw_bs int64 []; NAME [max_bs, ...]",
        meaning="The runner's buffers at launch, one row for each request of the largest bucket, under the names of "
        "input; the bucket (bs) and the batch's size (raw_bs). For cpu_decode the arguments of the compiled "
        "function, [bs, ...].")
    GATHERED = PathRow("gathered", When.LAUNCH, sessions=GRAPHS & RANKED,
        where="the runner has buffers for them",
        arrays="NAME int32 [ranks]",
        meaning="The runner's buffers with the tokens of each rank.")
    METADATA = PathRow("metadata", When.STEP, sessions=NOT_MOVES, engines=EVERY,
        where="attention keeps its metadata where it can be read",
        arrays="kv_indptr int [calls, n]; kv_indices int [calls, width]; qo_indptr int [calls, n]; mask_indptr int "
        "[n]; custom_mask bool or uint8; window_kv_indptr, window_kv_indices; page_rows int64 [n, 4]; for "
        "verify_eager at, tokens, requests int64 [n]",
        meaning="Attention metadata at launch, one row for each attention call of repro/cases/reads.py (for draft: "
        "kv_indptr has num_steps rows, of which draft steps 0..num_steps-2 use one each). custom_mask: one entry for "
        "each query and key, unpacked where flashinfer packs it. Only for flashinfer kv_indices includes the keys of "
        "the verified tree. window_*: the same for sliding layers, by the KV slots that the same tokens have in the "
        "other layers, -1 for a slot of no token. page_rows: for each sequence its page table, its row, its length, "
        "and the room of the row in tokens. For an eager pass without a graph the metadata of Triton's backend, "
        "without masks. For verify_eager the moments at which metadata is built, numbered `at` in the order of all "
        "events, with the tokens and requests of the batch at that moment.")
    LAUNCHED = PathRow("launched", When.LAUNCHES, sessions=GRAPHS & ONE_GRAPH & ON_GPU,
        arrays="size, greedy int64 []",
        meaning="The launched graph: the batch size that it was captured for, and 1 if it is for greedy requests "
        "only, where the runner has such graphs.")
    STAGED = PathRow("staged", When.LAUNCH, engines=EMULATED,
        where="the runner has input buffers that its family does not name",
        arrays="NAME, as under field",
        meaning="The part of such a buffer that the batch fills, at launch.")
    LOGITS = PathRow("logits", When.STEP, sessions=GRAPHS & RANKED,
        where="the runner returns logits",
        arrays="`rows of a request` int64 []",
        meaning="The rows of logits that a graph returns for each request.")
    GRAPH = PathRow("graph", When.STEP, engines=EVERY,
        arrays="NAME [raw_bs, ...], for draft: parents, scores_index, tokens; kv_slots int64 [n], kv_rows float [n, "
        "layers * 2 * heads * head_dim]",
        meaning="The graph path's outputs, one row for each request; kv_slots: the KV slots whose contents changed, "
        "rising; kv_rows: their new contents.")
    HISTORY = PathRow("history", When.LAST, sessions=GRAPHS & ON_GPU, engines=EMULATED, oracle="history",
        arrays="compared, launches int64 []; NAME int64 [n, 2], NAME.values float64 [n, 2]; kv int64 [n]",
        meaning="The same call, run from the state that another history left. compared: the compared tensors; "
        "launches: additional launches there. NAME: places (row of the request, column) at which a tensor differs "
        "and kernels read it, or at which an output (`output NAME`) differs; NAME.values: their values in this "
        "history and in the other. kv: KV slots with different bits.")
    READS = PathRow("reads", When.STEP, sessions=GRAPHS & ON_GPU, engines=EMULATED, oracle="kv_reads",
        where="it is the last step that has requests, or an eager pass without a graph",
        arrays="LAYER, LAYER.partly, LAYER.reserved int64 [n]",
        meaning="For each tensor of the cache, the KV slots that kernels read completely, those that they read "
        "partly, and the reserved slots that they read.")
    ATTRIBUTES = PathRow("attributes", When.LAST, sessions=GRAPHS & ON_GPU, engines=EMULATED, oracle="attributes",
        arrays="compared int64 []; NAME uint8 [n]",
        meaning="Attributes of workers, runners and backends that the call changed, by their path: `WAS -> IS` in "
        "UTF-8. compared: the attributes that were compared.")
    KEPT = PathRow("kept", When.LAST, oracle="kept_outputs",
        arrays="compared int64 []; STEP.NAME int64 [n]",
        meaning="Rows of an earlier call's inputs (`caller's NAME`) or outputs that have changed since.")
    STATE_SLOTS = PathRow("state_slots", When.STEP, sessions=RECURRENT, oracle="state_writes",
        arrays="owned int64 [raw_bs + kept]; PATH.KIND int64 [n]",
        meaning="The state slot of each request, but of drafts, which change none, and of each state that a commit or "
        "a decode keeps; by path (graph, eager) and kind (conv, temporal) those that it changed.")
    STATE_VALUES = PathRow("state_values", When.STEP, sessions=RECURRENT, oracle="state_values",
        arrays="PATH.KIND, PATH.tracked KIND float32 [raw_bs, n]",
        meaning="The states that each path left the requests, by kind, in verify behind the commit of their `accepted` "
        "tokens, with those in the slots where it keeps some; of variants of eager where graph and eager differ. "
        "sequential, sequential_nudged: in the last step, what decoding these tokens one by one leaves, and with "
        "nudged token embeddings.")
    GUARD = PathRow("guard", When.STEP, engines=EVERY,
        arrays="intact int64 []; NAME, NAME.want uint8 [n]",
        meaning="intact: bytes of guard bands that are unchanged after the graph ran. For each buffer with changed "
        "bands: the bands (flat) and their filling.")
    AFTER_GRAPH = PathRow("after_graph", When.STEP, engines=EVERY,
        arrays="as before",
        meaning="The caller's batch after the graph path.")
    PLANNED_EAGER = PathRow("planned_eager", When.PLAN, numbered=True,
        arrays="as planned",
        meaning="The batch as the attention backend gets it in the eager path.")
    WIDTHS = PathRow("widths", When.PLAN, numbered=True,
        arrays="NAME int64 []",
        meaning="The bytes of one integer of each tensor of that batch.")
    EAGER = PathRow("eager", When.STEP, sessions=NOT_MOVES, engines=EVERY,
        arrays="as graph; kv_same int64 []",
        meaning="As graph, from the eager path on the same inputs, after the KV cache was restored. If both paths "
        "leave the same bits in all KV slots but slot 0, which padded rows write, kv_rows is omitted for both and "
        "kv_same is 1. For verify_eager the verified logits and hidden states, and kv_slots.")
    AFTER_EAGER = PathRow("after_eager", When.STEP, engines=EVERY,
        arrays="as before",
        meaning="The caller's batch after the eager path.")
    EAGER_AGAIN = PathRow("eager_again", When.STEP, engines=EVERY,
        where="graph and eager differ",
        arrays="as eager",
        meaning="As eager, for the batch padded as the graph pads it, first raw_bs rows.")
    EAGER_NUDGED_UP = PathRow("eager_nudged_up", When.STEP, engines=EVERY,
        where="graph and eager differ",
        arrays="as eager",
        meaning="An eager pass with the hidden states moved up by rounding noise; without hidden states, the KV "
        "cache and the token embeddings.")
    EAGER_NUDGED_DOWN = PathRow("eager_nudged_down", When.STEP, engines=EVERY,
        where="graph and eager differ",
        arrays="as eager",
        meaning="The same, moved down.")
    REFERENCE = PathRow("reference", When.STEP, sessions=NOT_MOVES, engines=EVERY,
        where="graph and eager differ, or the parent asks for it",
        arrays="NAME, NAME.bound as NAME of eager, float64; NAME.norm, NAME.spread float64 [raw_bs, tokens]; NAME.all "
        "float64 [1, 1]; kv_slots int64 [n]; kv_rows, kv_rows.bound, kv_graph, kv_eager float [n, ...]",
        meaning="The float64 reference: the right result of the call, with eager's integers wherever rounding can "
        "change a choice. For eager only if no graph ran. NAME.bound: the largest distance of a right result, "
        "infinite if unknown (for integers 0 or infinite). For floats also NAME.norm, the bound of the root of the "
        "sum of squares of each token's values; NAME.spread, the expected size of that; NAME.all, the bound of all "
        "tokens together, each divided by its spread. kv_slots: the slots that the call should write; kv_rows: their "
        "contents with bounds; kv_graph, kv_eager: the contents that the two paths left.")
    REFERENCE_GRAPH = PathRow("reference_graph", When.STEP,
        where="the graph chose other integers than eager",
        arrays="as reference",
        meaning="The same with the integers that the graph chose.")
    VERIFY = PathRow("verify", When.STEP, sessions=OF_MOVES,
        where="the release has the move",
        arrays="targets, sources int64 [n]; kv_slots, kv_rows as graph; outside int64 []; freed, left, lengths, "
        "draft_slots int64 [n]",
        meaning="A move of the release (repro/cases/kv_move_model.py says where its rows belong) as passed to the KV "
        "cache, and the changes that it made. All moves start from the same memory. outside: 1 if a target or source "
        "is no slot, so that no row was moved. freed, left, lengths, draft_slots: lists that come with the move.")
    VERIFY_TAIL = PathRow("verify_tail", When.STEP, sessions=OF_MOVES,
        where="the release has the move", arrays="as verify",
        meaning="As verify, followed by places without accepted tokens: the targets have a tail.")
    ACCEPT = PathRow("accept", When.STEP, sessions=OF_MOVES,
        where="the release has the move", arrays="as verify",
        meaning="As verify, for accepted rows.")
    BRANCHES = PathRow("branches", When.STEP, sessions=OF_MOVES,
        where="the release has the move, and branches have pages of their own", arrays="as verify",
        meaning="As verify, for each branch's copy of the prefix's last page.")
    PADDING = PathRow("padding", When.STEP, sessions=EAGER_VERIFY, arrays="at, tokens, requests int64 [n]",
        meaning="Tokens and requests of the batch right after padding, and the moment.")
    RANKS = PathRow("ranks", When.STEP, sessions=EAGER_VERIFY, arrays="NAME int64 [n]",
        meaning="The numbers of all ranks that the padded batch and parallel layers get.")
    ATTENTION = PathRow("attention", When.STEP, sessions=EAGER_VERIFY,
        arrays="at, tokens, requests, planned_tokens, planned_requests int64 [n]",
        meaning="Tokens and requests when attention runs; planned_*: those of the metadata in use, -1 if it does not "
        "have them.")
    SERVED = PathRow("served", When.STEP, sessions=OF_ROUNDS,
        arrays="tokens, best int64 [raw_bs, n]; behind, off, returned, likely, prompt[_likely], states, drafts float64 "
        "[raw_bs, n]; [prompt_, states_, drafts_]noise float64, ended, COUNT int64, aborted, update bool; "
        "[noise_]state_LAYER", meaning="Each text; the target's in float64, how far it and drafts lie behind, "
        "logits, states off, log-probabilities returned, right, noise's reach; ended: 2 if aborted; COUNT: reported.")
    HOLDINGS = PathRow("holdings", When.ONCE, sessions=OF_ROUNDS,
        arrays="NAME int64 [3]", meaning="Of no request: at the start, when all have ended, after a flush.")
    FREED = PathRow("freed", When.ONCE, sessions=OF_ROUNDS, engines=EMULATED,
        arrays="frees int64 []; WHAT at PLACE uint8 [n]",
        meaning="The frees that were looked at; places that free what is free, and who freed it before, in UTF-8.")
    PADDED = PathRow("padded", When.ONCE, sessions=OF_ROUNDS & RANKED, oracle="padded", where="some run eagerly",
        arrays="rows, NAME int64 [n, 2]", meaning="Of each batch to be padded its requests and rows; of each list of "
        "the scheduler's batch its entries before a forward and behind it.")
    COLLECTIVES = PathRow("collectives", When.ONCE, sessions=OF_ROUNDS & SHARED, oracle="collectives",
        arrays="graph, eager uint8 [n]", meaning="The collectives of each forward of the worker, with graphs and "
        "without: a list in JSON, of requests, prefills, samples, padding, and calls as kind, is_own, dtype, shape.")
    ROUND_GRAPH = PathRow("round_graph", When.ROUND, sessions=OF_ROUNDS,
        arrays="requests, slots, seq_lens, accepted, bonus, new_seq_lens int64 [n]; drafted, retrieve_next_token, "
        "retrieve_next_sibling, tokens int64 [n, num_draft_tokens]; logits float32 [n, num_draft_tokens]; topk_p, "
        "topk_index [n, topk]; hidden_states [n, hidden]; WHOSE_KIND float32 [n, context]; state_LAYER float32 [n]",
        meaning="A decode round as the worker hands it on: its requests (-1: one that ended before), what was drafted, "
        "which tokens were accepted, what the next draft gets; one number for each token's logits, KV row and state.")
    RELAY = PathRow("relay", When.ROUND, sessions=OF_ROUNDS, oracle="handed_on",
        where="all of its requests have been prefilled",
        arrays="stages int64 [n]; given_NAME, handed_NAME [n, ...]: topk_p, topk_index, hidden_states, bonus_tokens",
        meaning="The inputs of the round's draft, and those that each request's last stage handed on. stages: 0 a "
        "round, 1 a prefill, 2 a prefill behind a retraction.")
    AFRESH = PathRow("afresh", When.ONCE, sessions=OF_ROUNDS, oracle="kv_rows",
        where="all requests have ended, and not all by an abort",
        arrays="requests, lengths, cached int64 [n]; WHOSE_KIND float32 [n, context]; noise_WHOSE_KIND float32 [n]",
        meaning="KV rows of prompt and text of each request, one number a token, from one prefill that shares no "
        "prefix. cached: tokens found in the tree cache. noise_: how far rounding to eight bits moves them.")
    ROUND_LAUNCH = PathRow("round_launch", When.ROUND_LAUNCH, sessions=OF_ROUNDS, where="a graph is launched",
        arrays="RUNNER/PATH/NAME", meaning="What a session of that runner records of a launch, and as req_to_token "
        "row 0 and the rows of the batch's requests; freed: which ended before. The first has what padding must hold.")
    GRAPHS_ASKED = PathRow("graphs_asked", When.ONCE, sessions=OF_ROUNDS, oracle="fallback",
        where="sglang asks a runner with graphs", arrays="RUNNER int64 [n, 3], RUNNER sizes int64 [graphs]",
        meaning="Of each batch its requests, for prefill its tokens; 1 if nothing but its size lets sglang do without "
        "a graph; and 1 if a graph is taken. Sizes of the captured graphs.")
    LIVENESS = PathRow("liveness", When.LAUNCHES, sessions=GRAPHS & ON_GPU, engines=EMULATED, oracle="liveness",
        arrays="inputs int64 []; NAME uint8 [n]", meaning="inputs: storages that the first graph uses and did not "
        "make. NAME: one that sglang let go of, by the way from its owner or its form; its fate and lines, in UTF-8.")
    LIFETIME = PathRow("lifetime", When.ONCE, sessions=OF_ROUNDS, engines=EMULATED, oracle="lifetime",
        where="a graph is replayed", arrays="replays int64 []; GRAPH read by READER uint8 [n]",
        meaning="The replays that were watched; reads of outputs over whose memory a later replay had gone: reader and "
        "replays between, in UTF-8.")
    ORDER = PathRow("order", When.ONCE, sessions=OF_ROUNDS, engines=EMULATED, oracle="order",
        arrays="accesses int64 []; KIND: PLACE and PLACE uint8 [n]",
        meaning="1 if accesses to a device's memory were looked at; pairs that no event orders, the later one "
        "first, with their streams, in UTF-8.")
    ROUND_EAGER = PathRow("round_eager", When.ROUND, sessions=OF_ROUNDS,
        where="all requests have ended", arrays="as round_graph",
        meaning="The same rounds on the same workers without graphs.")
    ROUND_NUDGED_UP = PathRow("round_nudged_up", When.ROUND, sessions=OF_ROUNDS,
        where="a whole number differs without graphs", arrays="as round_graph",
        meaning="Once more without graphs, with token embeddings moved up by rounding noise.")
    ROUND_NUDGED_DOWN = PathRow("round_nudged_down", When.ROUND, sessions=OF_ROUNDS,
        where="a whole number differs without graphs", arrays="as round_graph",
        meaning="The same, moved down.")
    # fmt: on


PATHS = tuple(path.row for path in Recorded)

# The moves of kv_move; the two paths of a step, the third opinion on each, and eager passes that show how far rounding
# carries.
MOVES = (Recorded.VERIFY, Recorded.VERIFY_TAIL, Recorded.ACCEPT, Recorded.BRANCHES)
BOTH = (Recorded.GRAPH, Recorded.EAGER)
OPINIONS = {Recorded.EAGER: Recorded.REFERENCE, Recorded.GRAPH: Recorded.REFERENCE_GRAPH}
VARIANTS = (Recorded.EAGER_AGAIN, Recorded.EAGER_NUDGED_UP, Recorded.EAGER_NUDGED_DOWN)


def row_of(path: str) -> PathRow | None:
    """The row of a path as it is recorded, numbered or not; None if it has none."""
    name, _, number = path.partition(".")
    row = next((row for row in PATHS if row.name == name), None)
    return row if row and (not number or (row.numbered and number.isdecimal())) else None


def recorded_by(setup: Setup, engine: str) -> Iterator[PathRow]:
    """The rows of what a session of this setup may record on this engine."""
    return (row for row in PATHS if engine in row.engines and row.sessions.hold(setup))
