"""The options of a setup: one row an option, read by validity, files, the order on cases, drawing and words.

A new option is a field of Setup, a row in the module of its part, what runners and backends say of it
(runner_facts.py, backend_facts.py), and what an adapter does differently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from repro.cases.option import DRAFT, Option
from repro.cases.rows import adapters, draft_model, harness, model, requests, server_args, serving
from repro.cases.rows.bounds import BATCH_MAX as BATCH_MAX
from repro.cases.rows.bounds import CONTEXT_MAX as CONTEXT_MAX
from repro.cases.rows.bounds import KV_DTYPE_ABOVE as KV_DTYPE_ABOVE
from repro.cases.rows.bounds import PAGE_SIZES as PAGE_SIZES
from repro.cases.rows.bounds import SLOTS_MAX as SLOTS_MAX
from repro.cases.setup import Setup

_ROWS = (
    *server_args.ROWS,
    *model.ROWS,
    *draft_model.ROWS,
    *harness.ROWS,
    *serving.ROWS,
    *adapters.ROWS,
    *requests.ROWS,
)
_BY_FIELD = {option.field: option for option in _ROWS}
# In the order of the fields, on which drawn cases depend.
OPTION: Mapping[str, Option] = {field.name: _BY_FIELD[field.name] for field in dataclasses.fields(Setup)}
OPTIONS: tuple[Option, ...] = tuple(OPTION.values())
# By each name. The target's option has the name that a draft model's has, too.
NAMED: Mapping[str, Option] = {
    name: option for option in sorted(OPTIONS, key=lambda option: option.part != DRAFT) for name in option.names
}
