"""The table of upstream fixes: which release has the bug last and which first has the fix, what shows it, and how to
take the fix back out of a release that has it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from repro.upstream.edits import Edit

SEEDS = Path(__file__).resolve().parents[1] / "seeds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revert:
    """The edits that take a fix out of these releases: exactly its effect, and nothing that came with it but is off by
    default (probes) or is text."""

    releases: tuple[str, ...]
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One runner on which a fix is shown. seed: a file in repro/seeds. oracle: the one that must fail where the fix
    is not. engines: those on which the path runs; elsewhere: why it does not on the others. chains: whether the buggy
    release has this runner for topk 1 only. neighbours: oracles that fail in this seed for another bug, a known one,
    which is there with and without the fix."""

    runner: str
    seed: str
    oracle: str
    backend: str = "triton"
    engines: tuple[str, ...] = ("emulated", "cuda")
    elsewhere: str = ""
    chains: bool = False
    neighbours: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A merged pull request of sglang. buggy: the last release without it; fixed: the first one with it."""

    number: int
    title: str
    buggy: str
    fixed: str
    proofs: tuple[Proof, ...]
    removals: tuple[Revert, ...]

    def edits(self, release: str) -> tuple[Edit, ...]:
        """The edits that take the fix out of this release; of one that no removal names, those of the newest ones."""
        for removal in self.removals:
            if release in removal.releases:
                return removal.edits
        return self.removals[-1].edits


def not_covered(proof: Proof, engine: str, runners: Collection[str], oracles: Collection[str], stored: bool) -> str:
    """Why this proof cannot be given; empty if it can. stored: whether it is to be given by its stored seed."""
    if engine not in proof.engines:
        return f"not on the {engine} engine: {proof.elsewhere}"
    absent = [
        *([f"runner {proof.runner}"] if proof.runner not in runners else []),
        *([f"oracle {proof.oracle}"] if proof.oracle not in oracles else []),
        *([f"seed {proof.seed}"] if stored and not (SEEDS / proof.seed).is_file() else []),
    ]
    return f"not covered yet: {', '.join(absent)} missing" if absent else ""


def _drops(file: str, function: str, *statements: str) -> tuple[Edit, ...]:
    return tuple(Edit(file=file, function=function, old=statement) for statement in statements)


_SPECULATIVE = "sglang/srt/speculative/"
_EXECUTOR = "sglang/srt/model_executor/"
_FLASHINFER = "sglang/srt/layers/attention/flashinfer_backend.py"

# The newest release of which it is known how to take them out.
NEWEST = "0.5.15.post1"
# From 0.5.14 on the speculative runners derive from the target's, and their replay() became execute().
_REPLAY = ("0.5.11", "0.5.12.post1", "0.5.13", "0.5.13.post1")
_EXECUTE = ("0.5.14", "0.5.15.post1")
_SINCE_13 = ("0.5.13", "0.5.13.post1")
_ZERO_POOL_INDICES = "buffers.req_pool_indices.zero_()"


def _without_23037(method: str) -> tuple[Edit, ...]:
    # Its probes stay: they are off by default and change no buffer.
    return _drops(
        f"{_SPECULATIVE}eagle_draft_cuda_graph_runner.py",
        f"EAGLEDraftCudaGraphRunner.{method}",
        "buffers.topk_p.zero_()",
        "buffers.topk_index.zero_()",
        "buffers.hidden_states.zero_()",
        _ZERO_POOL_INDICES,
    )


def _without_26292(method: str) -> tuple[Edit, ...]:
    # The fix was made in populate_from_forward_batch; the first release that has it already keeps the target's
    # buffers in a registry, where the same statement is a padding policy.
    slot = "GraphSlot('req_pool_indices', _bs, torch.int64, axis='bs'"
    return (
        Edit(
            file=f"{_EXECUTOR}cuda_graph_buffer_registry.py",
            function="build_decode_registry",
            old=f"{slot}, padding_policy=PaddingPolicy.ZERO)",
            new=f"{slot})",
        ),
        *_drops(
            f"{_EXECUTOR}cpu_graph_runner.py",
            "CPUGraphRunner.prepare_replay",
            "captured_forward_batch.req_pool_indices.zero_()",
        ),
        *_drops(
            f"{_SPECULATIVE}eagle_draft_extend_cuda_graph_runner.py",
            f"EAGLEDraftExtendCudaGraphRunner.{method}",
            _ZERO_POOL_INDICES,
        ),
        *_drops(
            f"{_SPECULATIVE}frozen_kv_mtp_cuda_graph_runner.py",
            f"FrozenKVMTPCudaGraphRunner.{method}",
            _ZERO_POOL_INDICES,
        ),
    )


def _without_26244(file: str, function: str) -> tuple[Edit, ...]:
    """Metadata from the batch as it is before padding, and none later: as it was, in the words of releases that
    mark a batch whose metadata exists instead of passing skip_attn_backend_init."""
    return (
        Edit(
            file=_SPECULATIVE + file,
            function=function,
            old="return verify_forward_batch, can_run_cuda_graph",
            new="""
                if not can_run_cuda_graph:
                    if not batch.forward_mode.is_idle():
                        target_worker.model_runner.attn_backend.init_forward_metadata(verify_forward_batch)
                    verify_forward_batch.mark_forward_metadata_ready()
                return verify_forward_batch, can_run_cuda_graph
            """,
        ),
    )


_WITHOUT_26335 = (
    Edit(
        file=f"{_SPECULATIVE}triton_ops/cache_locs.py",
        function="get_src_tgt_cache_loc",
        old="torch.zeros_like(src_cache_loc)",
        new="torch.empty_like(src_cache_loc)",
    ),
)

_WITHOUT_27338 = (
    Edit(
        file=_FLASHINFER,
        function="FlashInferMultiStepDraftBackend.init_cuda_graph_state",
        old="draft_kv_indices_buffer_width(max_bs, self.topk, self.max_context_len)",
        new="max_bs * self.max_context_len",
    ),
    # The host's check came with the fix and would stop the run before anything overflows.
    *_drops(
        _FLASHINFER,
        "FlashInferMultiStepDraftBackend.common_template",
        """assert_buffer_fits(
            required_kv_indices_len,
            kv_indices_buffer.shape[1],
            'EAGLE draft kv_indices row (size max_bs * topk * max_context_len)',
            bs=bs,
            seq_lens_sum=seq_lens_sum,
        )""",
    ),
)


FIXES = (
    Fix(
        number=23037,
        title="EAGLE draft replay leaves stale rows in the padded part of its input buffers",
        buggy="0.5.10.post1",
        fixed="0.5.11",
        proofs=(
            Proof(
                runner="draft",
                seed="pr23037-stale-padding.json",
                oracle="slot0_padding",
                neighbours=("reference",),  # draft-positions-ahead
            ),
        ),
        removals=(
            Revert(releases=_REPLAY, edits=_without_23037("replay")),
            Revert(releases=_EXECUTE, edits=_without_23037("execute")),
        ),
    ),
    Fix(
        number=26244,
        title="EAGLE v2 verify without a graph builds attention metadata before the batch is padded",
        buggy="0.5.12.post1",
        fixed="0.5.13",
        proofs=(
            Proof(
                runner="verify_eager",
                seed="pr26244-early-metadata.json",
                oracle="metadata_once",
                neighbours=("memory",),  # verify-mask-not-padded
            ),
        ),
        removals=(
            Revert(
                releases=_SINCE_13,
                edits=_without_26244("eagle_info_v2.py", "EagleVerifyInputV2Mixin.prepare_for_v2_verify"),
            ),
            Revert(releases=_EXECUTE, edits=_without_26244("eagle_utils.py", "eagle_prepare_for_verify")),
        ),
    ),
    Fix(
        number=26292,
        title="four more runners leave stale req_pool_indices in padded rows",
        buggy="0.5.12.post1",
        fixed="0.5.13",
        proofs=(
            Proof(runner="draft_extend", seed="pr26292-draft-extend.json", oracle="slot0_padding", chains=True),
            Proof(runner="decode", seed="pr26292-decode.json", oracle="slot0_padding"),
            # Its positions are stale as well, up to 0.5.13.post1 (#24401).
            Proof(runner="verify", seed="pr26292-verify.json", oracle="kv_indices", neighbours=("slot0_padding",)),
            Proof(
                runner="cpu_decode",
                backend="intel_amx",
                seed="pr26292-cpu-decode.json",
                oracle="slot0_padding",
                engines=("emulated",),
                elsewhere="CPUGraphRunner runs on a CPU",
            ),
            Proof(runner="frozen_kv_mtp", seed="pr26292-frozen-kv-mtp.json", oracle="slot0_padding"),
        ),
        removals=(
            Revert(releases=_SINCE_13, edits=_without_26292("replay")),
            Revert(releases=_EXECUTE, edits=_without_26292("execute")),
        ),
    ),
    Fix(
        number=26335,
        title="the tail of tgt_cache_loc is uninitialised memory",
        buggy="0.5.12.post1",
        fixed="0.5.13",
        proofs=(Proof(runner="kv_move", seed="pr26335-uninitialised-tail.json", oracle="kv_moves"),),
        # From 0.5.14 on sglang itself no longer calls this function, but still has it.
        removals=(Revert(releases=(*_SINCE_13, *_EXECUTE), edits=_WITHOUT_26335),),
    ),
    Fix(
        number=27338,
        title="flashinfer's EAGLE draft kv_indices rows lack the topk factor",
        buggy="0.5.12.post1",
        fixed="0.5.13",
        proofs=(
            Proof(
                runner="draft",
                backend="flashinfer",
                seed="pr27338-row-too-narrow.json",
                oracle="kv_indices",
            ),
        ),
        removals=(Revert(releases=(*_SINCE_13, *_EXECUTE), edits=_WITHOUT_27338),),
    ),
)
