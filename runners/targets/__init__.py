"""Releases and checkouts of sglang on this host, and what their workers need."""
