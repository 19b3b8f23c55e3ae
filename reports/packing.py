"""All cases as columns, packed small: the page unpacks them when its table of cases is looked at."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports.events import target_order
from reports.wording import printable
from repro.ledger.rows import STATUSES, Run

if TYPE_CHECKING:
    import pandas as pd

# A report of so many cases stays below 5 MB. Of more, the latest are shown; all of them are counted.
CASES_MAX = 100_000
_UNKNOWN_TIME = -1


def pack(columns: Sequence[Mapping[str, Any]]) -> str:
    """Columns as compressed JSON, in letters that mean nothing in HTML. The same columns give the same text."""
    data = json.dumps(columns, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(data, compresslevel=6, mtime=0)).decode()


def columns(frame: pd.DataFrame, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The table's columns as reports/cases.js reads them: words by their places in `values`, which are in the order in
    which the column sorts; numbers and times (seconds since 1970) as they are; digests one after another."""
    import pandas as pd

    frame = frame.tail(CASES_MAX)
    names = {run.id: f"{run.kind} {run.id[:6]}" for run in runs}
    times = pd.to_datetime(frame["at"], utc=True, errors="coerce", format="ISO8601")
    since_1970 = (times - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(seconds=1)
    seconds = since_1970.fillna(_UNKNOWN_TIME).astype(int)
    order = list(reversed(STATUSES))
    return [
        _words("target", "Target", frame["target"], sorted(set(frame["target"]), key=target_order)),
        _words("runner", "Runner", frame["runner"]),
        _words("backend", "Backend", frame["backend"]),
        _numbers("topk", "topk", frame["topk"]),
        _numbers("steps", "Steps", frame["num_steps"]),
        _words("result", "Result", frame["status"], sorted(set(frame["status"]), key=lambda key: _place(order, key))),
        _numbers("replays", "Replays", frame["replays"]),
        _numbers("seconds", "Seconds", frame["seconds"].astype(float).round(3)),
        {"name": "at", "label": "At (UTC)", "kind": "time", "codes": seconds.tolist()},
        _words("run", "Run", frame["run"].map(lambda key: names.get(key, key[:6]))),
        _digests(frame["digest"]),
    ]


def _place(order: Sequence[str], word: str) -> int:
    return order.index(word) if word in order else -1


def _words(name: str, label: str, texts: pd.Series, order: Sequence[str] | None = None) -> dict[str, Any]:
    import pandas as pd

    known = pd.Categorical(texts, categories=order if order is not None else sorted(set(texts)))
    values = [printable(str(value)) for value in known.categories]
    return {"name": name, "label": label, "kind": "word", "values": values, "codes": known.codes.tolist()}


def _numbers(name: str, label: str, numbers: pd.Series) -> dict[str, Any]:
    return {"name": name, "label": label, "kind": "number", "codes": numbers.tolist()}


def _digests(texts: pd.Series) -> dict[str, Any]:
    """Digests padded to one width, so that the page finds the n-th without a list of them."""
    width = int(texts.str.len().max()) if len(texts) else 0
    return {"name": "case", "label": "Case", "kind": "digest", "codes": "".join(texts.str.ljust(width))}
