"""Every value that an oracle lets pass although it is not what a plain model says: in which releases, and the line of
sglang that makes it harmless. Where no row holds, oracles are strict.

A row ends with the last release that has its line. There is none where a release resets the same buffer on purpose in
another runner or on a later path, or says in its source that it must: there the stale value is a failure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from repro.cases.releases import release_order

# Blocks for which a request has KV slots, behind a length that may be that of two rounds ago.
RESERVED_BLOCKS = 4
FINITE = 60_000  # beyond every activation of these models, and a number in every dtype


class Sized(Protocol):
    """The parts of a Setup that bound what a row may hold."""

    @property
    def runner(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def page_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def context_len(self) -> int: ...
    @property
    def overhang(self) -> int: ...
    @property
    def num_draft_tokens(self) -> int: ...
    @property
    def max_bs(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemption:
    """One row. oracle, value: who lets which buffer, field or attribute pass. runners, backends: where; empty is
    anywhere. family, algorithms: of which models, and of which drafts; empty: any. since, until: the first and the last
    release; empty is no limit.
    within: the half-open range that the value must lie in all the same; None: any. stale: whether it may be what an
    earlier batch left, which is counted. because: sglang's file and function, and what makes it harmless."""

    oracle: str
    value: str
    because: str
    runners: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    family: str = ""
    algorithms: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    within: Callable[[Sized], tuple[float, float]] | None = None
    stale: bool = False

    def holds(self, runner: str, backend: str, release: str) -> bool:
        """True if it is about this runner over this backend in this release. A text that is no release's number, as
        the toy's, is in no range that has a limit."""
        if (self.runners and runner not in self.runners) or (self.backends and backend not in self.backends):
            return False
        if not (self.since or self.until):
            return True
        try:
            order = release_order(release)
        except ValueError:
            return False
        return (not self.since or order >= release_order(self.since)) and (
            not self.until or order <= release_order(self.until)
        )


def exempted(oracle: str, setup: Sized, release: str) -> Mapping[str, Exemption]:
    """The rows of an oracle that hold for this setup in this release, by value."""
    rows = _holding(EXEMPTIONS, oracle, setup.runner, setup.backend, release)
    return {
        value: row
        for value, row in rows.items()
        if row.family in ("", setup.family) and setup.algorithm in (row.algorithms or (setup.algorithm,))
    }


@functools.lru_cache(maxsize=1024)
def _holding(
    rows: tuple[Exemption, ...], oracle: str, runner: str, backend: str, release: str
) -> Mapping[str, Exemption]:
    return {row.value: row for row in rows if row.oracle == oracle and row.holds(runner, backend, release)}


def _vocabulary(setup: Sized) -> tuple[float, float]:
    return 0, setup.vocab_size


def _places(setup: Sized) -> tuple[float, float]:
    return 0, setup.context_len + setup.overhang


def _numbers(setup: Sized) -> tuple[float, float]:
    return -FINITE, FINITE


def _tokens_of_a_row(setup: Sized) -> tuple[float, float]:
    return 0, setup.num_draft_tokens


def _tokens_of_all(setup: Sized) -> tuple[float, float]:
    return 0, setup.max_bs * setup.num_draft_tokens


def _reserved_blocks(setup: Sized) -> tuple[float, float]:
    """The distance of a length on the host from the device's. A block of DSPARK has a token less than its verify."""
    return 0, RESERVED_BLOCKS * (setup.num_draft_tokens + (setup.algorithm == "DSPARK")) + setup.page_size


_BLOCKS = ("DFLASH", "DSPARK")
_TARGETS = ("decode", "verify", "cpu_decode")
# What padded rows of input buffers may hold instead of a neutral value.
_PADDED = (
    Exemption(
        oracle="slot0_padding",
        value="input_ids",
        runners=_TARGETS,
        within=_vocabulary,
        stale=True,
        because="build_decode_registry (model_executor/cuda_graph_buffer_registry.py; up to 0.5.12 "
        "DecodeInputBuffers.populate_from_forward_batch) copies its head alone: a padded row computes an old token "
        "again, and its keys and values go to KV slot 0. It indexes the embeddings.",
    ),
    Exemption(
        oracle="slot0_padding",
        value="positions",
        runners=("cpu_decode",),
        within=_places,
        stale=True,
        because="CPUGraphRunner.prepare_replay (model_executor/cpu_graph_runner.py) copies their head alone, and "
        "intel_amx reads none: only the rotation of a padded row's query and key takes them. The GPU's runner resets "
        "them since 0.5.14 (#24401).",
    ),
    Exemption(
        oracle="slot0_padding",
        value="num_accept_tokens",
        runners=("multi_layer",),
        until="0.5.10.post1",
        within=lambda setup: (0, setup.num_draft_tokens + 1),
        stale=True,
        because="accept_length, by which a row's token is picked as by num_correct_drafts since.",
    ),
    Exemption(
        oracle="slot0_padding",
        value="input_ids",
        runners=("draft_extend",),
        within=_vocabulary,
        stale=True,
        because="EAGLEDraftExtendCudaGraphRunner.replay (since 0.5.14 execute) copies [:num_tokens]: a padded row has "
        "no prefix and nobody else's tokens in view, its logits are cut off. It indexes the embeddings.",
    ),
    Exemption(
        oracle="slot0_padding",
        value="hidden_states",
        runners=("draft_extend", "multi_layer"),
        within=_numbers,
        stale=True,
        because='as input_ids of draft_extend; "the padded tail is never read", says '
        "fill_draft_extend_prepare_buffers_kernel (kernels/ops/speculative/multi_layer_eagle.py, 0.5.16). What the row "
        "leaves in KV slot 0 must be numbers: a mask by multiplication does not stop a NaN (#23037).",
    ),
    Exemption(
        oracle="slot0_padding",
        value="select_index",
        runners=("draft_extend",),
        since="0.5.20",
        within=_tokens_of_all,
        stale=True,
        because="EAGLEDraftExtendCudaGraphRunner.execute copies [:raw_bs], and cuts what is drawn to [:raw_bs]. It "
        "indexes the tokens of the batch.",
    ),
    Exemption(
        oracle="slot0_padding",
        value="num_correct_drafts",
        runners=("multi_layer",),
        since="0.5.11",
        within=_tokens_of_a_row,
        stale=True,
        because='it picks the token from which a padded row draws, "whose gather result is discarded", says '
        "fill_draft_extend_prepare_buffers_kernel (kernels/ops/speculative/multi_layer_eagle.py, 0.5.16); before, "
        "replay (MultiLayerEagleDraftExtendCudaGraphRunner) cuts it off by [:raw_bs].",
    ),
    Exemption(
        oracle="slot0_padding",
        value="num_accept_tokens",
        runners=("multi_layer",),
        since="0.5.16",
        within=lambda setup: (-1, 0),
        because="fill_draft_extend_prepare_buffers_kernel (kernels/ops/speculative/multi_layer_eagle.py) fills in -1, "
        '"so the sconv commit skips" padded rows.',
    ),
    Exemption(
        oracle="slot0_padding",
        value="temperatures",
        runners=("draft",),
        since="0.5.14",
        within=lambda setup: (1e-6, FINITE),
        stale=True,
        because="EAGLEDraftCudaGraphRunner.execute copies [:raw_bs]; what a padded row draws by it, "
        "_postprocess_output_to_raw_bs cuts off. It must be able to draw: sglang's smallest temperature is 1e-6.",
    ),
    Exemption(
        oracle="slot0_padding",
        value="top_ks",
        runners=("draft",),
        since="0.5.21",
        within=lambda setup: (1, 1 << 31),
        stale=True,
        because="as temperatures.",
    ),
    *(
        Exemption(
            oracle="slot0_padding",
            value=value,
            runners=("frozen_kv_mtp",),
            until=until,
            since=since,
            within=within,
            stale=True,
            because="FrozenKVMTPCudaGraphRunner.replay (since 0.5.14 execute) copies [:raw_bs]; drafts of padded rows "
            "are cut off (_postprocess_output_to_raw_bs), and no KV is written. Token ids index the embeddings.",
        )
        for value, since, until, within in (
            ("bonus_tokens", "0.5.13", "", _vocabulary),
            ("topk_index", "", "0.5.12.post1", _vocabulary),
            ("topk_p", "", "0.5.12.post1", lambda setup: (0, 2)),
            ("hidden_states", "", "", lambda setup: (-2, 2)),
        )
    ),
    Exemption(
        oracle="slot0_padding",
        value="seq_lens_cpu of a batch without",
        since="0.5.13",
        stale=True,
        because="runners refresh the host's mirror for a batch that has one (`if forward_batch.seq_lens_cpu is not "
        "None`). Whoever hands it on all the same is for `planned`, as up to 0.5.15.post1.",
    ),
)
_PLANNED = (
    Exemption(
        oracle="planned",
        value="seq_lens_sum",
        runners=("draft", "draft_v1"),
        backends=("triton", "fa3"),
        until="0.5.13.post1",
        stale=True,
        because="TritonMultiStepDraftBackend.common_template (layers/attention/triton_backend.py) cuts the indices of "
        "the eager path alone by it; FlashAttention's takes it as an argument and reads it nowhere. Over flashinfer, "
        "which reads it, it is a failure.",
    ),
    Exemption(
        oracle="planned",
        value="seq_lens_sum",
        runners=("cpu_decode",),
        stale=True,
        because="CPUGraphRunner.prepare_replay plans with the batch that was captured and leaves its sum; "
        "IntelAMXAttnBackend.init_forward_metadata (layers/attention/intel_amx_backend.py) asks for none.",
    ),
    Exemption(
        oracle="planned",
        value="eager's backend",
        runners=("draft_extend",),
        until="0.5.13.post1",
        because="EagleDraftWorker.init_attention_backend (speculative/eagle_worker_v2.py) leaves the draft model its "
        "own backend, which draft-extends without a graph plan and run: of the same kind, made of the same arguments.",
    ),
    *(
        Exemption(
            oracle="planned",
            value=value,
            runners=("verify",),
            algorithms=_BLOCKS,
            since="0.5.14",
            within=_reserved_blocks,
            because="DFlashDraftInputV2.prepare_for_decode (speculative/dflash_info_v2.py, 0.5.23:149) makes lengths "
            "on the host bounds, of the KV slots that it reserves: kernels go by the lengths on the device.",
        )
        for value in ("seq_lens_cpu", "seq_lens_sum")
    ),
)
_HISTORY = (
    Exemption(
        oracle="history",
        value="select_index",
        runners=("multi_layer",),
        since="0.5.15",
        stale=True,
        because="made of num_correct_drafts, rows of padding included (slot0_padding): any token of that row.",
    ),
    Exemption(
        oracle="history",
        value="retrieve_parent_token_list",
        runners=("verify",),
        backends=("triton",),
        family="nemotron_h",
        since="0.5.17",
        stale=True,
        because="_selective_scan_update_kernel (kernels/ops/mamba/triton_ops/mamba_ssm.py, 0.5.23:229) reads parents "
        "of padded rows, too, for which no convolution made any. Its load of a parent's state is masked there (:202, "
        "`state_batch_idx != pad_slot_id`), it stores no state (:289), and what it gives goes to KV slot 0.",
    ),
)
# Fields whose integers are as wide in no graph as in an eager pass.
_WIDTHS = tuple(
    Exemption(
        oracle="extents",
        value=value,
        runners=runners,
        until=until,
        because=f"{where} makes it int32, schedulers int64: backends take either (`.to(torch.int32)`).",
    )
    for value in ("seq_lens", "seq_lens_cpu")
    for runners, until, where in (
        (("draft", "draft_v1", "draft_extend"), "0.5.13.post1", "__init__ of EAGLE's graph runners"),
        (("decode", "verify"), "0.5.13.post1", "DecodeInputBuffers.create (model_executor/cuda_graph_runner.py)"),
        (("frozen_kv_mtp",), "0.5.13.post1", "FrozenKVMTPCudaGraphRunner.__init__"),
        (("multi_layer",), "", "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner._allocate_buffers"),
    )
)
_LENGTHS = (
    Exemption(
        oracle="extents",
        value="spec_info.",
        runners=("verify",),
        algorithms=_BLOCKS,
        since="0.5.14",
        because="make_draft_block_spec_info (speculative/draft_worker_common.py, 0.5.23:133) makes one of tensors "
        "without entries for the drafts of all blocks: a draft takes tokens and positions from its batch.",
    ),
)
_ROUNDS = (
    Exemption(
        oracle="kv_rows",
        value="rows of the draft",
        runners=("round",),
        family="mimo_v2_flash",
        since="0.5.15",
        because="_draft_extend_for_decode (speculative/multi_layer_eagle_worker_v2.py) goes on from a layer's draws "
        "behind the last accepted token, and never makes these rows again: models without convolutions must skip "
        "the fix, says _init_boundary_kv_fix_state (0.5.23:251). No text depends on them; acceptance does.",
    ),
)
# Input buffers of graph runners that no family names, and which are not held to the batch's field of their name.
_STAGED = tuple(
    Exemption(oracle="staged", value=value, runners=runners, since=since, because=because)
    for value, runners, since, because in (
        ("custom_mask", (), "", "of the batch that is captured; attention backends have their own"),
        ("extend_start_loc", (), "", "made from extend_seq_lens at capture, and the same for every batch"),
        ("select_index", (), "", "made from the counts of accepted tokens when the graph is launched"),
        ("num_token_non_padded", (), "", "the number of tokens of this rank, which parallel experts ask for"),
        ("topk_p", ("frozen_kv_mtp",), "0.5.13", "the graph makes the first drafts itself"),
        ("topk_index", ("frozen_kv_mtp",), "0.5.13", "the graph makes the first drafts itself"),
    )
)
# Buffers that some batches have no field for; they are not watched there.
_UNWATCHED = tuple(
    Exemption(oracle="unwatched", value=value, because=because)
    for value, because in (
        ("input_ids", "drafts: made in the graph from topk_index"),
        ("extend_seq_lens", "drafts: of drafts that extend by one token"),
        ("mrope_positions", "of models with positions in three dimensions, where the setup has none"),
        ("input_embeds", "of batches with embeddings in place of tokens"),
        ("encoder_lens", "of models with an encoder"),
        ("swa_out_cache_loc", "of target models on SWA pools"),
        ("global_num_tokens_gpu", "of several ranks"),
        ("global_num_tokens_for_logprob_gpu", "of several ranks"),
        ("temperatures", "of rejection sampling"),
        ("top_ks", "of rejection sampling"),
    )
)
EXEMPTIONS: tuple[Exemption, ...] = (
    *_PADDED,
    *_PLANNED,
    *_HISTORY,
    *_WIDTHS,
    *_LENGTHS,
    *_ROUNDS,
    *_STAGED,
    *_UNWATCHED,
)
