"""Judgements: pure functions from a case and its recorded trace to a verdict."""
