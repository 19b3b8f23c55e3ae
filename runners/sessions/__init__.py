"""Kinds of live session: how a case is driven through a built sglang, and what of it is recorded."""
