"""For each kind of failure the functions to be looked at, the likeliest first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from repro.suspects import of_rounds
from repro.suspects.clues import BACKENDS, WORKERS, Clues, Suspect
from repro.suspects.names import features_of, names_of
from repro.suspects.parting import parted
from repro.suspects.races import unordered
from repro.suspects.raised import raised
from repro.suspects.statements import Does, plain
from repro.suspects.way import BUILD, CAPTURE
from repro.traces.finding import Verdict
from repro.traces.paths import Recorded

_KERNELS, _EXECUTOR, _POOLS = "sglang/kernels/", "sglang/srt/model_executor/", "sglang/srt/mem_cache/"
# Classes of batches: their functions hand on what others make.
_BATCHES = re.compile(r"/(forward_batch_info|eagle_info\w*|spec_info|schedule_batch)\.py$")
ROOM = re.compile(r"too narrow|past the end|guard band|no room")
_OUTSIDE = re.compile(r"(load|store) outside (\S+) in (\S+)")
_STATE_SLOTS = ("mamba_track_indices", "mamba_cache_indices", "mamba_indices", "state_indices")
Rule = Callable[[Clues, Verdict], Iterator[Suspect]]


def _step(verdict: Verdict) -> int:
    return verdict.cell.step if verdict.cell else 0


def _refused(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    phases = clues.way.of_step(_step(verdict), "asked", "graph")
    # The runner was asked, and asks others.
    yield from reversed(list(clues.ran(phases, r"can_run|fits", "it refused the batch")))


def _unwritten(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """A buffer that the call does not write: those who write it elsewhere in the path, then those who fill others."""
    step = _step(verdict)
    phases = clues.way.of_step(step, "graph")
    written = clues.by_name(
        phases, names_of(verdict, clues.case.setup), (Does.WRITES, Does.STORES), "it writes the buffer"
    )
    yield from (suspect for suspect in written if not suspect.file.startswith(BACKENDS))
    places = clues.writers(step)
    often = Counter(clues.at(*place) for place in places)
    for function, _ in often.most_common():
        line = next(line for file, line in places if clues.at(file, line) == function)
        yield Suspect(function, line, "it fills the other input buffers of the call, but not this one")
        yield from islice(clues.callers(function, phases, "it calls what fills the input buffers"), 1)


def _stale(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """Padded rows of an input buffer: who fills it, who says how it is filled, else who should."""
    step, names = _step(verdict), names_of(verdict, clues.case.setup)
    places = clues.writers(step, verdict.cell.buffer if verdict.cell else "")
    phases = clues.way.of_step(step, "graph", "replay")
    for place in places:
        yield from clues.up(place, phases, names, "it fills the buffer and leaves padded rows unchanged")
    if places:
        yield from clues.by_name((BUILD, CAPTURE), names, (Does.NAMES,), "it defines how the buffer is filled")
    yield from (Suspect(clues.at(*place), place[1], "it wrote the buffer") for place in places)
    yield from _unwritten(clues, verdict)


def _planned(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """A batch as attention's backend gets it: who makes that field, then who hands the batch over."""
    phases = clues.way.of_step(_step(verdict), "graph")
    if verdict.where.endswith("backend"):
        names = {"attn_backend", f"{clues.case.setup.runner}_attn_backend"}
        setters = clues.by_name((BUILD,), names, (Does.ASSIGNS,), "it sets the attention backend of a model runner")
        yield from (suspect for suspect in setters if suspect.file.startswith(WORKERS))
    does = (Does.ASSIGNS, Does.WRITES, Does.MAKES)
    for suspect in clues.by_name(phases, names_of(verdict, clues.case.setup), does, "it computes the planned values"):
        if not suspect.file.startswith(BACKENDS) and not _BATCHES.search(suspect.file):
            yield suspect
    yield from clues.planners(phases)


def _plan(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """A part of attention's metadata: who hands over too few KV slots for padded rows, who allocates it if it has no
    room, else who writes it."""
    phases = clues.way.of_step(_step(verdict), "graph", "verify")
    if "padded row" in verdict.where and clues.slots_end_with_the_batch(_step(verdict)):
        yield from clues.planners(phases)
    names = names_of(verdict, clues.case.setup)
    if verdict.oracle == "kv_reads":
        names = {"kv_indices", "page_table"}
        names |= {f"window_{name}" for name in names} if "window" in verdict.where else set()
    if ROOM.search(f"{verdict.where} {verdict.cell.got if verdict.cell else ''}"):
        yield from clues.makers(names)
    if not any(clues.by_name(phases, names, tuple(Does), "")):
        names = {name.removeprefix("window_") for name in names}
    writers = list(clues.by_name(phases, names, (Does.WRITES,), "it writes the wrong values of attention's metadata"))
    written = [
        *(caller for writer in writers[:1] for caller in clues.handing(writer, phases, names)),
        *writers,
        *clues.by_name(phases, names, (Does.MAKES, Does.ASSIGNS, Does.HANDS), "it builds this part of the metadata"),
        *clues.by_name(phases, names, (Does.STORES,), "the kernel that writes it"),
    ]
    yield from sorted(written, key=lambda suspect: not suspect.file.startswith(BACKENDS))
    yield from clues.makers(names)


def _outside(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """A kernel left its memory: who said that there is room, who made the argument, who launches the kernel, and the
    kernel."""
    match = _OUTSIDE.match(verdict.where)
    if not match:
        return
    step = _step(verdict)
    phases = [phase for phase in clues.way.phases if step < 0 or phase.split()[0] in (str(step), "-1")]
    names, launchers, kernels = {plain(match[2])}, list[Suspect](), list[Suspect]()
    for ran in clues.way.during(*phases):
        if ran.short == match[3]:
            kernels.append(Suspect(ran.function, min(ran.lines, default=0), "the kernel"))
            for caller, line in ran.callers:
                launchers.append(Suspect(caller, line, f"it launches {ran.short}"))
                names |= clues.arguments(caller, line, ran, match[2])
    guards = clues.ran(phases, r"^fits|_fits$|^has_room", "it said that there is room")
    yield from (guard for guard in guards if any(name.replace("_", "") in guard.function[1].lower() for name in names))
    if match[1] == "store":
        yield from launchers
    makers = clues.by_name(phases, names, (Does.MAKES,), "it creates the kernel's argument")
    yield from sorted(makers, key=lambda suspect: not suspect.file.startswith(BACKENDS))
    yield from clues.makers(names)
    handing = clues.by_name(phases, names, (Does.ASSIGNS,), "it passes this to the kernel unchanged")
    yield from (suspect for suspect in handing if suspect.file.startswith(BACKENDS))
    yield from (*launchers, *kernels)


def _once(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """Metadata and the padding of a batch without a graph: who plans, who verifies, who pads."""
    phases = clues.way.of_step(_step(verdict))
    planners = list(clues.planners(phases))
    workers = list(clues.ran(phases, r"^(verify|draft_extend)$", "it runs the pass", within=WORKERS))
    padding = [
        *clues.ran(phases, r"^prepare_mlp_sync", "it pads the batch", within=_EXECUTOR),
        *clues.ran(phases, r"^_pad_", "it pads the batch", within=_EXECUTOR),
    ]
    of_workers = [suspect for suspect in planners if suspect.file.startswith(WORKERS)]
    if "tokens" in verdict.where:
        yield from (*padding[:1], *workers, *padding, *planners)
    else:
        yield from (*of_workers, *workers, *planners, *padding)


def _moved(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    phases = clues.way.of_step(_step(verdict), verdict.where.partition(":")[0])
    names = names_of(verdict, clues.case.setup)
    stores = clues.by_name(phases, names, (Does.STORES,), "it stores the wrong values")
    makers = clues.by_name(phases, names, (Does.WRITES, Does.MAKES), "it builds the list")
    # A tail that is no slot at all is memory that nobody wrote.
    yield from (*makers, *stores) if "neither allocated" in verdict.where else (*stores, *makers)
    for folder in (f"{_KERNELS}ops/speculative/", WORKERS):
        yield from clues.ran(phases, "", "the move goes through it", within=folder)


def _attribute(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    owner, _, name = (verdict.cell.buffer if verdict.cell else "").partition(".")
    # It should be there when the first call comes.
    for phases in ((BUILD, CAPTURE), clues.way.phases):
        for suspect in clues.by_name(phases, {plain(name)}, tuple(Does), "it uses the attribute"):
            if suspect.function[1].partition(".")[0] == owner:
                yield suspect


def _slots(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """KV was written where it must not: who says where tokens, and padded ones, write."""
    phases = clues.way.of_step(_step(verdict), "graph")
    does = (Does.WRITES, Does.STORES, Does.ASSIGNS)
    for names in ({"swa_out_cache_loc", "out_cache_loc_swa"}, {"out_cache_loc"}):
        writers = clues.by_name(phases, names, does, "it assigns the slots that tokens write")
        # Pools write what they are handed.
        yield from sorted(writers, key=lambda suspect: suspect.file.startswith(_POOLS))


def _output(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """Wrong outputs: who goes by what is in play, who drives the model, who computes attention."""
    step, names = _step(verdict), names_of(verdict, clues.case.setup)
    graph = clues.way.of_step(step, "graph", "replay")
    eager = clues.way.of_step(step, "eager", "verify")
    if verdict.cell and verdict.cell.buffer.endswith("_pool"):
        yield from clues.by_name(graph, names, (Does.STORES, Does.WRITES, Does.HANDS), "it writes the wrong output")
        for reader in clues.by_name(graph, names, (Does.ASSIGNS, Does.READS), "it uses the output"):
            yield from (reader, *clues.callers(reader.function, (CAPTURE, *graph), f"it calls {reader.function[1]}"))
    if verdict.oracle == "graph_equals_eager":
        yield from parted(clues, step)
    if clues.case.setup.rejection and verdict.cell and verdict.cell.buffer == "tokens":
        yield from _drawing(clues, (CAPTURE, *eager))
    # Where KV alone is wrong, attention is right: it would show in the outputs.
    words = [] if verdict.cell and verdict.cell.buffer == "kv" else features_of(verdict)
    if words and clues.case.setup.backend == "flashinfer":
        # Its kernels go by what they were planned with.
        yield from clues.ran((*graph, *eager), r"begin_forward|update_sliding", "it plans the kernels", within=BACKENDS)
    yield from _by_feature(clues, (CAPTURE, *graph, *eager), words)
    for ran in clues.way.during(*eager, CAPTURE):
        if ran.short.startswith(("forward", "_forward_raw")) and "model_runner" in ran.file:
            drivers = [call for call in ran.callers if call[0][0].startswith(WORKERS)]
            yield from (Suspect(caller, line, "it drives the model step by step") for caller, line in drivers)
    attention = r"forward_(extend|decode)|metadata|call_begin_forward"
    yield from clues.ran(eager, attention, "it computes or plans attention", within=BACKENDS)


def _drawing(clues: Clues, phases: Sequence[str]) -> Iterator[Suspect]:
    """Drafts that are drawn at random: who has them drawn by functions that serve all workers, then these."""
    draws = list(clues.ran(phases, r"sample", "it draws drafts at random", within=WORKERS))
    callers = (each for draw in draws for each in clues.callers(draw.function, phases, "it has drafts drawn at random"))
    yield from (caller for caller in callers if caller.file not in {draw.file for draw in draws})
    yield from draws


def _kept(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """A row of KV with which rounds go on: who prefills, or who keeps what a round has accepted."""
    cell = verdict.cell
    requests = clues.trace.get(cell.step, Recorded.ROUND_GRAPH, "requests") if cell else None
    if cell is None or requests is None:
        return
    prompts = [request.seq_len for step in clues.case.steps for request in step.requests]
    number = int(requests.reshape(-1)[cell.row])
    if number < len(prompts) and cell.column < prompts[number]:
        pattern, reason = r"(?<!arg)_prefill|^prefill", "it prefills, and the row is of a prompt's token"
    elif cell.buffer.startswith("draft"):
        pattern, reason = r"draft_extend(?!.*prefill)", "it writes the draft's rows of accepted tokens"
    else:
        pattern, reason = r"accept|move", "it keeps the rows of accepted tokens"
    phases = [phase for phase in clues.way.phases if phase not in (BUILD, CAPTURE)]
    yield from clues.ran(phases, pattern, reason, within=WORKERS)


def _states(clues: Clues, verdict: Verdict) -> Iterator[Suspect]:
    """Recurrent states, written in slots of others or with wrong values: who says which slots rows and copies have.
    First those that the other way does not go through, if it does not fail."""
    graph, eager = (clues.way.of_step(_step(verdict), path) for path in ("graph", "eager"))
    phases, others = (eager, graph) if "eager" in verdict.where else (graph, eager)
    does = (Does.WRITES, Does.MAKES, Does.ASSIGNS, Does.HANDS)
    passed = {ran.function for ran in clues.way.during(*others)}
    writers = clues.by_name(phases, _STATE_SLOTS, does, "it says which slots of recurrent states are written")
    of_backends = (writer for writer in writers if writer.file.startswith(BACKENDS))
    yield from sorted(of_backends, key=lambda writer: writer.function in passed)


def _by_feature(clues: Clues, phases: tuple[str, ...], words: list[str]) -> Iterator[Suspect]:
    """Functions of attention by the number of lines with one of these words that ran; kernels first."""
    counts: list[tuple[bool, int, Suspect]] = []
    for ran in clues.way.during(*phases) if words else ():
        is_class = ran.function[1][:1].isupper() and "." not in ran.function[1]  # its body, as it is imported
        if not is_class and ran.file.startswith((BACKENDS, f"{_KERNELS}ops/attention/")):
            lines = clues.text(ran.file).lower().splitlines()
            spoken = [n for n in ran.lines if n <= len(lines) and any(word in lines[n - 1] for word in words)]
            if spoken:
                suspect = Suspect(ran.function, min(spoken), f"{len(spoken)} of its lines go by what is in play")
                counts.append(("kernel" in ran.short, len(spoken), suspect))
    yield from (suspect for _, _, suspect in sorted(counts, key=lambda count: count[:2], reverse=True))


RULES: Mapping[str, Rule] = {
    "ended": lambda clues, verdict: raised(clues),
    "bucket": _refused,
    "staged": _unwritten,
    "slot0_padding": _stale,
    "planned": _planned,
    "extents": _planned,
    "metadata_shape": _plan,
    "row_width": _plan,
    "tree_mask": _plan,
    "kv_indices": _plan,
    "kv_reads": _plan,
    "memory": _outside,
    "metadata_once": _once,
    "kv_moves": _moved,
    "attributes": _attribute,
    "kv_writes": _slots,
    "kv_rows": _kept,
    "order": unordered,
    "state_writes": _states,
    "state_values": _states,
    "graph_equals_eager": _output,
    "reference": _output,
    "history": _output,
    "logits": _output,
    "text": _output,
    "collectives": of_rounds.collective,
    "leaks": of_rounds.leaked,
    "reported": of_rounds.counted,
    "padded": of_rounds.padding,
    "lifetime": of_rounds.outlived,
    "handed_on": of_rounds.handed,
    "fallback": of_rounds.refused,
}
