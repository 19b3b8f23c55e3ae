"""Adapters to sglang, one module per break of its internal API; catalogue.py picks."""
