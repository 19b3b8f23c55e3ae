"""The folder of findings: a seed file for each target and fingerprint, on disk before anything else happens to it.

Better forms of a finding replace it. The form in which it was first seen, and whatever a later one would push out,
stay beside it under their digests.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from repro.cases import codec
from repro.cases.atomic_file import write_text
from repro.cases.case import Case, Target
from repro.cases.codec import TEXT_MAX, AboutValue, BadSeed, Seed, case_to_json
from repro.cases.json_parts import plain
from repro.cases.sort_key import sort_key
from repro.traces.finding import Finding
from repro.traces.trace import Trace
from repro.traces.trace_file import BadTrace, Kept, beside, save

_SHRUNK_FROM = "shrunk_from"
# Beside the seed of a failure that showed only in a process with a past: the setups that it had served, in order.
AFTER = ".after.txt"
# The same of one that showed only behind other cases, which are no part of it: all of them in one seed.
LEAD_UP = ".before.json"
# The parts that about() states of a finding; a person wrote everything else in a seed file.
STATED = (
    "found",
    "oracle",
    "where",
    "detail",
    "cell",
    "fingerprint",
    "failed",
    _SHRUNK_FROM,
    "consequences",
    "shrunk",
)


def keep(folder: Path, finding: Finding) -> Path:
    """Store this form of a finding and return its path, the same for every form. OSError if the disk refuses.

    The caller need not know what is stored already. Every form takes the place of the stored one; unless it is a
    simpler form, or the same one with more known about it, the stored one is put beside it first.
    """
    path = finding_path(folder, finding.target, finding.verdict.oracle, finding.verdict.fingerprint)
    path.parent.mkdir(parents=True, exist_ok=True)
    shrunk_from = _archive_previous(path, finding.case) if path.exists() else ""
    codec.write(path, Seed(about=about(finding, shrunk_from=shrunk_from), case=finding.case))
    if finding.after:
        setups = [case_to_json(Case(setup=setup, steps=()))["setup"] for setup in finding.after]
        write_text(path.with_suffix(AFTER), json.dumps(setups, indent=1) + "\n")
    if finding.lead_up:
        codec.write(path.with_suffix(LEAD_UP), Seed(about=about(finding), case=finding.lead_up))
    return path


def finding_path(folder: Path, target: Target, oracle: str, fingerprint: str) -> Path:
    """The file of a finding's best form."""
    return folder / re.sub(r"[^A-Za-z0-9.]+", "-", str(target)).strip("-") / f"{oracle}-{fingerprint}.json"


def about(finding: Finding, *, shrunk_from: str = "") -> dict[str, AboutValue]:
    """The `about` of a seed file that is stored for this finding."""
    verdict = finding.verdict
    seen = f"{finding.failed} of {finding.tried} runs in fresh processes" if finding.tried else "seen, not confirmed"
    cell = str(verdict.cell or "")
    texts = (str(finding.target), verdict.oracle, verdict.where, verdict.detail, cell, verdict.fingerprint, seen)
    shrunk = "until nothing more could be left out" if finding.smallest else ""
    lines = dict(zip(STATED, (*texts, shrunk_from, "; ".join(finding.consequences), shrunk), strict=True))
    return {name: plain(text, TEXT_MAX) for name, text in lines.items() if text}


def keep_trace(target: Target, seed: str, case: Case, trace: Trace) -> None:
    """Store the run behind a finding beside its seed, where `repro judge` finds it; nothing of one that is too large.
    OSError if the disk refuses."""
    with contextlib.suppress(BadTrace):
        save(beside(Path(seed)), Kept(case=case, target=target, trace=trace))


def keep_disagreement(path: Path, case: Case, texts: Sequence[str]) -> None:
    """Store a case on which two targets disagree, and how. OSError if the disk refuses."""
    path.parent.mkdir(parents=True, exist_ok=True)
    codec.write(path, Seed(about={"disagree": tuple(plain(text, TEXT_MAX) for text in texts)}, case=case))


def _archive_previous(path: Path, case: Case) -> str:
    """Put aside what the new case must not push out; the digest of the first form, if the new one came from it."""
    try:
        stored = codec.read(path)
    except BadSeed:
        # A person, or a disk, changed it: it must not be lost.
        path.replace(path.with_suffix(".unreadable"))
        return ""
    first = str(stored.about.get(_SHRUNK_FROM, ""))
    if stored.case == case:
        return first
    shrinks = sort_key(case) < sort_key(stored.case)
    if not (shrinks and first):
        write_text(path.with_suffix(f".{codec.digest(stored.case)}.json"), codec.dumps(stored))
    return (first or codec.digest(stored.case)) if shrinks else ""
