"""A Setup: what is fixed before the graphs are captured."""

from __future__ import annotations

from dataclasses import dataclass, replace

SPARE_POSITIONS = 4  # of a row of req_to_token, behind context and draft tokens, in every release


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that is fixed before the graphs are captured. A field's row in repro/cases/rows says
    what it means; a new field comes last, since drawn cases depend on the order."""

    runner: str
    topk: int
    num_steps: int
    num_draft_tokens: int
    capture_bs: tuple[int, ...]
    slots: int
    page_size: int = 1
    context_len: int = 64
    kv_splits: int = 1
    window: int = 0
    swa: bool = False
    logit_cap: int = 0
    padded: bool = True
    mrope: bool = False
    deterministic: bool = False
    adaptive: int = 0
    kv_dtype: str = ""
    dp_attention: bool = False
    rejection: bool = False
    overhang: int = 0
    returns_hidden: bool = False
    mirrored: bool = True
    algorithm: str = "EAGLE"
    vocab_size: int = 128
    hidden_size: int = 32
    num_heads: int = 2
    num_kv_heads: int = 2
    head_dim: int = 16
    dtype: str = "float32"
    backend: str = "triton"
    overlap: bool = False
    pool: int = 0
    disagreement: int = 0
    radix: bool = False
    chunk: int = 0
    family: str = ""
    one_graph: bool = False
    plan_stream: bool = False
    logprobs: bool = False
    draft_hidden_size: int = 0
    draft_num_heads: int = 0
    draft_num_kv_heads: int = 0
    draft_head_dim: int = 0
    prefill_max_bs: int = 0
    sampled: bool = False
    logprob_start_len: int = -1
    heeds_eos: bool = False
    images: bool = False
    prefill_backend: str = "breakable"
    nan_logits: str = ""
    sanitizes: bool = False
    tp_size: int = 1
    index_share: bool = False
    index_topk: int = 0
    enable_lora: bool = False
    max_loras_per_batch: int = 8
    lora_backend: str = "csgmv"
    lora_head: bool = False
    grammar: bool = False
    logit_bias: bool = False
    stop_token_ids: bool = False

    @property
    def max_bs(self) -> int:
        """The largest bucket, in requests."""
        return self.capture_bs[-1]

    @property
    def tree_max(self) -> int:
        """The most draft tokens of a tree: its root, topk drafts of the first step and topk**2 of each later one."""
        return 1 + self.topk + (self.num_steps - 1) * self.topk**2

    def bucket(self, batch: int) -> int:
        """The smallest captured batch size that holds `batch` requests. ValueError if none does."""
        for bs in self.capture_bs:
            if bs >= batch:
                return bs
        raise ValueError(f"a batch of {batch} fits no bucket of {self.capture_bs}")

    def replays(self, batch: int, hidden: str = "") -> bool:
        """True if a graph is to be replayed for so many requests, which ask for these hidden states; eager runs all
        others. Graphs without hidden states hold no batch that asks for some."""
        fits = batch <= self.max_bs and (self.padded or batch in self.capture_bs)
        return fits and (self.returns_hidden or not hidden)


# The sizes of a draft model that may be others than the target's, 0 where they are not, and the target's.
DRAFT_SIZES = {f"draft_{size}": size for size in ("hidden_size", "num_heads", "num_kv_heads", "head_dim")}


def as_drafted(setup: Setup) -> Setup:
    """The setup with its draft model's sizes in place of the target's."""
    return replace(setup, **{size: getattr(setup, name) or getattr(setup, size) for name, size in DRAFT_SIZES.items()})


def overhang_max(setup: Setup) -> int:
    """The number of positions that every release leaves behind the context; up to 0.5.12.post1 for the draft tokens
    that a worker starts with."""
    started = setup.adaptive + 1 if setup.adaptive else setup.num_draft_tokens
    return SPARE_POSITIONS + min(started, setup.num_draft_tokens)
