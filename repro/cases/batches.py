"""Batches of a server, read from what it left: a table of them (CSV), or the decode lines of sglang's log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from repro.cases.close_names import close_to

COLUMNS = ("step", "request", "length", "accepted")
_NEEDED = COLUMNS[:3]
_MOST = 10**7
# 0.5.13 to 0.5.23: managers/scheduler_components/metrics_reporter.py, pool_stats_observer.py.
_DECODE = re.compile(
    r"(?:\[(?P<stamp>[^\]]*)\] )?Decode batch(?: \[\d+\])?, #running-req: (?P<requests>\d+), "
    r"(?:.*?, )??#(?:full )?token: (?P<tokens>\d+),(?P<rest>.*)#queue-req: \d+"
)
_ACCEPTED = re.compile(r" accept len: (\d+\.\d+),")
_GRAPH = re.compile(r" \w+ graph: (True|False),")
_RANK = re.compile(r"\b(?:DP|TP|PP|EP|ATTN_\w+?)\d+\b")


class BadEvidence(ValueError):
    """The text is no batches. One line, which names the place and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A request of a batch. length: its tokens in the KV cache. accepted: drafts that the previous verify accepted,
    None if unknown. slot: its request slot, 0 if unknown."""

    request: str
    length: int
    accepted: int | None = None
    slot: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch in row order. place: in the evidence, for a person. graph: False if the server ran it without a graph.
    elsewhere: requests of the busiest rank, where there are others."""

    rows: tuple[Row, ...]
    place: str
    graph: bool = True
    elsewhere: int = 0


def of_csv(text: str, context: int = 0) -> tuple[Batch, ...]:
    """The batches of a table with the columns step, request, length and, where known, accepted; one row a request, in
    the order of batches. context: the most tokens of a request; 0: not known. BadEvidence."""
    lines = text.splitlines()
    if not lines:
        raise BadEvidence(f"line 1: the file is empty; it begins with {','.join(COLUMNS)}")
    header = _header(lines[0])
    if not text.endswith("\n"):
        raise BadEvidence(f"line {len(lines)}: no line break at its end, it may be cut; add one if the file is whole")
    batches: list[Batch] = []
    step = None
    for number, line in enumerate(lines[1:], start=2):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(header):
            raise BadEvidence(f"line {number}: {len(fields)} fields, not {len(header)}; mend the line or leave it out")
        values = dict(zip(header, fields, strict=True))
        now, row = _row(values, number, context)
        if step is not None and now not in (step, step + 1):
            raise BadEvidence(f"line {number}: step {now} after step {step}: number steps without gaps, in their order")
        if now != step:
            batches.append(Batch(rows=(), place=f"line {number}"))
        rows = batches[-1].rows
        if row.request in {earlier.request for earlier in rows}:
            raise BadEvidence(f"line {number}: request {row.request} is twice in step {now}; leave a row out")
        batches[-1] = Batch(rows=(*rows, row), place=batches[-1].place)
        step = now
    if not batches:
        raise BadEvidence("line 2: no rows; a row is a request of a batch, such as 0,a,120,2")
    return tuple(batches)


def _header(line: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in line.split(","))
    for name in names:
        if name not in COLUMNS:
            raise BadEvidence(
                f"line 1: unknown column {name!r}{close_to(name, COLUMNS)}; known are {', '.join(COLUMNS)}"
            )
    lacking = [name for name in _NEEDED if name not in names]
    if lacking or len(set(names)) != len(names):
        raise BadEvidence(f"line 1: each of {', '.join(lacking or names)} is needed once")
    return names


def _row(values: Mapping[str, str], number: int, context: int) -> tuple[int, Row]:
    """The row's step, and the rest of it."""

    def integer(name: str, least: int) -> int:
        text = values[name]
        if not re.fullmatch(r"[0-9]{1,8}", text) or not least <= int(text) <= _MOST:
            raise BadEvidence(f"line {number}: {name} {text!r} is no integer in {least}..{_MOST}")
        return int(text)

    length = integer("length", 1)
    if context and length > context:
        raise BadEvidence(f"line {number}: length {length} is beyond the context of {context}; correct one of the two")
    if not values["request"]:
        raise BadEvidence(f"line {number}: request is empty; any name of it does")
    accepted = integer("accepted", 0) if values.get("accepted") else None
    return integer("step", 0), Row(request=values["request"], length=length, accepted=accepted)


def of_log(text: str) -> tuple[Batch, ...]:
    """The batches of a log's decode lines, of the first rank in it; the tokens are spread evenly. BadEvidence."""
    batches = []
    rank = None
    for number, line in enumerate(text.splitlines(), start=1):
        if "Decode batch" not in line:
            continue
        match = _DECODE.search(line)
        if not match:
            raise BadEvidence(f"line {number}: a decode line that is cut, or not as sglang logs it; leave it out")
        names = tuple(_RANK.findall(match["stamp"] or ""))
        rank = names if rank is None else rank
        requests, tokens = int(match["requests"]), int(match["tokens"])
        if requests and names == rank:
            graph = _GRAPH.search(match["rest"])
            rows = tuple(_spread(requests, tokens, _ACCEPTED.search(match["rest"])))
            batches.append(Batch(rows=rows, place=f"line {number}", graph=not graph or graph[1] == "True"))
    if not batches:
        raise BadEvidence("no line with 'Decode batch, #running-req: ...'; sglang logs them at --log-level info")
    return tuple(batches)


def _spread(requests: int, tokens: int, accept_len: re.Match[str] | None) -> Iterator[Row]:
    """So many requests with these tokens in all. accept_len: sglang's, which counts the token after the drafts."""
    accepted = max(0, round(float(accept_len[1])) - 1) if accept_len else None
    for row in range(requests):
        length = max(1, tokens // requests + (row < tokens % requests))
        yield Row(request=str(row), length=length, accepted=accepted)
