"""Attention's metadata is made exactly once for a forward pass, after the batch was padded, and speaks of as many
tokens and requests as attention then runs with. Parallel layers are told of the tokens that each rank has, and a batch
whose group has several is padded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oracles.trace_index import Record, Wrong, conclude
from repro.cases.case import Case
from repro.traces.finding import Cell, Verdict
from repro.traces.paths import Recorded
from repro.traces.trace import Array, Trace

ORACLE = "metadata_once"
REQUESTS = "a batch of requests that its tokens do not make up"
NONE = "no metadata made after padding"
AGAIN = "metadata made more than once"
SHAPES = "metadata and attention of different shapes"
RANKS = "tokens of all ranks"
UNPADDED = "a batch that is not padded for its group"
ORDER = (REQUESTS, NONE, AGAIN, SHAPES, RANKS, UNPADDED)
UNTOLD = -1  # metadata that does not say


def judge(case: Case, trace: Trace) -> Verdict:
    record = Record(trace)
    wrongs: list[Wrong] = []
    compared = 0
    for step in range(len(case.steps)):
        attention, padding = record.path(step, Recorded.ATTENTION), record.path(step, Recorded.PADDING)
        each = case.setup.num_draft_tokens
        wrongs += _wrong_requests(step, "padding", padding, each)
        wrongs += _wrong_ranks(step, case, record.path(step, Recorded.RANKS))
        if not attention:
            continue
        compared += len(attention["at"])
        if not padding:
            detail = f"In step {step} attention runs, and nobody has padded the batch for the group's other ranks."
            wrongs.append(Wrong(where=UNPADDED, detail=detail, cell=_cell(step, "padding", 0, 1)))
        wrongs += _wrong_times(step, attention, record.path(step, Recorded.METADATA), padding)
        wrongs += _wrong_requests(step, "attention", attention, each)
        wrongs += _wrong_shapes(step, attention)
    return conclude(ORACLE, wrongs, compared, nothing="no attention recorded", order=ORDER)


def _wrong_times(
    step: int, attention: Mapping[str, Array], metadata: Mapping[str, Array], padding: Mapping[str, Array]
) -> Iterator[Wrong]:
    """A pass that is not padded has its metadata made once all the same."""
    times = [int(at) for at in metadata.get("at", ()) if at < attention["at"][0]]
    padded = int(padding["at"][-1]) if padding else -1
    late = [at for at in times if at > padded]
    if not late:
        detail = f"In step {step} attention has no metadata of this batch and reads an earlier batch's."
        if times:
            shapes = f"for {metadata['tokens'][0]} tokens, before the batch is padded to {padding['tokens'][-1]}"
            detail = f"In step {step} attention's metadata is made {shapes}."
        yield Wrong(where=NONE, detail=detail, cell=_cell(step, "metadata after padding", 0, 1))
    if len(times) > 1:
        detail = f"In step {step} attention's metadata is made {len(times)} times before attention runs."
        yield Wrong(where=AGAIN, detail=detail, cell=_cell(step, "metadata", len(times), 1))


def _wrong_requests(step: int, path: str, seen: Mapping[str, Array], each: int) -> Iterator[Wrong]:
    """each: tokens of a request, of one that pads too."""
    for tokens, requests in zip(seen.get("tokens", ()), seen.get("requests", ()), strict=True):
        if tokens != requests * each:
            cell = _cell(step, f"{path} requests", requests, tokens // each)
            detail = (
                f"In step {step}, at {path}, there are {tokens} tokens, which are {tokens // each} requests of {each},"
            )
            yield Wrong(where=REQUESTS, detail=f"{detail} but the batch says {requests}.", cell=cell)


def _wrong_ranks(step: int, case: Case, ranks: Mapping[str, Array]) -> Iterator[Wrong]:
    """This rank comes first of two; the other one is the busiest, and full: buckets are sized for it."""
    if not ranks:
        return
    each, requests = case.setup.num_draft_tokens, len(case.steps[step].requests)
    real = [each * requests, each * case.setup.bucket(requests)]
    tokens = [real[1]] * 2 if ranks["padded to the busiest"][0] else real
    expected = {
        "global_num_tokens_cpu": tokens,
        "global_num_tokens_gpu": tokens,
        "global_num_tokens_for_logprob_gpu": real,
        "global_dp_buffer_len": [sum(tokens)],
        "gathered": [sum(tokens)],
        "own": tokens[:1],
        "each": tokens,
        "batch padded to the busiest": ranks["padded to the busiest"].tolist(),
    }
    for name, want in expected.items():
        if name in ranks and ranks[name].tolist() != want:
            cell = Cell(step=step, buffer=name, row=0, column=0, got=str(ranks[name].tolist()), want=str(want))
            detail = f"In step {step} {name} says {cell.got} of two ranks with {real} tokens, expected {cell.want}."
            yield Wrong(where=RANKS, detail=detail, cell=cell)


def _wrong_shapes(step: int, attention: Mapping[str, Array]) -> Iterator[Wrong]:
    for kind in ("tokens", "requests"):
        for runs, planned in zip(attention[kind], attention[f"planned_{kind}"], strict=True):
            if planned not in (UNTOLD, runs):
                cell = _cell(step, f"planned {kind}", planned, runs)
                detail = f"In step {step} attention runs with {runs} {kind}, and its metadata speaks of {planned}."
                yield Wrong(where=SHAPES, detail=detail, cell=cell)


def _cell(step: int, buffer: str, got: int, want: int) -> Cell:
    return Cell(step=step, buffer=buffer, row=0, column=0, got=str(got), want=str(want))
