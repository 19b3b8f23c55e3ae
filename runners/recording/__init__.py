"""The record that a session makes of a run under way."""
