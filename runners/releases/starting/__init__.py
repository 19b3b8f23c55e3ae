"""Preparations made once a process, before sglang serves a setup."""
