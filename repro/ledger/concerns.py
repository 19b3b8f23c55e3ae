"""The known bugs that concern a server's flags in a release: by runner, backend, release and the issue's conditions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from repro.cases.case import Setup
from repro.cases.close_names import close_to
from repro.cases.codec import Seed
from repro.cases.conditions import FACTS, condition, names
from repro.cases.families import family_of_path
from repro.cases.launch import opened
from repro.cases.option import HARNESS, SERVER, Option
from repro.cases.options import OPTION, OPTIONS
from repro.cases.release_list import has_runner
from repro.cases.releases import expected, in_range
from repro.cases.runner_facts import RUNNER_FACTS
from repro.cases.server_args import ADAPTS, NAMED, SPARSE, Argument, BadOption, full_name, text_of, value_of
from repro.cases.sharing import like_server
from repro.ledger.known import Issue
from repro.ledger.rows import SEED
from repro.upstream.findings import SYMPTOMS, PublishedBug, of_seed

# Arguments that say which backend a runner has, or which runner there is, and are no option of a setup.
_DEVICE, _MODE, _DRAFT = "device", "speculative_attention_mode", "speculative_draft_attention_backend"
_EAGER, _MULTI_LAYER, _RANKS = "disable_cuda_graph", "enable_multi_layer_eagle", "attn_dp_size"
_GROUPS = "dp_size"
_PATH = "model_path"
_BACKENDS = ("decode_attention_backend", "prefill_attention_backend", *SPARSE)
ALSO = (_DEVICE, _MODE, _DRAFT, *_BACKENDS, _EAGER, _MULTI_LAYER, _RANKS, _PATH)
_FROZEN = "FROZEN_KV_MTP"
_EXACT = frozenset({"algorithm", "topk", "num_steps", "num_draft_tokens", "page_size"})
_ANY_BACKEND = ("kv_move", "cpu_decode")  # they are what they are, whichever backend the flags name
_ENGINES = ("cuda", "emulated")
_PLAIN = Setup(runner="draft", topk=1, num_steps=1, num_draft_tokens=2, capture_bs=(1,), slots=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server by its flags. values: the fields of a setup that they fix, defaults of sglang included. runners: the
    runners that it has, each with what it depends on; empty: nothing. backends: those of the runners; empty: unsaid."""

    values: Mapping[str, Any]
    runners: Mapping[str, str]
    backends: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """A known bug that the server can meet. depends: on what the flags do not say; empty: on nothing. seeds: those that
    fail on the release, by file name, each with the options that the flags do not have."""

    title: str
    depends: tuple[str, ...]
    issues: tuple[Issue, ...]
    bug: PublishedBug | None = None
    seeds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def server(arguments: Iterable[Argument], known: Collection[str], release: str) -> Server:
    """The server that has these arguments. known: all names that the release has; empty: not known. BadOption."""
    values: dict[str, Any] = {
        option.field: option.default for option in OPTIONS if option.part == SERVER and option.later
    }
    values |= {"page_size": 1, "overlap": True, "radix": True}
    texts: dict[str, str] = {}
    for argument in opened(arguments):
        name = full_name(argument.name, [*known, *ALSO])
        option = NAMED.get(name)
        if option and name in (option.name, *option.older) and argument.value is not None:
            values[option.field] = _value(option, argument)
        elif name not in ALSO and known and argument.is_flag and name.removeprefix("no_") not in known:
            raise BadOption(f"{argument.place}: no such argument of sglang{close_to(name, [*known, *NAMED])}")
        texts[name] = str(argument.value)
    if family := family_of_path(texts.get(_PATH, "")):
        values.setdefault("family", family)
    if texts.get(_RANKS, "1") not in ("1", "None"):
        values["dp_attention"] = True
    if values["tp_size"] > 1:
        groups = texts.get(_RANKS) or texts.get(_GROUPS, "1") if values["dp_attention"] else "1"
        values["tp_size"] = like_server(values["tp_size"], int(groups))
    if "algorithm" not in values:
        values.update(topk=1, num_steps=1)
    runners = {name: depends for name, depends in _runners(values, texts) if has_runner(release, name)}
    return Server(values=values, runners=runners, backends={name: _backend(name, texts) for name in runners})


def _value(option: Option, argument: Argument) -> Any:
    """The field's value. One that is not driven stays as it is: no issue names it, and it is not the default either."""
    try:
        return value_of(option, argument.name, argument.value)
    except BadOption:
        if option.field == "algorithm" and argument.value == _FROZEN:
            return _FROZEN
        if option.field in _EXACT or isinstance(option.default, bool):
            raise
        text = str(argument.value)
        return int(text) if text.isdecimal() else text


def _runners(values: Mapping[str, Any], texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The runners of such a server, each with what it depends on."""
    algorithm, topk = values.get("algorithm"), values.get("topk")
    eager = texts.get(_EAGER, "").lower() == "true"
    if not algorithm:
        yield ("cpu_decode" if texts.get(_DEVICE) == "cpu" else "decode"), ""
        return
    yield "kv_move", ""
    layers = texts.get(_MULTI_LAYER, "").lower() == "true"
    if not eager:
        frozen = algorithm == _FROZEN
        drafting = ("multi_layer",) if layers else () if frozen else ("draft", "draft_v1", "draft_extend")
        yield from ((name, "") for name in (*drafting, "round", "verify"))
        if not layers and algorithm != "EAGLE3":
            yield "frozen_kv_mtp", "" if frozen else "the drafts are by a Gemma 4 assistant"
    if eager or values["dp_attention"]:
        depends: tuple[str, ...] = ("a batch runs without a graph",) if not eager else ()
        depends += ("batches are padded for data-parallel ranks",) if not values["dp_attention"] else ()
        trees = ("verify_eager",) if topk == 1 else ("verify_eager_tree",) if topk else ()
        for name in ("verify_eager_multi_layer",) if layers else trees or ("verify_eager", "verify_eager_tree"):
            chain = () if layers or topk else (f"{OPTION['topk'].name} is {'above 1' if 'tree' in name else '1'}",)
            yield name, " and ".join((*depends, *chain))


def _backend(runner: str, texts: Mapping[str, str]) -> str:
    """The attention backend of this runner; empty: sglang chooses it by the machine."""
    if runner in _ANY_BACKEND:
        return RUNNER_FACTS[runner].backends[0]
    decodes = runner in ("draft", "draft_v1", "decode") or texts.get(_MODE) == "decode"
    phase = texts.get(f"{'decode' if decodes else 'prefill'}_attention_backend", "")
    drafts = texts.get(_DRAFT, "") if runner in ("draft", "draft_v1", "draft_extend", "multi_layer") else ""
    return next(filter(None, map(texts.get, SPARSE)), "") or drafts or phase or texts.get("attention_backend", "")


def concerns(
    of: Server, release: str, issues: Iterable[Issue], bugs: Sequence[PublishedBug], seeds: Mapping[str, Seed]
) -> list[Concern]:
    """The bugs that this server can meet in this release, certain ones first, then by symptom. seeds: by file name."""
    parts: dict[str, list[Concern]] = {}
    for issue in issues:
        depends = _depends(of, issue)
        if depends is None or not any(issue.holds_on(release, engine) for engine in _ENGINES):
            continue
        probes = [name.removeprefix(SEED) for name in issue.probes if name.startswith(SEED)]
        failing = {name: _beside(of, seeds[name]) for name in probes if _fails(seeds[name], release)}
        failing = {name: failing[name] for name in failing if seeds[name].case.setup.runner in of.runners} or failing
        shown = {bug.name: bug for name in failing if (bug := of_seed(bugs, name)) and in_range(bug.releases, release)}
        for bug in shown.values():
            its = {name: options for name, options in failing.items() if of_seed(bugs, name) == bug}
            part = Concern(title=bug.title, depends=depends, issues=(issue,), bug=bug, seeds=its)
            parts.setdefault(bug.title, []).append(part)
        if not shown:
            part = Concern(title=issue.title, depends=depends, issues=(issue,), seeds=failing)
            parts.setdefault(issue.title, []).append(part)
    return sorted(map(_together, parts.values()), key=lambda concern: (bool(concern.depends), _rank(concern)))


def _together(parts: Sequence[Concern]) -> Concern:
    """The parts of one bug, with the fewest conditions of any."""
    return Concern(
        title=parts[0].title,
        depends=min((part.depends for part in parts), key=len),
        issues=tuple(dict.fromkeys(issue for part in parts for issue in part.issues)),
        bug=parts[0].bug,
        seeds={name: options for part in parts for name, options in part.seeds.items()},
    )


def _rank(concern: Concern) -> int:
    return SYMPTOMS.index(concern.bug.symptom) if concern.bug else len(SYMPTOMS)


def _depends(of: Server, issue: Issue) -> tuple[str, ...] | None:
    """The parts on which the issue depends that the flags do not say; None if the server cannot meet it."""
    ways = []
    places: dict[str, list[str]] = {}
    for text in issue.explains:
        runner, _, backend = text.partition(" ")[0].partition("/")
        places.setdefault(runner, []).append(backend)
    conditions = _open(of, issue.setups)
    for runner, backends in places.items():
        if runner not in of.runners or of.backends[runner] not in ("", *backends) or conditions is None:
            continue
        over = [] if of.backends[runner] else [f"the attention backend is {' or '.join(dict.fromkeys(backends))}"]
        ways.append((*filter(None, [of.runners[runner]]), *over, *conditions))
    return min(ways, key=len, default=None)


def _open(of: Server, conditions: Iterable[str]) -> tuple[str, ...] | None:
    """The conditions about which the flags say nothing, in words; None if one does not hold."""
    setup = replace(_PLAIN, **of.values)
    texts = []
    for text in conditions:
        fields = names(text)
        if any(name not in of.values or (of.values[name] == ADAPTS and len(fields) > 1) for name in fields):
            texts.append(_worded(text))
        elif not condition(text)(setup):
            return None
    return tuple(texts)


def _worded(text: str) -> str:
    """The condition by sglang's names, or in words."""
    if fact := FACTS.get(text.split()[-1]):
        return f"the model is {text}" if fact[1] == "family" else f"drafts are made {text.replace('_', ' ')}"
    words = [OPTION[word].name if word in OPTION else word for word in text.split()]
    alone = OPTION.get(text)
    if alone and alone.part == HARNESS:
        return f"there are {alone.words}"
    return f"the model has {alone.name}" if alone and alone.part != SERVER else " ".join(words)


def _fails(seed: Seed, release: str) -> bool:
    """True if the seed is known to fail on this release."""
    return bool(expected(seed.about, release, "emulated"))


def _beside(of: Server, seed: Seed) -> tuple[str, ...]:
    """The options that the seed has and the flags have not, or do not say."""
    setup = seed.case.setup
    plain = {option.field: option.default for option in OPTIONS if option.later} | {"topk": 1, "page_size": 1}
    return tuple(
        text_of(OPTION[field], getattr(setup, field))
        for field, default in plain.items()
        if getattr(setup, field) != default and of.values.get(field, default) == default
    )
