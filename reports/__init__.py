"""Telling people: the HTML report, terminal summaries and plain-text forms of findings."""

from repro.commands.interrupts import while_imported

while_imported(__name__)
