"""The results of a cluster's campaign: those of its chunks put together, and one board of findings, so that
each failure is confirmed and made small by one chunk, wherever it was seen.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

from fuzz.campaign import ATTEMPTS_MAX, REFUSALS_MAX
from fuzz.cluster.chunk import Chunk, settling
from fuzz.cluster.merge import merged
from fuzz.stats import Plan
from repro.traces.campaign import Campaign, CampaignFinding
from repro.traces.finding import Finding
from repro.traces.trace import Termination


class Board:
    """Mutable: it takes results, each once. keep: store a form of a finding, which replaces earlier ones, and return
    its path. seconds: since the campaign began."""

    def __init__(self, plan: Plan, empty: Campaign, keep: Callable[[Finding], str]) -> None:
        self.total = empty
        self._plan, self._keep = plan, keep
        self._attempts: Counter[str] = Counter()  # chunks that settle a failure, by fingerprint
        self._at_work: set[str] = set()  # failures that such a chunk is at

    def take(self, chunk: Chunk, part: Campaign, seconds: float) -> list[Chunk]:
        """Merge what a chunk came to; the chunks that settle what it saw for the first time."""
        if chunk.settle:
            self._settled(chunk, part, seconds)
            return []
        began = max(0.0, seconds - part.seconds)
        before = self.total.cases
        parts = tuple(
            dataclasses.replace(new, seed="", at_case=before + new.at_case, at_seconds=began + new.at_seconds)
            for new in part.findings
        )
        known = {finding.fingerprint: finding for finding in self.total.findings}
        self.total = merged([self.total, dataclasses.replace(part, findings=parts, stopped=self.total.stopped)])
        chunks = []
        for finding in parts:
            if finding.fingerprint not in known:
                self._store(finding)
            if self._wanted(finding.fingerprint):
                self._attempts[finding.fingerprint] += 1
                self._at_work.add(finding.fingerprint)
                chunks.append(settling(chunk, finding.fingerprint, finding.case))
        return chunks

    def _wanted(self, fingerprint: str) -> bool:
        """True if this failure is to be settled: it is unconfirmed and no chunk is working on it."""
        known = next(finding for finding in self.total.findings if finding.fingerprint == fingerprint)
        free = fingerprint not in self._at_work and not known.failed
        return self._plan.triage and free and self._attempts[fingerprint] < ATTEMPTS_MAX

    def _settled(self, chunk: Chunk, part: Campaign, seconds: float) -> None:
        """Take in the result of settling a failure. Its cases have been counted before."""
        self._at_work.discard(chunk.settle)
        known = next(finding for finding in self.total.findings if finding.fingerprint == chunk.settle)
        form = next((finding for finding in part.findings if finding.fingerprint == chunk.settle), None)
        if form is None:
            # The same cases in a new process, and it was not seen.
            form = dataclasses.replace(known, failed=0, tried=max(known.tried, 1))
        forms = dataclasses.replace(
            form, seed="", cases=known.cases, at_case=known.at_case, at_seconds=known.at_seconds, done_seconds=seconds
        )
        if (forms.failed > 0, forms.tried) >= (known.failed > 0, known.tried):
            self._replace(forms)
            self._store(forms)
        runs = {how: count + part.errors.get(how, 0) for how, count in self.total.errors.items()}
        stages = {**self.total.stages}
        for name in ("confirm", "shrink", "store"):
            stages[name] = stages.get(name, 0.0) + part.stages.get(name, 0.0)
        self.total = dataclasses.replace(self.total, errors={**part.errors, **runs}, stages=stages)

    def _store(self, finding: CampaignFinding) -> None:
        self._replace(dataclasses.replace(finding, seed=self._keep(finding.finding)))

    def _replace(self, finding: CampaignFinding) -> None:
        others = (finding if known.fingerprint == finding.fingerprint else known for known in self.total.findings)
        self.total = dataclasses.replace(self.total, findings=tuple(others))

    @property
    def confirmed(self) -> bool:
        """True if a failure has come back in a fresh process."""
        return any(finding.failed for finding in self.total.findings)

    @property
    def cannot_run(self) -> bool:
        """True if so many cases were tried, and not one run took place."""
        ran = sum(count for how, count in self.total.endings.items() if Termination(how).took_place)
        return self.total.cases >= REFUSALS_MAX and not ran
