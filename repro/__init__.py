"""The nouns of eagleeye (Case, Trace, Verdict, Finding), and what is done with a failing case."""

from repro.commands.interrupts import while_imported

while_imported(__name__)
