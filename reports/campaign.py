"""A campaign that has ended, in a few lines."""

from __future__ import annotations

from reports.lines import lines_run
from reports.wording import counted, duration
from repro.traces.campaign import Campaign

REASONS_SHOWN = 5  # the JSON has all


def _errors(done: Campaign) -> str:
    return f", {counted(sum(done.errors.values()), 'error')}" if done.errors else ""


def _first_case(seed: str) -> str:
    return f"; the first case (repro run --known-issues): {seed}" if seed else ""


def brief(done: Campaign) -> list[str]:
    """Its cases and findings; errors, if there are any."""
    return [line for number, line in enumerate(summary(done)) if not number or line.startswith("  ERROR: ")]


def summary(done: Campaign) -> list[str]:
    """Doubts and troubles are never left out, only cut."""
    lines = [
        f"{done.target}: {counted(done.cases, 'case')} ({done.judged:,} judged) on {counted(done.setups, 'setup')}, "
        f"{counted(done.replays, 'replay')} in {duration(done.seconds)}, transitions {len(done.transitions)} of "
        f"{done.transitions_possible}, {counted(len(done.findings), 'finding')}{_errors(done)}; stopped: {done.stopped}"
    ]
    if done.aim:
        lines.append(f"  drawn with --runner {done.runner} --backend {done.backend} {done.aim} --seed {done.seed}")
    if done.skipped:
        lines.append(f"  {done.skipped:,} more cases were not run, as their setup could not be built")
    if done.states_missing:
        lines.append(f"  states in no replay: {'; '.join(done.states_missing)}")
    if done.lines:
        ran, every = lines_run([done])
        lines.append(f"  lines of sglang: {ran:,} of {every:,} in {counted(len(done.lines), 'file')}")
    lines += [f"  {name}: {done.facts[name]}" for name in ("reference", "drafts") if name in done.facts]
    # Each run of triage opens a session of its own: a campaign may be over before the last of them is.
    unconfirmed = [f"{finding.oracle} {finding.fingerprint}" for finding in done.findings if not finding.tried]
    if unconfirmed:
        lines.append(f"  not confirmed in fresh processes by the end: {', '.join(unconfirmed)}")
    lines += [f"  known: {counted(count, 'case')} of {issue}" for issue, count in done.known.items()]
    if done.stale:
        where = f"{done.runner}/{done.backend}"
        texts = [f"{value} ({where}, {counted(count, 'case')})" for value, count in done.stale.items()]
        lines.append(f"  stale, no reader known: {', '.join(texts)}")
    only_mended = "not a finding, fails only with known issues mended"
    for name, reasons in (
        (only_mended, done.only_mended),
        ("ERROR", done.errors),
        ("unsupported", done.unsupported),
        ("unknown", done.unknown),
    ):
        shown = list(reasons.items())[:REASONS_SHOWN]
        seeds = done.only_mended_seeds if name == only_mended else {}
        lines += [f"  {name}: {count} x {reason}{_first_case(seeds.get(reason, ''))}" for reason, count in shown]
        if len(reasons) > len(shown):
            lines.append(f"  {name}: {len(reasons) - len(shown)} more reasons, in the JSON")
    return lines
