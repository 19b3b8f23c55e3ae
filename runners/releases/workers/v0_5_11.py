"""sglang 0.5.11 to 0.5.13: row 0 of the request pool is reserved for padding."""

from __future__ import annotations

from dataclasses import replace

from runners.releases.workers import v0_5_10

GENERATION = replace(v0_5_10.GENERATION, spare_rows=0)
