"""Execution: real sglang graph runners driven in worker processes, one per target, and the traces they leave."""

from repro.commands.interrupts import while_imported

while_imported(__name__)
