"""Caches as people write them, as edits of sglang 0.5.23: each with a key that is right, and with keys that leave out
what they should hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from repro.upstream.edits import Edit

RELEASE = "0.5.23"
RIGHT = "right"
KEY = "KEY"  # in a text, where the key goes
_ATTENTION = "sglang/srt/layers/attention/"
_TRITON, _FLASHINFER = _ATTENTION + "triton_backend.py", _ATTENTION + "flashinfer_backend.py"
_FA3 = _ATTENTION + "flashattention_backend.py"
_DRAFT = "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py"
_EXTEND = "sglang/srt/speculative/eagle_draft_extend_cuda_graph_runner.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One cache. edits: with KEY where the key goes. keys: by what they go, the right one as RIGHT."""

    name: str
    runner: str
    backend: str
    edits: tuple[Edit, ...]
    keys: Mapping[str, str]

    def variants(self) -> Iterator[tuple[str, tuple[Edit, ...]]]:
        """The variants by name, the right one first."""
        for name, key in self.keys.items():
            yield name, tuple(_keyed(edit, key) for edit in self.edits)


def _keyed(edit: Edit, key: str) -> Edit:
    return replace(edit, new=edit.new.replace(KEY, key))


def _skipped(file: str, function: str, call: str, *, always: str = "False") -> Edit:
    """A call that is left out where the key is as at the last one. always: when it is made all the same."""
    new = f"""
key = KEY
if {always} or getattr(self, "_cached_key", None) != key:
    {call}
    self._cached_key = None if {always} else key
"""
    return Edit(file=file, function=function, old=call, new=new)


def _forgotten(file: str, function: str, first: str) -> Edit:
    """An edit after which eager's work on the same buffers makes the cache forget. first: a statement of it."""
    return Edit(file=file, function=function, old=first, new=f"self._cached_key = None\n{first}")


def _rows(table: str, slots: str) -> str:
    return f"{table}[{slots}].tolist()"


_BATCH = "forward_batch"
_LENS, _SLOTS = f"{_BATCH}.seq_lens.tolist()", f"{_BATCH}.req_pool_indices.tolist()"
_POSITIONS = f"{_BATCH}.positions.tolist()"
_DRAFT_TABLE = _rows("self.kv_index_translator.req_to_token", f"{_BATCH}.req_pool_indices")
_DRAFT_KEYS = {
    RIGHT: f"({_LENS}, {_SLOTS}, {_POSITIONS}, {_DRAFT_TABLE}, {_BATCH}.seq_lens_sum)",
    "bucket": f"{_BATCH}.batch_size",
    "lengths": f"({_LENS}, {_POSITIONS})",
    "slots": f"({_BATCH}.batch_size, {_SLOTS})",
    "lengths and slots": f"({_LENS}, {_SLOTS}, {_POSITIONS})",
}
_INNER_LENS, _INNER_SLOTS = "seq_lens[:bs].tolist()", "req_pool_indices[:bs].tolist()"
_INNER_TABLE = _rows("self.req_to_token", "req_pool_indices[:bs]")
_INNER_KEYS = {
    RIGHT: f"({_INNER_LENS}, {_INNER_SLOTS}, {_INNER_TABLE})",
    "bucket": "bs",
    "lengths": _INNER_LENS,
    "slots": _INNER_SLOTS,
    "lengths and slots": f"({_INNER_LENS}, {_INNER_SLOTS})",
}
_PAGES = "req_pool_indices.tolist(), self.req_to_token[req_pool_indices].tolist()"

CACHES = (
    Cache(
        name="draft plan",
        runner="draft",
        backend="flashinfer",
        edits=(
            _skipped(
                _FLASHINFER,
                "FlashInferMultiStepDraftBackend.init_forward_metadata_out_graph",
                "self.common_template(forward_batch, self.cuda_graph_kv_indices, call_fn)",
                always="in_capture",
            ),
            _forgotten(
                _FLASHINFER,
                "FlashInferMultiStepDraftBackend.init_forward_metadata",
                "self.common_template(forward_batch, kv_indices, call_fn)",
            ),
        ),
        keys=_DRAFT_KEYS,
    ),
    Cache(
        name="draft kv_indices",
        runner="draft",
        backend="triton",
        edits=(
            _skipped(
                _TRITON,
                "TritonMultiStepDraftBackend.init_forward_metadata_out_graph",
                "self.common_template(forward_batch, None, None)",
            ),
            _forgotten(
                _TRITON,
                "TritonMultiStepDraftBackend.init_forward_metadata",
                "window_kv_indices = None",
            ),
        ),
        keys=_DRAFT_KEYS,
    ),
    Cache(
        name="decode kv_indices",
        runner="decode",
        backend="triton",
        edits=(
            Edit(
                file=_TRITON,
                function="TritonAttnBackend._apply_cuda_graph_metadata",
                old="""
_, _, window_kv_lens, num_kv_splits_lens = self._update_decode_kv_buffers(
    plan, bs, seq_lens, req_pool_indices
)""",
                new="""
key = KEY
if getattr(self, "_cached_key", None) != key:
    self._cached_lens = self._update_decode_kv_buffers(plan, bs, seq_lens, req_pool_indices)[2:]
    self._cached_key = key
window_kv_lens, num_kv_splits_lens = self._cached_lens
""",
            ),
            _forgotten(_TRITON, "TritonAttnBackend.init_forward_metadata", "window_num_kv_splits = None"),
        ),
        keys=_INNER_KEYS,
    ),
    Cache(
        name="verify kv_indices and mask",
        runner="verify",
        backend="triton",
        edits=(
            _skipped(
                _TRITON,
                "TritonAttnBackend._apply_cuda_graph_metadata",
                "self._update_target_verify_buffers(plan, bs, seq_lens, spec_info, req_pool_indices)",
            ),
            _forgotten(_TRITON, "TritonAttnBackend.init_forward_metadata", "window_num_kv_splits = None"),
        ),
        keys={
            RIGHT: f"({_INNER_LENS}, {_INNER_SLOTS}, {_INNER_TABLE}, "
            "None if spec_info.custom_mask is None else spec_info.custom_mask.tolist())",
            "lengths, slots and rows, no mask": f"({_INNER_LENS}, {_INNER_SLOTS}, {_INNER_TABLE})",
            "lengths": _INNER_LENS,
        },
    ),
    Cache(
        name="draft extend kv_indices",
        runner="draft_extend",
        backend="triton",
        edits=(
            _skipped(
                _TRITON,
                "TritonAttnBackend._apply_cuda_graph_metadata",
                "self._update_draft_extend_buffers(plan, bs, seq_lens, forward_mode, spec_info, req_pool_indices)",
                always='getattr(spec_info, "extend_seq_lens_tensor", None) is None',
            ),
            _forgotten(_TRITON, "TritonAttnBackend.init_forward_metadata", "window_num_kv_splits = None"),
        ),
        keys={
            RIGHT: f"({_INNER_LENS}, {_INNER_SLOTS}, {_INNER_TABLE}, "
            "None if (e := getattr(spec_info, 'extend_seq_lens_tensor', None)) is None else e[:bs].tolist())",
            "bucket": "bs",
            "slots and rows": f"({_INNER_SLOTS}, {_INNER_TABLE})",
        },
    ),
    Cache(
        name="decode page table",
        runner="decode",
        backend="fa3",
        edits=(
            Edit(
                file=_FA3,
                function="FlashAttentionBackend._set_decode_page_metadata",
                old="translated = self.kv_index_translator.reads_are_translated",
                new="""
place, key = KEY
set_for = self.__dict__.setdefault("_set_for", {})
if set_for.get(place) == key:
    return
set_for[place] = key
translated = self.kv_index_translator.reads_are_translated
""",
            ),
        ),
        keys={
            RIGHT: f"0, (seq_lens.tolist(), {_PAGES})",
            "kept by each bucket, which share buffers": f"len(seq_lens), (seq_lens.tolist(), {_PAGES})",
            "lengths": "0, seq_lens.tolist()",
            "pages of lengths, and slots": "0, ([n // self.page_size for n in seq_lens.tolist()], "
            "req_pool_indices.tolist())",
            "lengths and slots": "0, (seq_lens.tolist(), req_pool_indices.tolist())",
        },
    ),
    Cache(
        name="draft branches' page table",
        runner="draft",
        backend="fa3",
        edits=(
            Edit(
                file=_FA3,
                function="FlashAttentionBackend._apply_cuda_graph_metadata",
                old="metadata_expand.page_table[:num_seqs, :decode_length].copy_(cache_loc[:, :decode_length])",
                new="""
place, key = KEY
set_for = self.__dict__.setdefault("_set_for", {})
if set_for.get(place) != key:
    metadata_expand.page_table[:num_seqs, :decode_length].copy_(cache_loc[:, :decode_length])
    set_for[place] = key
""",
            ),
        ),
        keys={
            RIGHT: "0, cache_loc.tolist()",
            "kept by each bucket, which share buffers": "bs, cache_loc.tolist()",
            "lengths": "0, seq_lens.tolist()",
            "slots": "0, req_pool_indices.tolist()",
        },
    ),
    Cache(
        name="draft sum of lengths",
        runner="draft",
        backend="flashinfer",
        edits=(
            Edit(
                file=_DRAFT,
                function="EAGLEDraftCudaGraphRunner.execute",
                old="raw_seq_lens_sum = forward_batch.seq_lens_sum",
                new="""
raw_seq_lens_sum = forward_batch.seq_lens_sum
if raw_seq_lens_sum is not None:
    key = KEY
    if getattr(self, "_sum_key", None) != key:
        self._sum_key, self._sum = key, raw_seq_lens_sum
    raw_seq_lens_sum = forward_batch.seq_lens_sum = self._sum
""",
            ),
        ),
        keys={
            RIGHT: "forward_batch.seq_lens.tolist()",
            "bucket": "(bs, raw_bs)",
            "slots": "forward_batch.req_pool_indices.tolist()",
        },
    ),
    Cache(
        name="draft padding, reset once",
        runner="draft",
        backend="triton",
        edits=(
            Edit(
                file=_DRAFT,
                function="EAGLEDraftCudaGraphRunner.execute",
                old="raw_num_token = raw_bs * self.captured_req_width",
                new="""
raw_num_token = raw_bs * self.captured_req_width
used = getattr(self, "_rows_used", self.max_bs)
self._rows_used = KEY
""",
            ),
            Edit(
                file=_DRAFT,
                function="EAGLEDraftCudaGraphRunner.execute",
                old="buffers.out_cache_loc.zero_()",
                new="""
if used <= raw_bs:
    pass
else:
    buffers.out_cache_loc.zero_()
    buffers.req_pool_indices.zero_()
    self._rows_used = raw_bs
""",
            ),
            Edit(
                file=_DRAFT,
                function="EAGLEDraftCudaGraphRunner.execute",
                old="buffers.req_pool_indices.zero_()",
                new="",
            ),
        ),
        keys={RIGHT: "max(used, raw_bs)", "the last batch alone": "raw_bs"},
    ),
    Cache(
        name="draft extend select_index",
        runner="draft_extend",
        backend="triton",
        edits=(
            Edit(
                file=_EXTEND,
                function="EAGLEDraftExtendCudaGraphRunner.execute",
                old="copy_dsts.append(buffers.select_index[:raw_bs])",
                new="""
key = KEY
is_new = getattr(self, "_selected", None) != key
self._selected = key
if is_new:
    copy_dsts.append(buffers.select_index[:raw_bs])
""",
            ),
            Edit(
                file=_EXTEND,
                function="EAGLEDraftExtendCudaGraphRunner.execute",
                old="copy_srcs.append(select_index)",
                new="if is_new:\n    copy_srcs.append(select_index)",
            ),
        ),
        keys={RIGHT: "select_index.tolist()", "bucket": "(bs, raw_bs)"},
    ),
    Cache(
        name="draft hidden states",
        runner="draft",
        backend="triton",
        edits=(
            Edit(
                file=_DRAFT,
                function="EAGLEDraftCudaGraphRunner.execute",
                old="buffers.hidden_states[:raw_bs].copy_(forward_batch.spec_info.hidden_states)",
                new="""
source = forward_batch.spec_info.hidden_states
key = KEY
if bs != raw_bs or getattr(self, "_source", None) != key:
    buffers.hidden_states[:raw_bs].copy_(source)
self._source = key
self._source_itself = source
""",
            ),
        ),
        keys={
            RIGHT: "(id(source), source._version, source.tolist())",
            "slots": "forward_batch.req_pool_indices.tolist()",
            "shape": "tuple(source.shape)",
        },
    ),
    Cache(
        name="decode plan",
        runner="decode",
        backend="flashinfer",
        edits=(
            Edit(
                file=_FLASHINFER,
                function="FlashInferAttnBackend.init_forward_metadata_out_graph",
                old="encoder_lens = forward_batch.encoder_lens",
                new="""
encoder_lens = forward_batch.encoder_lens
if forward_batch.forward_mode.is_decode_or_idle() and forward_batch.spec_info is None:
    key = KEY
    if not in_capture and getattr(self, "_cached_key", None) == key:
        return
    self._cached_key = None if in_capture else key
""",
            ),
            _forgotten(_FLASHINFER, "FlashInferAttnBackend.init_forward_metadata", "swa_out_cache_loc = None"),
        ),
        keys={
            RIGHT: "(seq_lens.tolist(), req_pool_indices.tolist(), "
            "None if seq_lens_cpu is None else seq_lens_cpu.tolist(), "
            "self.kv_index_translator.req_to_token[req_pool_indices].tolist(), "
            "None if forward_batch.out_cache_loc is None else forward_batch.out_cache_loc.tolist())",
            "lengths": "seq_lens.tolist()",
            "bucket": "bs",
        },
    ),
)
