"""Generation: Hypothesis strategies for cases, their transition coverage, and the campaign loop."""

from repro.commands.interrupts import while_imported

while_imported(__name__)
