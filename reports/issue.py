"""A finding as an issue that sglang's maintainers can act on, in Markdown: what is known of it and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reports.events import release_and_engine
from reports.subjects import Subject, range_of
from repro.cases.bounded_file import read_text
from repro.cases.case import Case, Setup
from repro.cases.codec import AboutValue, loads, read
from repro.cases.launch import command
from repro.cases.places import code, fenced, markdown
from repro.cases.runner_facts import RUNNER_FACTS
from repro.cases.words import sentence
from repro.upstream import findings
from repro.upstream.findings import PublishedBug, of_seed
from repro.upstream.script import HELPER, helper

# The fields of python -m repro bisect --json that are used here.
_SPAN = {"first_bad", "last_good", "as_old_as", "last_bad", "first_fixed", "candidates"}
_CANDIDATE = {"name", "failed", "runs", "skipped"}
# Limit of each file that goes into the text.
BYTES_MAX = 16 << 20
# So many runs in fresh processes, all of which failed, rule out chance.
FRESH_MIN = 2
# By oracle: what is expected, and what is seen instead, of a place.
_ORACLES = {
    "slot0_padding": (
        "every padded row of an input buffer holds its neutral value when the graph is launched",
        "{} are not reset",
    ),
    "kv_indices": (
        "attention reads exactly the KV slots that `req_to_token` names, and all writes stay in buffers",
        "{} names other KV slots",
    ),
    "kv_reads": ("kernels read the KV slots of the batch's requests, whole, and no others", "{}"),
    "kv_writes": ("a call writes the KV slots of its tokens, and no others", "{}"),
    "kv_moves": ("every target of a KV move is an allocated slot or slot 0", "{}"),
    "metadata_shape": (
        "`kv_indptr` is monotone, its steps are the lengths of the requests, its end fits `kv_indices`",
        "{} is wrong in attention's metadata",
    ),
    "metadata_once": (
        "attention's metadata is made once, after the batch was padded, for what attention runs with",
        "attention's metadata: {}",
    ),
    "row_width": ("every sequence that attention reads fits its row of the page table", "{} is too narrow"),
    "graph_equals_eager": (
        "the graph leaves the same outputs and KV cache as an eager pass over the same batch",
        "graph and eager differ in {}",
    ),
    "reference": ("graph and eager give what the same call gives in float64", "graph and eager agree on {}"),
    "verified": (
        "a pass that no graph is compared with gives what a reference says, and writes its own KV slots alone",
        "{} is wrong",
    ),
    "staged": ("the real rows of an input buffer are the batch's when the graph is launched", "{} are not the batch's"),
    "bucket": ("the graph of the smallest bucket that holds the batch is launched, and is told its sizes", "{}"),
    "planned": ("attention is planned with the lengths of the padded batch", "{} that are not the batch's"),
    "history": ("a call does not depend on what ran before it", "{} depends on the batch before"),
    "attributes": ("a call leaves the attributes of workers, runners and backends as they were", "{} stays changed"),
    "kept_outputs": ("what a runner has given is as it was, while its worker still needs it", "{} changes afterwards"),
    "liveness": ("a graph uses memory that its owner still holds", "{}"),
    "memory": ("no kernel reads or writes outside of the memory that it is given", "{}"),
    "ended": ("the calls come to their end", "{}"),
}


class CannotTell(ValueError):
    """There is nothing under this name to write an issue of. The text, one line, says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The material of an issue. about: that of the seed file. span: what python -m repro bisect --json wrote.
    first: what python -m repro first printed. script, test, patch: the texts of
    these files. subject: what a ledger holds of it. bug: its row in the table of findings."""

    case: Case
    about: Mapping[str, AboutValue]
    span: Mapping[str, Any] = field(default_factory=dict)
    first: str = ""
    script: str = ""
    test: str = ""
    patch: str = ""
    subject: Subject | None = None
    bug: PublishedBug | None = None

    def said(self, name: str) -> str:
        text = self.about.get(name, "")
        return text if isinstance(text, str) else ""


def material(
    name: str, all_subjects: Sequence[Subject], span: Path | None, *, seen_on: str = "", **texts: str
) -> Material:
    """name: a seed file, or a finding's name in a ledger. all_subjects: the ledger's subjects of that name. span: the
    file that bisection wrote. seen_on: the issue's target, if not that on which the failure was found. CannotTell,
    BadSeed; OSError if a file cannot be read."""
    subject = next(iter(all_subjects), None)
    path = Path(name)
    if path.is_file() or path.suffix == ".json":
        seed = read(path)
    elif subject and subject.minimal.text:
        seed = loads(subject.minimal.text)
    elif subject:
        raise CannotTell(f"{name}: its smallest case is missing")
    else:
        raise CannotTell(f"{name}: no such seed file, and no such finding in the ledger")
    range_found = _span(span) if span else {}
    about = dict(seed.about)
    if seen_on:
        # How often it failed was counted elsewhere.
        about = {name: value for name, value in about.items() if name != "failed"} | {"found": seen_on}
    bug = of_seed(findings.load(), path.name)
    return Material(case=seed.case, about=about, span=range_found, subject=subject, bug=bug, **texts)


def _span(path: Path) -> dict[str, Any]:
    try:
        form = json.loads(read_text(path, BYTES_MAX))
    except (ValueError, RecursionError):
        form = None
    whole = isinstance(form, dict) and form.keys() >= _SPAN and isinstance(form["candidates"], list)
    if not whole or not all(
        isinstance(candidate, dict) and candidate.keys() >= _CANDIDATE for candidate in form["candidates"]
    ):
        raise CannotTell(f"{path}: is not what python -m repro bisect --json writes")
    return dict(form)


def issue(material: Material) -> str:
    """The whole text. What is not known of a finding has no section."""
    sections = (
        ("", _summary(material)),
        ("Environment", _environment(material)),
        ("Smallest configuration", _configuration(material.case.setup)),
        ("Steps", _steps(material)),
        ("Expected and seen", _expected(material)),
        ("Affected releases", _escaped(_range(material))),
        ("Known upstream", _known_upstream(material)),
        ("Reproducer", _file(material.script, "python", "needs sglang and torch alone")),
        ("Candidate patch", _file(material.patch, "diff", "")),
        ("Test", _test(material.test)),
        ("Ruled out", _escaped(_ruled_out(material))),
    )
    parts = []
    for heading, lines in sections:
        if body := "\n".join(lines):
            parts.append(f"### {heading}\n\n{body}" if heading else body)
    return "\n\n".join(parts) + "\n"


def _escaped(items: Iterator[str]) -> Iterator[str]:
    """The items of a list, whose texts are of files and ledgers."""
    return (f"- {markdown(item.removeprefix('- '))}" for item in items)


def title(material: Material) -> str:
    """The seed's own, if it has one, or its finding's; else the runner and the symptom."""
    if stated := material.said("title") or (material.bug.title if material.bug else ""):
        return f"[Bug] {stated}"
    runner = material.case.setup.runner
    return f"[Bug] {RUNNER_FACTS[runner].title or runner}: {_symptom(material)}"


def _symptom(material: Material) -> str:
    oracle, where = _oracle(material), _where(material)
    if not oracle:
        return f"a case fails{f' at {where}' if where else ''}"
    return _ORACLES[oracle][1].format(where) if oracle in _ORACLES else f"{where} fails the check {oracle}"


def _oracle(material: Material) -> str:
    return material.said("oracle") or (material.subject.oracle if material.subject else "")


def _detail(material: Material) -> str:
    return material.said("detail") or (material.subject.detail if material.subject else "")


def _where(material: Material) -> str:
    where = material.said("where") or (material.subject.name if material.subject else "")
    return where or material.said("oracle")


def _summary(material: Material) -> Iterator[str]:
    yield f"# {markdown(title(material))}"
    yield ""
    if material.bug:
        yield material.bug.impact
    fix = material.said("fix").removeprefix("not fixed: ")
    if fix:
        yield markdown(f"{fix[0].upper()}{fix[1:].rstrip('.')}.")
    note = material.said("note")
    if note:
        yield markdown(f"{note[0].upper()}{note[1:].rstrip('.')}.")
    if not (fix or note) and _oracle(material):
        setup = material.case.setup
        yield f"With {setup.algorithm} over {setup.backend}, topk {setup.topk}, {markdown(_symptom(material))}."


def _environment(material: Material) -> Iterator[str]:
    if finder := material.said("found"):
        release, engine = release_and_engine(finder)
        where = {"emulated": "CPU tensors, Triton's interpreter, no GPU", "cuda": "an NVIDIA GPU"}.get(engine, engine)
        yield f"- sglang {'at ' if '@' in finder else ''}{markdown(release)}, on {markdown(where)}"
    for row in material.subject.founds[:1] if material.subject else ():
        yield f"- found by a campaign of random cases, case {row.at_case}"


def _sizes(width: int, heads: int, groups: int, dim: int) -> str:
    return f"hidden size {width}, {heads} heads, {groups} of them for keys and values, of {dim}"


def _configuration(setup: Setup) -> Iterator[str]:
    yield "A model of one layer; in the flags of a server:"
    yield ""
    yield "```"
    yield command(setup)
    yield "```"
    sizes = (setup.hidden_size, setup.num_heads, setup.num_kv_heads, setup.head_dim)
    others = (setup.draft_hidden_size, setup.draft_num_heads, setup.draft_num_kv_heads, setup.draft_head_dim)
    yield f"{_sizes(*sizes)}, vocabulary {setup.vocab_size}; dummy weights do."
    if any(others):
        drafts = (other or size for other, size in zip(others, sizes, strict=True))
        yield f"The draft model has other sizes: {_sizes(*drafts)}."
    whose = "target" if RUNNER_FACTS[setup.runner].windowed == "target" else "draft model"
    if setup.window:
        seen = f"a token attends to {setup.window} tokens before it and itself"
        yield f"The {whose}'s layers have a sliding window: {seen}."
    if setup.rejection:
        yield "Drafts are drawn at random (speculative_use_rejection_sampling), alike in all runs."
    if setup.mrope:
        yield "The draft model has positions in three dimensions (rope_scaling with mrope_section)."
    if setup.logit_cap:
        yield f"Attention's logits level off at {setup.logit_cap} (attn_logit_softcapping)."
    if setup.overhang:
        yield "The requests are near the end of the context; their drafts reach behind it."
    if not setup.mirrored:
        yield "No attention backend asks for lengths on the host."


def _steps(material: Material) -> Iterator[str]:
    case = material.case
    yield f"{sentence(case)[0].upper()}{sentence(case)[1:]}:"
    yield ""
    for number, step in enumerate(case.steps):
        requests = ", ".join(
            f"request slot {r.slot} with {r.seq_len} token{'s' * (r.seq_len != 1)} in its KV cache"
            + (f" of which {r.accepted} were drafts just accepted" if r.accepted else "")
            for r in step.requests
        )
        size = len(step.requests)
        bucket = f" (bucket {case.setup.bucket(step.busiest)})" if step.busiest <= case.setup.max_bs else ""
        beside = f" beside {step.elsewhere} on the other rank" if case.setup.dp_attention else ""
        yield f"{number}. a batch of {size}{beside}{bucket}: {requests}"


def _expected(material: Material) -> Iterator[str]:
    if oracle := _oracle(material):
        yield f"- expected: {_ORACLES[oracle][0] if oracle in _ORACLES else f'the check {markdown(oracle)} passes'}"
    if detail := _detail(material):
        yield f"- seen: {markdown(detail)}"
    if cell := material.said("cell"):
        yield f"- first wrong value: {code(cell)}"
    if failed := material.said("failed"):
        yield f"- how often: {markdown(failed)}"
    if material.first:
        yield "- where it comes from:"
        yield ""
        yield fenced(material.first.strip())


def _range(material: Material) -> Iterator[str]:
    span = material.span
    if span.get("first_bad"):
        good = span["last_good"] or f"none: {span['as_old_as']}"
        yield f"- last good: {good}; first bad: {span['first_bad']}"
        yield f"- last bad: {span['last_bad']}; first fixed: {span['first_fixed'] or 'none, it is still there'}"
        runs = [
            f"{candidate['name']} {candidate['failed']}/{candidate['runs']}"
            for candidate in span["candidates"]
            if candidate["runs"]
        ]
        yield f"- failed runs of all: {', '.join(runs)}"
        reasons = dict.fromkeys(candidate["skipped"] for candidate in span["candidates"] if candidate["skipped"])
        for reason in reasons:
            names = [candidate["name"] for candidate in span["candidates"] if candidate["skipped"] == reason]
            yield f"- {', '.join(names)} {'was' if len(names) == 1 else 'were'} not measured: {reason}"
    elif material.subject:
        for engine in ("emulated", "cuda"):
            if span_text := range_of(material.subject, engine):
                yield f"- {span_text}" + (" (no GPU)" if engine == "emulated" else "")
    elif isinstance(expect := material.about.get("expect"), Mapping):
        yield from (f"- {releases}: {outcome}" for releases, outcome in expect.items())


def _known_upstream(material: Material) -> Iterator[str]:
    if upstream := material.bug and material.bug.upstream:
        yield f"- {upstream} (stored copies of public threads; no live tracker was asked)"
        if upstream.words:
            yield f"- searched for: {upstream.words}"
        if upstream.kin:
            yield f"- near it: {upstream.kin}"


def _file(text: str, language: str, summary: str) -> Iterator[str]:
    if text:
        if summary:
            yield f"<details><summary>{summary}</summary>"
            yield ""
        yield fenced(text, language)
        if summary:
            yield "</details>"


def _test(text: str) -> Iterator[str]:
    yield from _file(text, "python", "in the form of test/registered: fails as published, passes with the patch")
    if Path(HELPER).stem in text:
        yield from _file(helper(), "python", f"python/{HELPER}: stand-ins that such tests share")


def _ruled_out(material: Material) -> Iterator[str]:
    """Only what was run: chance, other releases, the cause lying elsewhere."""
    failed = material.said("failed")
    counts = re.match(r"(\d+) of (\d+) ", failed)
    if counts and counts[1] == counts[2] and int(counts[2]) >= FRESH_MIN:
        yield f"- chance: it failed in {failed}"
    clean = [
        candidate["name"]
        for candidate in material.span.get("candidates", ())
        if candidate["runs"] and not candidate["failed"]
    ]
    if clean:
        yield f"- the reproducer itself: the same calls pass on {', '.join(clean)}"
    if material.patch and material.script:
        yield "- another cause: with the patch above, and nothing else changed, the reproducer passes"
    if material.said("found").endswith(("/emulated", "@emulated")):
        yield "- the GPU, its driver and asynchronous launches: it shows on CPU tensors"
    if shrunk := material.said("shrunk"):
        yield f"- anything else in the case: it was made smaller {shrunk}"


def candidates(subjects: Sequence[Subject], name: str) -> list[Subject]:
    """The subjects of a ledger that a fingerprint, an anchor or a seed's name means."""
    return [
        subject
        for subject in subjects
        if name
        in (
            subject.fingerprint,
            subject.anchor,
            subject.name,
            subject.name.removesuffix(".json"),
            f"finding-{subject.fingerprint}",
        )
    ]
