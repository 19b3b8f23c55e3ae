"""Refusals of sglang itself, in its words: a setup that it does not claim to support is unsupported, and no finding.

Whatever else it raises while it is built is one, so that a new refusal is looked at before it stands here.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass

from repro.cases.case import Setup
from repro.cases.families import GDN, GLM, KDA, MAMBA2, MIMO, is_latent
from runners.targets import pinned


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """words: a pattern of what is raised. source: a release, and the file below its sglang/ and line that say so. of:
    the setups that it is about; of others the same words are a finding. absent: a package of others without which this
    is said, and older: a distribution that is older here than sglang pins; elsewhere the words are a finding, too."""

    words: re.Pattern[str]
    source: str
    of: Callable[[Setup], bool]
    absent: str = ""
    older: str = ""

    def lack(self) -> str:
        """The part of what the row names that the environment lacks, for a person; empty if none."""
        if self.absent:
            return "" if importlib.util.find_spec(self.absent) else f"{self.absent} is not installed"
        return pinned.older_here(self.older) if self.older else ""


REFUSALS = (
    # In every release, and only when a batch is verified.
    Refusal(
        words=re.compile(r"doesn't support topk > 1 speculative decoding with page size > 1 sliding window"),
        source="0.5.23 srt/layers/attention/flashattention_backend.py:3418",
        of=lambda setup: setup.backend == "fa3" and setup.topk > 1 and setup.page_size > 1 and setup.window > 0,
    ),
    # Up to 0.5.12.post1 of every paged backend but flashinfer and fa3; since then of those in a list of sglang's.
    Refusal(
        words=re.compile(r"speculative_eagle_topk > 1 with page_size > 1 is (unstable|only supported)"),
        source="0.5.23 srt/arg_groups/speculative_hook.py:1279",
        of=lambda setup: setup.topk > 1 and setup.page_size > 1,
    ),
    # Up to 0.5.16.
    Refusal(
        words=re.compile(r"NemotronHForCausalLM does not support triton attention backend"),
        source="0.5.16 srt/server_args.py:4751",
        of=lambda setup: setup.family == MAMBA2 and setup.backend == "triton",
    ),
    # Up to 0.5.16.
    Refusal(
        words=re.compile(r"extra_buffer is not supported for KimiLinearForCausalLM; use no_buffer"),
        source="0.5.15.post1 srt/server_args.py:4265",
        of=lambda setup: setup.family == KDA,
    ),
    # Of every release that is driven, where a prompt is prefilled; up to 0.5.15.post1 in layers/attention/fla.
    Refusal(
        words=re.compile(r"ChunkGatedDeltaRuleFunction does not support float32"),
        source="0.5.23 kernels/ops/attention/fla/chunk.py:217",
        of=lambda setup: setup.family == GDN and setup.dtype == "float32",
    ),
    # Of every release that has rejection sampling, up to 0.5.22.
    Refusal(
        words=re.compile(r"speculative-use-rejection-sampling is incompatible with --enable-deterministic-inference"),
        source="0.5.22 srt/arg_groups/speculative_hook.py:1146",
        of=lambda setup: setup.rejection and setup.deterministic,
    ),
    Refusal(
        words=re.compile(r"speculative-use-rejection-sampling is not supported with multi-layer EAGLE"),
        source="0.5.15.post1 srt/arg_groups/speculative_hook.py:431",
        of=lambda setup: setup.rejection and setup.family == MIMO,
    ),
    # A kernel that DeepSeek's NEXTN runs through on a GPU, since 0.5.15.post1. Cases are drawn around both
    # (repro/cases/families.py); older seeds are not.
    Refusal(
        words=re.compile(r"fused_eh_norm: unsupported dtype torch\.float32"),
        source="0.5.23 kernels/ops/layernorm/fused_eh_norm.py:43",
        of=lambda setup: is_latent(setup) and setup.dtype == "float32",
    ),
    Refusal(
        words=re.compile(r"fused_eh_norm: unsupported hidden_size="),
        source="0.5.23 kernels/ops/layernorm/fused_eh_norm.py:53",
        of=lambda setup: is_latent(setup) and not (setup.hidden_size > 256 and setup.hidden_size % 256 == 0),
    ),
    # What that kernel is compiled with; bundles for hosts without a package index leave it out. sglang's registry of
    # models goes over what cannot be imported, and does not find it then. GLM-4.5's modules import DeepSeek's.
    Refusal(
        words=re.compile(
            r"No module named 'cutlass'|a stand-in for CUTLASS|"
            r"Cannot find model module. '(DeepseekV3|Glm4Moe)ForCausalLMNextN'"
        ),
        source="0.5.23 srt/model_loader/utils.py:156",
        of=lambda setup: is_latent(setup) or setup.family in (GLM, KDA),
        absent="cutlass",
    ),
    # What draft_extend and the opt-in host plan of verify call: since 0.5.18 with the arguments of a newer flashinfer
    # than bundles have. The words are those of the library that counts them.
    Refusal(
        words=re.compile(
            r"Mismatched number of arguments when calling: `plan\([^`]*`\. Expected 19 but got 20 arguments"
        ),
        source="0.5.18 srt/layers/attention/flashinfer_backend.py:286",
        of=lambda setup: setup.backend == "flashinfer",
        older="flashinfer-python",
    ),
)


def refused(setup: Setup, error: BaseException | None) -> str:
    """sglang's words if it refuses this setup by this exception, or by one behind it; empty if not."""
    while error is not None:
        text = str(error)
        for refusal in REFUSALS:
            if refusal.words.search(text) and refusal.of(setup):
                lack, line = refusal.lack(), text.strip().partition("\n")[0]
                if lack:
                    return f"{lack}: {line}"
                if not (refusal.absent or refusal.older):
                    return line
        error = error.__cause__ or error.__context__
    return ""
