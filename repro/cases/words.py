"""A case in words, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from repro.cases.case import Case, Setup, Step
from repro.cases.codec import AboutValue, Seed, digest
from repro.cases.options import OPTIONS
from repro.cases.runner_facts import RUNNER_FACTS


def sentence(case: Case) -> str:
    """The shape of a case: 2 steps with 2 then 1 request on buckets 1, 2."""
    sizes = [len(step.requests) for step in case.steps]
    requests = "request" if sizes[-1:] == [1] else "requests"
    return f"{_count(len(sizes), 'step')} with {' then '.join(map(str, sizes))} {requests} on {_buckets(case)}"


def paragraph(seed: Seed) -> Iterator[str]:
    """All that a seed says, line by line."""
    case, setup = seed.case, seed.case.setup
    serves = RUNNER_FACTS[setup.runner].serves
    yield f"case {digest(case)}: {sentence(case)}"
    yield (
        f"setup: {setup.runner} runner of {setup.algorithm} on {setup.backend}, topk {setup.topk}, "
        f"{setup.num_steps} draft steps, {setup.num_draft_tokens} draft tokens"
    )
    yield (
        f"memory: {_count(setup.slots, 'request slot')} of {setup.context_len} tokens in pages of {setup.page_size}, "
        f"{_count(setup.kv_splits, 'kv split')}"
    )
    yield (
        f"model: {setup.dtype}, vocabulary {setup.vocab_size}, hidden size {setup.hidden_size}, "
        f"{_count(setup.num_heads, 'head')} ({setup.num_kv_heads} for kv) of {setup.head_dim}"
    )
    if texts := options(setup):
        yield f"options: {', '.join(texts)}"
    for number, step in enumerate(case.steps):
        where = _place(setup, step) + ("" if step.mirrored else ", lengths on the device alone")
        where += f", with hidden states: {step.hidden}" if step.hidden else ""
        where += f", {step.elsewhere} on the other rank" if setup.dp_attention else ""
        where += f", KV slots by layout {step.layout}" if step.layout else ""
        yield f"step {number}: {_count(len(step.requests), 'request')} {where}"
        for row, request in enumerate(step.requests):
            tokens = _count(request.seq_len, "token")
            accepted = f", {_count(request.accepted, 'draft')} accepted" if request.accepted else ""
            greedy = ", greedy" if request.greedy else ""
            greedy += f", {_count(request.further + 1, 'token')} asked for" if serves else ""
            yield f"  row {row}: slot {request.slot}, prefix of {tokens}{accepted}{greedy}, data {request.data}"
    for name, value in seed.about.items():
        yield from _about(name, value)


def options(setup: Setup) -> list[str]:
    """The options that few setups have, in words."""
    return [
        option.words.format(getattr(setup, option.field)) for option in OPTIONS if option.later and option.is_set(setup)
    ]


def _place(setup: Setup, step: Step) -> str:
    if RUNNER_FACTS[setup.runner].serves:
        happens = f"{step.happens}, then " if step.happens else ""
        return f"{happens}arriving {_count(step.wait, 'iteration')} later"
    if not setup.replays(step.busiest, step.hidden):
        return "in no bucket, for eager"
    bucket = setup.bucket(step.busiest)
    padding = bucket - len(step.requests)
    return f"in bucket {bucket}, {_count(padding, 'padded row') if padding else 'full'}"


def _about(name: str, value: AboutValue) -> Iterator[str]:
    if isinstance(value, str):
        yield f"{name}: {value}"
        return
    yield f"{name}:"
    lines: Sequence[str] = (
        [f"{key}: {text}" for key, text in value.items()] if isinstance(value, Mapping) else list(value)
    )
    for text in lines:
        yield f"  {text}"


def _buckets(case: Case) -> str:
    buckets = case.setup.capture_bs
    return f"bucket{'s' * (len(buckets) > 1)} {', '.join(map(str, buckets))}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
