"""The record of a run, and the conclusions of oracles from it."""
