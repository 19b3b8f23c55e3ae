"""The names of attributes that published releases of sglang have in what runs graphs: workers, model runners, graph
runners, their buffers and attention backends, and those that are about the last call. An attribute of another name is a
checkout's own."""

from __future__ import annotations

from pathlib import Path

PUBLISHED = frozenset(Path(__file__).with_name("attribute_names.txt").read_text().split())

# Attributes that a call may leave changed, by name or by the last two names of the path, and why.
LAST_CALL = {
    "forward_metadata": "attention's metadata of the last call",
    "forward_metadata_spec_decode_expand": "and that of its branches, on FlashAttention 3",
    "bs": "the bucket of the last replay",
    "raw_bs": "its batch size",
    "raw_num_token": "its number of tokens",
    "raw_num_tokens": "the same, of several layers",
    "seq_lens_sum": "its sum of lengths, of several layers",
    "runner.seq_lens_cpu": "its lengths on the host, of several layers, since 0.5.16",
    "max_seq_len_k": "its longest request, in metadata of FlashAttention 3 that graphs keep",
    "_replay_graph_key": "its bucket, since 0.5.14",
    "_replay_spec_info": "what it was given of speculation",
    "_ragged_graph_size": "its bucket in tokens, since 0.5.16",
    "_cached": "what it gave, layer by layer, since 0.5.16",
    "_prefilled_inputs": "the inputs that its graph reads where they lie, in 0.5.23",
    "_kv_loc_plan": "which KV slots its iteration reads and writes, since 0.5.22",
    "_profile_trace_tag": "its name in profiles, since 0.5.22",
    "war_fastpath_read_done_event": "that its inputs have been read, from 0.5.14 to 0.5.17",
    "shared_read_done_event": "the same since 0.5.18",
}
