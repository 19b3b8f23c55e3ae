"""The families of models that are run: one row a family, under the name that sglang's configurations have for it.

A setup's family says what attention keeps of a token and how layers are made; its algorithm says how drafts are made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from repro.cases.runner_facts import ALL_ALGORITHMS, LATENT, OF_OTHER_WORKERS, RUNNER_FACTS
from repro.cases.setup import Setup

DEEPSEEK, GLM, GDN, GPT_OSS = "deepseek_v3", "glm4_moe", "qwen3_next", "gpt_oss"
MAMBA2, KDA, DSA = "nemotron_h", "kimi_linear", "deepseek_v32"
V4 = "deepseek_v4"
QWEN35 = "qwen3_5"
MIMO, GEMMA, QWEN_VL = "mimo_v2_flash", "gemma4_text", "qwen2_5_vl"


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFacts:
    """One row of FAMILY_FACTS. what: in words. backends: those with which each runner is driven; of all runners and
    backends where empty. chains: backends over which it drafts with topk 1 only. algorithms: those that a setup may
    name it with. latent: whether a token's keys and values are one latent vector. recurrent: whether some layers
    keep of a request a state beside the KV cache. plain: whether windows, caps and the like are known for it, which are
    made of Llama's classes. sliding: whether it has sliding layers with KV slots of their own, so that its setups have
    a window and such a pool. hidden_sizes, dtypes: those that are drawn; where empty, all that other models draw.
    own_drafts: whether a layer of its own drafts for it, and not a Llama, whose sizes may be others. page_size: the one
    that its backend has, in tokens; 0: any. kv_dtype: that of its cached keys, whatever a setup says; empty: as of
    others. plans_in_graphs: whether its graphs make attention's metadata themselves. of_one_rank: whether it is driven
    without other ranks alone. prefills_halves: whether rounds are driven in half precision alone. eager_prefills:
    whether its prefills are driven without graphs alone. layered: whether a layer makes each of its drafts
    (enable_multi_layer_eagle). frozen: whether its draft model reads the target's KV cache and has none of its
    own (FROZEN_KV_MTP). sees: whether it has positions in three dimensions, and takes images. model_paths: a pattern of
    paths that people give such models, in lower case; empty: none is known by it."""

    what: str
    backends: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    chains: frozenset[str] = frozenset()
    algorithms: tuple[str, ...] = ALL_ALGORITHMS
    latent: bool = False
    recurrent: bool = False
    plain: bool = False
    sliding: bool = False
    hidden_sizes: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    own_drafts: bool = False
    page_size: int = 0
    kv_dtype: str = ""
    plans_in_graphs: bool = False
    of_one_rank: bool = False
    prefills_halves: bool = False
    eager_prefills: bool = False
    layered: bool = False
    frozen: bool = False
    sees: bool = False
    model_paths: str = ""

    @property
    def gathers(self) -> bool:
        """True if its layers gather the tokens of all ranks under data-parallel attention, in rounds."""
        return self.own_drafts and not (self.layered or self.frozen or self.of_one_rank)

    @property
    def shares(self) -> bool:
        """True if rounds are driven with ranks that share its heads."""
        return self.plain or (self.gathers and not (self.recurrent or self.page_size))

    def dtypes_of(self, runner: str) -> tuple[str, ...]:
        """Its types in draws of this runner's setups; where empty, those of other models."""
        prefilled = self.prefills_halves and RUNNER_FACTS[runner].serves
        return tuple(dtype for dtype in self.dtypes if dtype != "float32" or not prefilled)


_LLAMA = FamilyFacts(what="Llama", plain=True, algorithms=(*ALL_ALGORITHMS, *OF_OTHER_WORKERS))
# The families that a setup may name.
FAMILY_FACTS: Mapping[str, FamilyFacts] = {
    DEEPSEEK: FamilyFacts(
        what="DeepSeek-V3, Kimi-K2: latent attention (MLA), and their next-token layer as the draft model",
        backends={
            "decode": ("triton", "flashinfer", "fa3"),
            "verify": ("triton", "flashinfer", "fa3"),
            "draft": ("triton", "flashinfer", "fa3"),
            # sglang's flashinfer backend for latent attention makes no graph of that mode.
            "draft_extend": ("triton", "fa3"),
            # Over fa3 a graph of a prefill, which only this harness asks for, hands attention one part of the queries.
            "round": ("triton", "flashinfer"),
        },
        # It refuses more than one branch, and so does every server that verifies over it.
        chains=frozenset({"flashinfer"}),
        algorithms=("EAGLE", "NEXTN", "DFLASH", "DSPARK"),
        own_drafts=True,
        latent=True,
        # Sizes that sglang's kernel in front of the draft's layer takes on a GPU (fused_eh_norm, since 0.5.15.post1:
        # half precision and multiples of 256 in (256, 8192]): the smaller, and one that three heads divide.
        hidden_sizes=(512, 768),
        dtypes=("float16", "bfloat16"),
        model_paths=r"deepseek.*(v3(?!\.2)|r1(?!.*distill))|kimi-k2",
    ),
    GLM: FamilyFacts(
        what="GLM-4.5 and 4.6: heads normed and rotated by half, and their next-token layer as the draft model",
        backends=dict.fromkeys(("decode", "verify", "draft", "draft_extend", "round"), ("triton", "flashinfer", "fa3")),
        algorithms=("EAGLE", "NEXTN"),
        own_drafts=True,
        # The same kernel stands in front of this draft's layer.
        hidden_sizes=(512, 768),
        dtypes=("float16", "bfloat16"),
        model_paths=r"glm-4\.[567](?!\d*v)",
    ),
    GDN: FamilyFacts(
        what="Qwen3-Next: layers of gated delta rule (GDN), whose state lies beside the KV cache, and full ones; their "
        "next-token layer, which has no state, as the draft model",
        backends=dict.fromkeys(("decode", "verify", "draft", "draft_extend", "round"), ("triton", "flashinfer", "fa3")),
        algorithms=("EAGLE", "NEXTN", "DFLASH", "NGRAM", "DSPARK"),
        own_drafts=True,
        recurrent=True,
        # Triton's interpreter lacks bfloat16, and recurrent layers run on Triton over every backend.
        dtypes=("float16", "float32"),
        prefills_halves=True,
        model_paths=r"qwen3.*next",
    ),
    QWEN35: FamilyFacts(
        what="Qwen3.5: layers like Qwen3-Next's without experts, positions in three dimensions (M-RoPE), prompts with "
        "images; their next-token layer as the draft model",
        backends=dict.fromkeys(("decode", "verify", "draft", "draft_extend", "round"), ("triton", "flashinfer", "fa3")),
        algorithms=("EAGLE", "NEXTN"),
        own_drafts=True,
        recurrent=True,
        # Triton's interpreter lacks bfloat16.
        dtypes=("float16", "float32"),
        prefills_halves=True,
        # sglang switches prefill graphs off with it (model_config.py, 0.5.23:2507).
        eager_prefills=True,
        sees=True,
        model_paths=r"qwen3\.5",
    ),
    MAMBA2: FamilyFacts(
        what="Nemotron-H: layers of Mamba2, whose state lies beside the KV cache, and full ones; a Llama drafts for it",
        backends=dict.fromkeys(("decode", "verify"), ("triton",)),
        algorithms=("EAGLE",),
        recurrent=True,
        dtypes=("float16", "float32"),
        model_paths=r"nemotron-(h|nano|3)",
    ),
    KDA: FamilyFacts(
        what="Kimi-Linear: layers of Kimi delta attention (KDA), whose state lies beside the KV cache, and latent ones",
        backends={"decode": ("triton",)},
        algorithms=("EAGLE",),
        latent=True,
        recurrent=True,
        hidden_sizes=(512, 768),
        dtypes=("float16",),
        model_paths=r"kimi-linear",
    ),
    DSA: FamilyFacts(
        what="DeepSeek-V3.2, GLM-5: latent attention over the keys that an indexer chooses (DSA), which has a cache of "
        "its own, and their next-token layer as the draft model",
        backends={"round": ("fa3",)},
        chains=frozenset({"fa3"}),
        algorithms=("NEXTN",),
        own_drafts=True,
        latent=True,
        hidden_sizes=(512, 768),
        # The indexer's weights are in bfloat16, whatever the model's are (dsa_indexer.py, 0.5.23:364).
        dtypes=("bfloat16",),
        page_size=64,
        # In a graph of a prefill the indexer is one operator, with compiled kernels within.
        eager_prefills=True,
        model_paths=r"deepseek.*v3\.2|glm-5",
    ),
    V4: FamilyFacts(
        what="DeepSeek-V4: attention over a window and over compressed keys of what is before, which an indexer "
        "chooses; residuals of several streams; its next-token layer, which has the window alone, as the draft model",
        # sglang takes its own backend (dsv4), whichever is asked for.
        backends={"round": ("fa3",)},
        chains=frozenset({"fa3"}),
        algorithms=("EAGLE",),
        own_drafts=True,
        of_one_rank=True,
        # The smaller, and one that three heads divide.
        hidden_sizes=(64, 96),
        dtypes=("bfloat16",),
        page_size=256,
        kv_dtype="fp8_e4m3",
        plans_in_graphs=True,
        eager_prefills=True,
        model_paths=r"deepseek.*v4",
    ),
    MIMO: FamilyFacts(
        what="MiMo-V2-Flash's MTP layers, each of which makes one draft and has a KV cache of its own, with a Llama as "
        "the target",
        backends={"round": ("triton", "fa3")},
        chains=frozenset({"triton", "fa3"}),
        algorithms=("EAGLE",),
        own_drafts=True,
        layered=True,
    ),
    GEMMA: FamilyFacts(
        what="Gemma 4: a sliding and a full layer with heads of different size, and its assistant as the draft model, "
        "which reads the target's KV cache (FROZEN_KV_MTP)",
        backends={"round": ("triton",)},
        algorithms=("EAGLE",),
        sliding=True,
        own_drafts=True,
        frozen=True,
    ),
    QWEN_VL: FamilyFacts(
        what="Qwen2.5-VL: positions in three dimensions (M-RoPE), prompts with images; EAGLE3's Llama drafts for it",
        backends={"round": ("triton", "flashinfer", "fa3")},
        algorithms=("EAGLE3",),
        # sglang switches prefill graphs off with it (model_config.py, 0.5.23:2501).
        eager_prefills=True,
        sees=True,
        model_paths=r"qwen2\.5-vl",
    ),
    GPT_OSS: FamilyFacts(
        what="gpt-oss: attention with sinks, a sliding and a full layer, experts with biases; a Llama drafts for it",
        # sglang has it over neither flashinfer nor, as a target that drafts, anything but a Llama.
        backends=dict.fromkeys(("decode", "verify", "round"), ("triton", "fa3")),
        algorithms=("EAGLE", "EAGLE3"),
        dtypes=("float16", "bfloat16", "float32"),
        # Experts round to halves (fused_moe.py), which rows of a KV cache in float32 show.
        prefills_halves=True,
        sliding=True,
        model_paths=r"gpt-oss",
    ),
}
# The window of a family with sliding layers, in a setup that was drawn for other models.
_WINDOW = 7


# Models that people serve and no setup names, and what is missing.
FAMILIES_NOT_DRIVEN: Mapping[str, str] = {
    "DeepSeek-V3 over flashmla, trtllm_mla, cutlass_mla, cutedsl_mla": "no stand-in for their kernels",
    "DeepSeek-V3 in draft-extend over flashinfer": "sglang's backend captures no graph of that mode",
    "DeepSeek-V3 and GLM-4.5 with EAGLE3": "target and draft model are of one family",
    "a draft model beside a target with sliding layers, in draft and draft_extend": "verify alone has such targets",
    "recurrent families in the float64 reference, but in rounds": "eager and sequential decoding judge values",
    "DeepSeek-V3.2, GLM-5 (DSA) but in rounds": "sessions of one runner fill no index cache",
    "DSA with fewer keys chosen than there are, before 0.5.21": "kernels take no other number than 2,048",
    "DSA on a GPU": "DeepGEMM and its other compiled kernels are in no bundle",
    "DeepSeek-V4 but in rounds": "its state of incomplete keys is not held",
    "DeepSeek-V4 with fewer compressed keys chosen than there are": "no reference chooses keys",
    "DeepSeek-V4 on a GPU": "FlashMLA and the kernels that sglang compiles for it are in no bundle",
    "DeepSeek-V4's streams beside its graphs, prefill graphs, fp4 indexer, ranks": "not tried",
    "Qwen3-Next with EAGLE3": "states behind experts, which round to halves here, differ from sequential decoding",
    "Nemotron-H's next-token layer": "no configuration",
    "Qwen3.5 with experts": "Qwen3-Next has them",
    "Kimi-Linear in verify": "sglang's model has no `get_embed_and_head`, which every draft worker asks it for",
    "recurrent layers with a replayed ring or a unified pool": "not tried",
    "adapters of weights (LoRA) but for Llama and GLM-4.5 in rounds": "not tried",
    "gpt-oss over flashinfer": "sglang has no such server",
    "DSPARK's drafts of DeepSeek-V4 and MiniMax-M3": "no configuration",
}


def family_of_path(path: str) -> str:
    """The family of the model that people mean by this path; empty: none that is known by it."""
    lower = path.lower()
    return next((name for name, f in FAMILY_FACTS.items() if f.model_paths and re.search(f.model_paths, lower)), "")


def facts_of(family: str, algorithm: str) -> FamilyFacts:
    """The facts of the family that a setup names; where it names none, of the one that its algorithm implies."""
    return FAMILY_FACTS.get(family or (DEEPSEEK if algorithm in LATENT else ""), _LLAMA)


def family_facts(setup: Setup) -> FamilyFacts:
    return facts_of(setup.family, setup.algorithm)


def is_latent(setup: Setup) -> bool:
    """True if its attention is latent."""
    return family_facts(setup).latent


def kv_dtype_of(setup: Setup) -> str:
    """The type of eight bits in which keys and values are cached; empty: the model's own."""
    return setup.kv_dtype or family_facts(setup).kv_dtype


def is_recurrent(setup: Setup) -> bool:
    """True if some of its layers keep a state beside the KV cache."""
    return family_facts(setup).recurrent


def changes_states(setup: Setup) -> bool:
    """True if the runner's model changes the states of a batch's requests: a target does, drafts have full layers."""
    return is_recurrent(setup) and setup.runner in ("decode", "verify")


def families(runner: str, backend: str) -> tuple[str, ...]:
    """The families that a setup of this runner and backend may name."""
    return tuple(name for name, facts in FAMILY_FACTS.items() if backend in facts.backends.get(runner, ()))


def fitted(setup: Setup) -> Setup:
    """A setup that was drawn for other models, with a hidden size and a dtype for its own."""
    facts = family_facts(setup)
    sizes = [size for size in facts.hidden_sizes if size % setup.num_heads == 0]
    dtypes = facts.dtypes_of(setup.runner) or (setup.dtype,)
    return replace(
        setup,
        hidden_size=sizes[0] if sizes and setup.hidden_size not in sizes else setup.hidden_size,
        dtype=setup.dtype if setup.dtype in dtypes else dtypes[0],
        window=setup.window or _WINDOW * facts.sliding,
        swa=setup.swa or facts.sliding,
        page_size=facts.page_size or setup.page_size,
        context_len=max(setup.context_len, 2 * facts.page_size),
    )
