"""What happened when a case was run: how it ended, and every array that was seen on the way.

Oracles judge from this record alone. An array is named by (step, path, name). Row-shaped arrays have one row
per request; where a row is one value wide, they are flat. The paths of a step, in the order in which they are recorded:

    input        what the caller gives, one row per request: at least seq_lens and req_pool_indices, and what its
                 runner's Family names besides (for draft: out_cache_loc [raw_bs, topk * num_steps],
                 positions [raw_bs, topk], topk_p and topk_index [raw_bs, topk], hidden_states [raw_bs, hidden];
                 without out_cache_loc no KV may be written);
                 what other models make of it before the call (for verify: parents, scores_index and tokens, the draft);
                 for runners that write the KV of earlier tokens again also rewritten [raw_bs, n], their slots;
                 at step -1, once for the case: req_to_token; refilled, where every slot's contents are new in each step
    before       the caller's batch just before the graph path: the fields that its Family names, as sglang has them
                 (batch_size, seq_lens_cpu and seq_lens_sum among them)
    asked        can_run: whether the runner would replay a graph, 1 or 0, where it is asked ahead: of a batch that no
                 graph holds, and where batches are not padded. If not, or if no graph holds it, only eager runs;
                 hidden: 0 where the batch does not ask for the hidden states that its step names, since the release's
                 server turns such a request away
    launch       the runner's buffers at the moment the graph is launched, one row per request of the largest
                 bucket ([max_bs, ...]), under the names of `input`; and the scalars bs (bucket used) and raw_bs. For
                 cpu_decode what the compiled function is called with, [bs, ...]
    neutral      for each buffer under launch: the value that a padded row must hold (scalar); at step -1 if it
                 is the same in all steps
    metadata     attention metadata at launch: kv_indptr [calls, n] and kv_indices [calls, width], one row for each
                 attention call that repro/cases/reads.py has (for draft: kv_indptr has num_steps rows, of which draft
                 steps 0..num_steps-2 use one each); qo_indptr [calls, n] where rows have several queries
                 and, where they have a mask, mask_indptr [n] and custom_mask, one entry for each query and key, also
                 where flashinfer packs them. Keys of the tree that is verified are in kv_indices for flashinfer alone.
                 window_kv_indptr, window_kv_indices: the same of sliding layers, by the KV slots that the same tokens
                 have in the others, -1 for a slot that belongs to no token. Of an eager pass that no graph stands
                 beside the same of Triton's backend, without masks
    planned      the batch as attention's backend gets it, after padding and before it makes metadata of it: batch_size,
                 seq_lens, seq_lens_cpu, seq_lens_sum, req_pool_indices, out_cache_loc, positions and the counts of
                 spec_info, those that the release hands over; buffers may come whole. A call that plans again (one for
                 each layer) has its number behind a dot: planned.1
    planned_eager  the same of the eager path
    guard        after the graph ran: `intact`, how many bytes of guard bands still held their filling; and for each
                 buffer whose bands do not, the bands (flat) and under <name>.want the filling
    graph        what the graph path left: its outputs, raw_bs rows each (for draft: parents, scores_index, tokens);
                 kv_slots [n] (KV slots whose contents changed, rising) and kv_rows [n, ...] (their new contents)
    after_graph  the caller's batch after the graph path, names as in `before`
    kept         STEP.NAME: rows of what that call was given ("caller's ...") or gave that have changed; `compared`
    eager        as `graph`, from the eager path on the same inputs with the KV cache restored in between. Where both
                 left the same bits in all KV slots but slot 0, in which padded rows write, kv_rows is recorded of
                 neither, and kv_same is 1
    after_eager  the caller's batch after the eager path
    eager_again  as `eager`, from an eager pass over the batch padded as the graph pads it, first raw_bs rows; and
    eager_nudged_up, eager_nudged_down: eager passes with the hidden states, or where there are none the KV cache and
                 the token embeddings, moved by rounding noise. Recorded only where graph and eager differ.
    memory       of the emulated engine, at step -1 while capturing: `launches`, how many launches of kernels were
                 watched; and by what was wrong, argument and kernel (`load outside kv_indices in stage1`): index and
                 length, in elements of the argument, of the first wrong place

    reference    the third opinion: what the call should have given, in float64, with the integers that eager chose
                 wherever rounding can turn a choice over. Recorded where graph and eager lie apart, and in the
                 steps that the parent asks for; of eager alone where no graph ran.
                 Per output <name>, and <name>.bound, how far a right result may lie from it, infinite
                 where it is not known (for integers 0 or infinite); for outputs that are no integers also <name>.norm
                 [raw_bs, tokens], the same of the root of the sum of squares of each token's values, <name>.spread
                 [raw_bs, tokens], how large that is expected to be, and <name>.all [1, 1], the bound of all tokens'
                 together, each over its spread. kv_slots [n], the slots that the call should have written, kv_rows
                 with its bounds; kv_graph, kv_eager, what the two paths left there
    reference_graph  the same with the integers that the graph chose, where these are others

Before each step the caller writes the prefixes of its requests into the KV cache; the rest of it goes on from the
eager path of the step before.

Runners without a graph record something else. kv_move, whose moves all start from the same memory:

    before       kv_slots, kv_rows: what lies in the slots that a move may read
    verify, verify_tail, accept, branches: one path for each move that the release has (repro/cases/kv_move_model.py
                 says where its rows belong): targets and sources [n], as handed to the KV cache; kv_slots and kv_rows,
                 as in `graph`; outside: 1 if a target or source was no slot at all, so that no row was moved; and the
                 lists that come with the move: freed, left, draft_slots

verify_eager and its kin, which have one entry for each event of a step, numbered `at` in their common order:

    input        req_pool_indices, seq_lens; busiest, the requests of the busiest rank of the group (scalar)
    padding      tokens and requests of the batch just after it was padded
    metadata     the same when attention's metadata is made
    attention    the same when attention runs; planned_tokens, planned_requests: as many as the metadata in use speaks
                 of, -1 if it does not say
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

# The fact that names what an earlier batch left in a tensor and no kernel of the call reads, and what it says of a call
# where there is none.
STALE, NOTHING = "stale, no reader known", "nothing"


class Termination(StrEnum):
    """How a run ended. Neither of the last two is sglang's bug, and neither was a run of the case.

    UNSUPPORTED: declared before it was tried, with the release's reason or a stand-in's. ERROR: the harness, an adapter
    or the environment failed, which is never passed over in silence.
    """

    DONE = "done"
    RAISED = "raised"
    CRASHED = "crashed"
    HUNG = "hung"
    UNSUPPORTED = "unsupported"
    ERROR = "error"

    @property
    def took_place(self) -> bool:
        """Whether the case was run at all."""
        return self not in (Termination.UNSUPPORTED, Termination.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """step: the step that was under way (-1: building or capturing), path: which path of it. what: a short
    coarse name that is the same for the same bug (an exception type, a CUDA error, a signal). detail: the full text."""

    how: Termination
    step: int = -1
    path: str = ""
    what: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedArray:
    """One recorded array: a copy made at once, since runners return views that the next replay overwrites."""

    step: int
    path: str
    name: str
    array: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """facts: short texts about the run (release, adapter, engine, torch, machine); seconds: time per stage
    (build, graph, history, eager, reference, record)."""

    ended: End
    seen: tuple[RecordedArray, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def replayed(self) -> set[int]:
        """The steps whose graph path was recorded."""
        return {seen.step for seen in self.seen if seen.path == "graph" and seen.step >= 0}

    def get(self, step: int, path: str, name: str) -> Array | None:
        """The array of that name, or None if it was not recorded."""
        for seen in self.seen:
            if seen.step == step and seen.path == path and seen.name == name:
                return seen.array
        return None

    def path(self, step: int, path: str) -> dict[str, Array]:
        """All arrays of one path of one step, by name."""
        return {s.name: s.array for s in self.seen if s.step == step and s.path == path}

    def paths(self, step: int) -> set[str]:
        """The paths of which something was recorded in this step."""
        return {s.path for s in self.seen if s.step == step}
