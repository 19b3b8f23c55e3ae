"""Telling people: the HTML report, terminal summaries and plain-text forms of findings."""
