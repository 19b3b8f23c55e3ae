"""The facts of each runner: one row a runner, read by all packages, the docs and the Makefile.

Generators, validity and shrinking read what a setup may be; sessions how it is driven; oracles what its record holds
and which of them judge it; reports which buffers to draw. A new runner is a row here and a folder in
runners/releases/adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from repro.cases import reads, room
from repro.cases.layout import Paged
from repro.cases.reads import Reads

# Buffers with one row a request, in the order in which pictures show them (names: repro.traces.paths).
_CALLER = ("seq_lens", "req_pool_indices")  # what every caller gives
_DRAFT = ("seq_lens", "req_pool_indices", "out_cache_loc", "positions", "topk_p", "topk_index", "hidden_states")
_DECODE = ("input_ids", "seq_lens", "req_pool_indices", "out_cache_loc", "positions")
_COUNTS = ("extend_seq_lens", "num_accept_tokens", "num_correct_drafts")
_EXTEND = ("seq_lens", "req_pool_indices", "out_cache_loc", "positions", "input_ids", "hidden_states", *_COUNTS)
_FROZEN = ("seq_lens", "req_pool_indices", "positions", "bonus_tokens", "hidden_states")

ALL_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN")
# Those whose workers are not EAGLE's, by name: rounds alone have them.
OF_OTHER_WORKERS = ("STANDALONE", "DFLASH", "NGRAM", "DSPARK")
# Those that draft a whole block of tokens in one pass, so that there is one draft step whatever the block's length.
IN_BLOCKS = frozenset({"DFLASH", "DSPARK"})
# Of these, one whose first token drafts, too, so that a block has a token less than its verify; each token of it is
# chosen by the one before, through a Markov head.
MARKOV = "DSPARK"
# Those that draft from a table of n-grams, with no draft model: trees of any depth, of which topk is the most breadth.
FROM_TABLE = frozenset({"NGRAM"})
WITHOUT_STEPS = IN_BLOCKS | FROM_TABLE
# Algorithms whose target keeps latent vectors for keys and values; few backends have kernels for those.
LATENT = frozenset({"NEXTN"})
# The one runner that no sglang has: its targets are those of the toy engine.
TOY = "toy"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerFacts:
    """One row of RUNNER_FACTS."""

    # What of sglang is driven, in words.
    what: str
    # A name in sglang's words, for the title of an issue.
    title: str = ""
    # The attention backends and speculative algorithms with which there is such a runner; the simplest first.
    backends: tuple[str, ...] = ("triton",)
    algorithms: tuple[str, ...] = ("EAGLE",)
    # The first and the last release (all that belong to it included) in which it can be driven; "" is no limit.
    since: str = ""
    until: str = ""
    # The first release with this backend, and with topk above 1, where that is later.
    backend_since: Mapping[str, str] = field(default_factory=dict)
    branches_since: str = ""
    # Fewest draft steps.
    num_steps_min: int = 1
    # Most draft steps.
    num_steps_max: int = 6
    # Which model's layers may have a window (Setup.window): "target" or "draft".
    windowed: str = ""
    # Whether its models' attention may have a logit cap (Setup.logit_cap).
    capped: bool = False
    # Whether its keys and values may be kept in eight bits (Setup.kv_dtype).
    quantises: bool = False
    # Whether its draft model may have positions in three dimensions (Setup.mrope), with EAGLE3.
    mrope: bool = False
    # Whether its drafts may be drawn at random (Setup.rejection).
    rejects: bool = False
    # Whether its worker may change its number of draft steps (Setup.adaptive).
    adapts: bool = False
    # Whether its batches have lengths on the host in every release.
    host_lengths: bool = False
    # Whether eager takes a batch that no graph holds, in the same session.
    falls_back: bool = False
    # Whether its batches may ask for hidden states (Step.hidden).
    asks_hidden: bool = False
    # Whether request slots may own other KV slots from one call to the next (Step.layout).
    relocates: bool = False
    # Whether its drafts and trees may reach behind the context (Setup.overhang).
    overhangs: bool = False
    # How many tokens of each request are counted where ranks tell each other of theirs (Setup.dp_attention); None where
    # that is not driven.
    rank_tokens: Callable[[Paged], int] | None = None
    # Whether it is asked to replay a graph for a batch of no requests.
    idles: bool = False
    # The first release in which eager takes such a batch as well, which MLP synchronisation pads to the busy rank's;
    # before, batches are told of ranks in another way.
    idles_eagerly_since: str = ""
    # False where there is no draft, so that topk and num_steps are 1 and mean nothing.
    speculative: bool = True
    # False where topk is 1; trees: True where it is more.
    branches: bool = True
    trees: bool = False
    # Its draft model is a Llama whose sizes may be others than the target's (repro/cases/rows/draft_model.py).
    drafts_apart: bool = False
    # Its draft model has several layers that draw one after the other (Setup.one_graph).
    layered: bool = False
    # A request says how many drafts were accepted.
    accepts: bool = False
    # It is driven at the level of the scheduler: steps are groups of arrivals, requests prompts (Request.further).
    serves: bool = False
    # The runners whose graphs it launches, in rounds.
    launches: tuple[str, ...] = ()
    # It runs no model, so that its contexts may be long.
    light: bool = False
    # Capturing a bucket takes seconds, so that cases have few of them.
    compiled: bool = False
    # How many positions of its row of req_to_token a request of seq_len tokens uses.
    room: Callable[[Paged, int], int] = room.draft_room
    # Whether a graph is captured and replayed, so that there are buckets, padding and an eager path to compare with.
    graph: bool = True
    # The module of runners/sessions that opens its sessions where no graph is replayed; and the folder of
    # runners/releases/adapters with what is driven, where that is not the runner's own name.
    session: str = ""
    adapters: str = ""
    # sglang's class of worker, where one of its methods is driven by itself.
    worker: str = ""
    # What the metadata of its attention calls must say; empty where none is recorded.
    reads: tuple[Reads, ...] = ()
    # The oracles that judge only this runner and those like it. Without a graph a pass rests on them.
    own_oracles: tuple[str, ...] = ()
    # Buffers with one row a request, as pictures show them.
    row_buffers: tuple[str, ...] = _CALLER


_DRAFTS = Reads(calls=reads.call_per_draft_step, positions=reads.drafts)
_DRAFTS_IN_WINDOW = replace(_DRAFTS, prefix="window_", fewest=reads.draft_in_reach)
_BEFORE_TREE = Reads(calls=reads.one_call, positions=reads.before_tree, queries=reads.tree_queries, of_tree=True)
# Of later layers no metadata is recorded, but what they read.
_BEFORE_GROWN_TREES = tuple(
    Reads(calls=reads.one_call, positions=reads.before_grown_tree(layer), prefix=f"layer_{layer}_", layer=layer)
    for layer in range(1, 6)
)
_IN_WINDOW = Reads(calls=reads.one_call, positions=reads.in_window, prefix="window_")
_BEFORE_TREE_IN_WINDOW = replace(_BEFORE_TREE, prefix="window_", queries=None, fewest=reads.in_reach)
_VERIFIED = Reads(calls=reads.one_call, positions=reads.verified, queries=reads.tree_queries, of_tree=True)
_VERIFIED_IN_WINDOW = Reads(
    calls=reads.one_call, positions=reads.verified_in_window, prefix="window_", fewest=reads.in_reach, of_tree=True
)
_VERIFIED_EAGERLY = RunnerFacts(
    title="verify without a graph",
    what="`EAGLEWorkerV2.verify` without a graph up to sampling, in a group whose other rank is busier, so that MLP "
    "synchronisation pads the batch",
    backends=("triton", "fa3"),
    branches=False,
    room=room.extend_room,
    graph=False,
    session="verify_eager",
    adapters="verify_eager",
    worker="EAGLEWorkerV2",
    own_oracles=("metadata_once", "verified"),
)

RUNNER_FACTS = {
    "draft": RunnerFacts(
        title="EAGLEDraftCudaGraphRunner",
        drafts_apart=True,
        rank_tokens=lambda setup: setup.topk,
        falls_back=True,
        adapts=True,
        relocates=True,
        idles=True,
        # Before, such a rank drafted as if it had requests, and failed where it was padded.
        idles_eagerly_since="0.5.19",
        overhangs=True,
        windowed="draft",
        capped=True,
        quantises=True,
        mrope=True,
        rejects=True,
        num_steps_max=20,
        what="`EAGLEDraftCudaGraphRunner`: several draft steps in one graph",
        backends=("triton", "flashinfer", "fa3", "trtllm_mha"),
        algorithms=ALL_ALGORITHMS,
        # sglang captures no draft graph for a single step: that step only samples.
        num_steps_min=2,
        reads=(_DRAFTS, _DRAFTS_IN_WINDOW),
        row_buffers=_DRAFT,
    ),
    "draft_v1": RunnerFacts(
        title="EAGLEDraftCudaGraphRunner of the v1 worker",
        falls_back=True,
        relocates=True,
        what="the same on `EAGLEWorker`, the first of sglang's workers",
        algorithms=ALL_ALGORITHMS,
        until="0.5.12.post1",
        num_steps_min=2,
        reads=(_DRAFTS,),
        row_buffers=_DRAFT,
    ),
    "decode": RunnerFacts(
        title="the target's CUDA-graph runner",
        rank_tokens=lambda setup: 1,
        falls_back=True,
        relocates=True,
        idles=True,
        idles_eagerly_since="0.5.14",
        asks_hidden=True,
        windowed="target",
        capped=True,
        quantises=True,
        what="the target's `CudaGraphRunner`, from 0.5.14 on `DecodeCudaGraphRunner`: one token a request",
        backends=("triton", "flashinfer", "fa3", "trtllm_mha"),
        speculative=False,
        room=room.decode_room,
        reads=(Reads(calls=reads.one_call, positions=reads.tokens), _IN_WINDOW),
        row_buffers=_DECODE,
    ),
    "cpu_decode": RunnerFacts(
        title="CPUGraphRunner",
        what="`CPUGraphRunner`, compiled by TorchInductor and g++",
        backends=("intel_amx",),
        speculative=False,
        compiled=True,
        room=room.decode_room,
        row_buffers=_DECODE,
    ),
    "verify": RunnerFacts(
        title="the target's CUDA-graph runner in target-verify mode",
        drafts_apart=True,
        rank_tokens=lambda setup: setup.num_draft_tokens,
        falls_back=True,
        adapts=True,
        relocates=True,
        idles=True,
        idles_eagerly_since="0.5.14",
        overhangs=True,
        windowed="target",
        capped=True,
        quantises=True,
        num_steps_max=20,
        what="the target's runner in target-verify mode: before each call the draft worker's own eager draft proposes "
        "a tree and sglang's `build_tree_kernel_efficient` writes mask and positions",
        backends=("triton", "flashinfer", "fa3", "trtllm_mha"),
        algorithms=("EAGLE", "EAGLE3"),
        room=room.verify_room,
        reads=(_VERIFIED, _VERIFIED_IN_WINDOW),
        own_oracles=("tree_mask",),
        row_buffers=_DECODE,
    ),
    "frozen_kv_mtp": RunnerFacts(
        title="FrozenKVMTPCudaGraphRunner",
        host_lengths=True,
        falls_back=True,
        relocates=True,
        what="`FrozenKVMTPCudaGraphRunner`: a tiny Gemma-4 target and assistant; the batch is expanded by topk, no KV "
        "is written",
        since="0.5.12",
        num_steps_min=2,
        room=room.prefix_room,
        reads=(
            Reads(calls=reads.one_call, positions=reads.prefixes),
            Reads(calls=reads.one_call, positions=reads.windows, prefix="window_"),
        ),
        row_buffers=_FROZEN,
    ),
    "draft_extend": RunnerFacts(
        title="EAGLEDraftExtendCudaGraphRunner",
        drafts_apart=True,
        rank_tokens=lambda setup: setup.num_draft_tokens,
        falls_back=True,
        adapts=True,
        relocates=True,
        idles=True,
        idles_eagerly_since="0.5.14",
        overhangs=True,
        windowed="draft",
        capped=True,
        quantises=True,
        mrope=True,
        what="`EAGLEDraftExtendCudaGraphRunner` in DRAFT_EXTEND_V2: num_draft_tokens tokens a request, of which the "
        "request's `accepted` picks the one from which the next draft is drawn",
        backends=("triton", "flashinfer", "fa3", "trtllm_mha"),
        algorithms=ALL_ALGORITHMS,
        backend_since={"flashinfer": "0.5.14", "fa3": "0.5.23", "trtllm_mha": "0.5.13"},
        branches_since="0.5.13",
        accepts=True,
        room=room.extend_room,
        reads=(_BEFORE_TREE, _BEFORE_TREE_IN_WINDOW),
        row_buffers=_EXTEND,
    ),
    "multi_layer": RunnerFacts(
        title="MultiLayerEagleDraftExtendCudaGraphRunner",
        falls_back=True,
        relocates=True,
        idles=True,
        overhangs=True,
        what="`MultiLayerEagleDraftExtendCudaGraphRunner` and its composite: a Llama target, one to six tiny MiMo-V2 "
        "MTP layers, each of which draws one token",
        layered=True,
        backends=("triton", "fa3", "trtllm_mha"),
        # 0.5.10.post1 has it for FlashAttention 3 alone. Up to 0.5.15.post1 no capture over trtllm_mha ends (#31367).
        backend_since={"triton": "0.5.11", "trtllm_mha": "0.5.16"},
        accepts=True,
        branches=False,
        room=room.extend_room,
        # With a graph for each layer, later layers have no metadata yet at the first launch.
        reads=(replace(_BEFORE_TREE, calls=reads.call_per_graphs_layer), *_BEFORE_GROWN_TREES),
        row_buffers=_EXTEND,
    ),
    "verify_eager": _VERIFIED_EAGERLY,
    # Trees apart, as their batches are padded wrongly in every release.
    "verify_eager_tree": replace(
        _VERIFIED_EAGERLY,
        title="verify of a tree without a graph",
        what="the same with topk > 1",
        branches=True,
        trees=True,
    ),
    "verify_eager_multi_layer": replace(
        _VERIFIED_EAGERLY,
        title="multi-layer verify without a graph",
        what="the same by `MultiLayerEagleWorkerV2`",
        worker="MultiLayerEagleWorkerV2",
    ),
    "kv_move": RunnerFacts(
        title="the KV moves after a verify",
        what="moves of KV rows over poisoned memory: `get_src_tgt_cache_loc` and the kernels around it, what took its "
        "place, `move_kv_cache`, the copies of a prefix's last page for each branch",
        accepts=True,
        light=True,
        room=room.moved_room,
        graph=False,
        session="kv_move",
        own_oracles=("kv_moves",),
    ),
    "round": RunnerFacts(
        title="the scheduler with EAGLE",
        backends=("triton", "flashinfer", "fa3"),
        algorithms=(*ALL_ALGORITHMS, *OF_OTHER_WORKERS),
        host_lengths=True,
        falls_back=True,
        windowed="target",
        capped=True,
        quantises=True,
        mrope=True,
        rejects=True,
        adapts=True,
        serves=True,
        launches=("draft", "verify", "draft_extend", "multi_layer", "frozen_kv_mtp"),
        what="`Scheduler` with its own event loop, and the EAGLE worker and graphs that it makes: requests arrive, are "
        "prefilled, drafted, verified and extended until they end",
        since="0.5.13",
        room=room.served_room,
        graph=False,
        session="round",
        own_oracles=("text", "logits", "rounds", "launches", "leaks", "progress", "reported"),
    ),
    TOY: RunnerFacts(
        what="the harness's own runner in numpy, with bugs on request",
        backends=("triton", "flashinfer"),
        num_steps_min=2,
        reads=(_DRAFTS,),
        row_buffers=_DRAFT,
    ),
}
