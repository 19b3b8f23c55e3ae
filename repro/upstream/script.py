"""A reproducer that needs no part of eagleeye: one readable file that builds a tiny model, drives the real runner
through the calls of a seed and looks at what its graph is launched with."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from packaging.version import Version

from repro.cases.case import Setup
from repro.cases.codec import Seed, options
from repro.cases.places import docstring
from repro.cases.releases import release_order
from repro.cases.words import sentence
from repro.upstream.rig import Refused, Wanted
from repro.upstream.script_parts import PADDING, PARTS, PREFIXES, Parts
from repro.upstream.sglang_style import in_style

LINES_MAX = 150
_WIDTH = 130
_VERSION = """\
from sglang.version import __version__
VERSION = tuple(map(int, __version__.replace("post", "").split(".")))
"""
_EITHER = """\
sys.excepthook = lambda *error: (os.write(2, "".join(traceback.format_exception(*error)).encode()), os._exit(3))
CPU = "--cpu" in sys.argv or shutil.which("nvidia-smi") is None
DEVICE = "cpu" if CPU else "cuda\""""
_STANDINS = r"(?s)class Graph:.*# -+ end of the stand-ins -+\n"
_BLOCK = r"(?s)# -+ stand-ins: .*# -+ end of the stand-ins -+\n"
_IN_ONE_LINE = "import {}  # noqa: E401 - a script for reports is short"
# The stand-ins of all its tests, in one file of sglang.
HELPER = "sglang/test/graph_standins.py"
_WITHOUT_GPU = "from sglang.test.graph_standins import without_gpu\n\nwithout_gpu(Graph)\n"
_STANDARD = (
    "contextlib",
    "importlib.machinery",
    "importlib.util",
    "inspect",
    "json",
    "os",
    "pathlib",
    "platform",
    "shutil",
    "sys",
    "tempfile",
    "traceback",
    "types",
    "unittest",
)
_PLACE = re.compile(r"((?<=\n)[ ]*(?=\$\w+\n))?\$([a-z_]+)")
# As sglang's own tests of these suites are registered.
_REGISTERED = {
    "emulated": {"register": "register_cpu_ci", "registered": 'est_time=$seconds, suite="base-a-test-cpu"'},
    "cuda": {
        "register": "register_cuda_ci",
        "registered": 'est_time=$seconds, stage="base-b", runner_config="1-gpu-small"',
    },
}
_FOLDER = Path(__file__).with_name("parts")
_ERA = re.compile(r"@era (\S+) (\S+)")
# What neither a graph's inputs nor one function shows.
_NOT_ALONE = {
    "pr27338-illegal-access": "whether it crashes depends on what lies behind the buffer; pr27338-row-too-narrow has "
    "a script of the same bug",
}
_PADDED = re.compile(r"padded rows of (\w+(?:, \w+)*)")
_LENGTH = "length of a real row"


def script(name: str, seed: Seed, failure: Wanted, releases: Sequence[str], checked: str = "") -> str:
    """The file's text. name: the seed's. releases: on which it is to run. checked: how often it was run before it is
    handed over, and what came of it. Refused, with the reason, for failures that such a file cannot show."""
    if _own(name):
        return _of_one_function(name, "script_head", seed, failure, releases, checked=checked, where=_EITHER, absent="")
    _refuse(name)
    raw = _joined("script_head", "preamble", "standins", "imports", "setup", "batch", "report")
    text = _filled(raw, seed, failure, releases, checked=checked, where=_EITHER, absent="")
    # One line for all modules keeps the script short.
    text = text.replace("$modules", _IN_ONE_LINE.format(", ".join(_modules(text))))
    if (length := text.count("\n")) > LINES_MAX:
        raise Refused(f"the script would have {length} lines, {LINES_MAX} at most: it spans too many releases")
    return text


def upstream_test(
    name: str, seed: Seed, failure: Wanted, releases: Sequence[str], engine: str, *, cause: str = "", seconds: int = 10
) -> str:
    """A test in the form and style of sglang's own suite. engine: emulated: for its CPU suite, with the stand-ins of
    helper(); cuda: for a GPU, without any. cause: the bug's, for the docstring. seconds: that the test takes. Refused
    as by script(), and where its style cannot be had."""
    more = {"absent": "", "where": 'CPU = True\nDEVICE = "cpu"' if engine == "emulated" else 'DEVICE = "cuda"'}
    more |= {"seconds": str(seconds), "cause": docstring(cause), **_REGISTERED[engine]}
    if _own(name):
        text = _of_one_function(name, "test_head", seed, failure, releases, **more)
    else:
        _refuse(name)
        pieces = ("preamble", "standins", "imports") if engine == "emulated" else ("preamble", "imports")
        text = _filled(
            _joined("test_head", *pieces, "batch", "test_body"),
            seed,
            failure,
            releases,
            setup=_joined("setup").rstrip(),
            test_class=f"Test{re.sub(r'[^A-Za-z0-9]', '', _parts(seed.case.setup).name.split()[0])}",
            test_name=re.sub(r"\W+", "_", failure.where),
            **more,
        )
    text = _in_their_suite(re.sub(_BLOCK, _WITHOUT_GPU, text), engine)
    head, quotes, rest = text[3:].partition('"""')
    text = '"""' + "\n".join(textwrap.fill(line, 88) for line in head.strip().splitlines()) + "\n" + quotes + rest
    return in_style(text.replace("$modules", "\n".join(f"import {module}" for module in _modules(text))))


def helper() -> str:
    """The file of sglang, HELPER, that tests for its CPU suite share."""
    return in_style(_joined("helper"))


def host() -> str:
    """A sitecustomize with which a host is as sglang's CPU runners are."""
    return _joined("host")


def _refuse(name: str) -> None:
    if name in _NOT_ALONE:
        raise Refused(f"no script shows this: {_NOT_ALONE[name]}")


def _own(name: str) -> str:
    """The text that shows the seed of this name, if one function of sglang is enough for it; else empty."""
    file = _FOLDER / "own" / f"{name}.txt"
    return file.read_text() if file.is_file() else ""


def _of_one_function(name: str, head: str, seed: Seed, failure: Wanted, releases: Sequence[str], **more: str) -> str:
    """A file that calls this one function as its caller does. Its first line names the function."""
    title, _, body = _own(name).partition("\n")
    function = title.removeprefix("# ")
    tail = ("own_test",) if head == "test_head" else ("own_report",)
    middle = "" if head == "test_head" else body
    raw = _joined(head, "own_preamble", "standins") + middle + _joined(*tail)
    texts = {
        **more,
        "title": docstring(f"{function}: {failure.where}"),
        "words": _words(seed),
        "releases": ", ".join(releases),
        "own": body.rstrip(),
        "test_class": f"Test{re.sub(r'[^A-Za-z0-9]', '', function.rpartition('.')[2].title())}",
        "test_name": re.sub(r"\W+", "_", failure.where),
    }
    for _ in range(2):
        raw = _PLACE.sub(lambda match: _placed(match, texts), raw)
    text = raw if "CPU" in more["where"] else re.sub(_STANDINS, "", raw)
    text = re.sub(r"\n{3,}", "\n\n", text)
    compile(text.replace("$modules", ""), "repro.py", "exec")
    if head == "test_head":
        return text
    return text.replace("$modules", _IN_ONE_LINE.format(", ".join(_modules(text))))


def _modules(text: str) -> list[str]:
    """The modules of the standard library that the file names."""
    return [module for module in _STANDARD if re.search(rf"(?<![\w.]){re.escape(module)}\.", text)]


def _in_their_suite(text: str, engine: str) -> str:
    # sglang's own test module takes its first character for a number.
    text = text.replace(', "CUDA_VISIBLE_DEVICES": ""', "")
    return text if engine == "emulated" else _without_cpu(text)


def _without_cpu(text: str) -> str:
    """For a GPU alone."""
    text = re.sub(r"if CPU:  # read when.*\n.*\n", "", text)
    text = re.sub(r"( *)mine = .*\n.*_is_cpu.*\n", "", text)
    text = text.replace(" and not CPU]", "]").replace("object if CPU else torch.cuda.CUDAGraph", "torch.cuda.CUDAGraph")
    return text.replace("None if CPU else super", "super")


def _joined(*names: str) -> str:
    return "".join((_FOLDER / f"{name}.txt").read_text() for name in names)


def _parts(setup: Setup) -> Parts:
    parts = PARTS.get(setup.runner)
    if parts is None or setup.backend != "triton" or setup.algorithm != "EAGLE":
        subject = f"{setup.runner} on {setup.backend} with {setup.algorithm}"
        raise Refused(f"no script of {subject}: there are parts for {', '.join(PARTS)} on triton with EAGLE")
    return parts


def _filled(raw: str, seed: Seed, failure: Wanted, releases: Sequence[str], **more: str) -> str:
    """With the pieces of the seed's runner in their places, for these releases alone."""
    setup = seed.case.setup
    parts = _parts(setup)
    if more_than_plain := options(seed.case):
        raise Refused(f"no script of a case with {', '.join(more_than_plain)}: there are no parts for that")
    look, data, expected = _looked_at(parts, failure)
    orders = [release_order(release) for release in releases]
    texts = {
        **asdict(parts),
        **more,
        "look": look,
        "algorithm": setup.algorithm,
        "attention": setup.backend,
        "running": "SLOTS + (VERSION < (0, 5, 11))" if min(orders) < release_order("0.5.11") else "SLOTS",
        "title": docstring(f"{parts.name}: {failure.where}"),
        "words": _words(seed),
        "expected": expected[0].upper() + expected[1:],
        "releases": ", ".join(releases),
        "data": "\n".join([*_data(setup), *_calls(seed), *data, f"EXPECTED, wrong = {expected!r}, []"]),
    }
    # Pieces hold pieces; those within a line first, so that they are indented with it.
    texts = {name: _PLACE.sub(lambda match: _placed(match, texts), text) for name, text in texts.items()}
    for _ in range(3):
        raw = _PLACE.sub(lambda match: _placed(match, texts), raw)
    text = "\n".join(_of_these(raw.splitlines(), min(orders), max(orders))) + "\n"
    stated = _VERSION if "VERSION" in text else _VERSION.splitlines()[0] + "\n" if "__version__}" in text else ""
    text = re.sub(r"\n{3,}", "\n\n", text.replace("@version\n", stated))
    compile(text.replace("$modules", ""), "repro.py", "exec")
    return text


def _placed(match: re.Match[str], texts: Mapping[str, str]) -> str:
    """The text for this place, indented as the place is, if it stands on a line of its own."""
    indent, name = match.group(1), match.group(2)
    if name not in texts:
        return match.group(0)
    if indent is None:  # within a line
        return texts[name]
    return "\n".join(line and indent + line for line in texts[name].splitlines())


def can_show(name: str, seed: Seed, failure: Wanted) -> bool:
    """True if a file can show this failure."""
    if _own(name):
        return True
    setup = seed.case.setup
    shows = failure.where == _LENGTH or _PADDED.fullmatch(failure.where)
    is_plain = setup.backend == "triton" and setup.algorithm == "EAGLE" and not options(seed.case)
    return setup.runner in PARTS and is_plain and bool(shows)


def _looked_at(parts: Parts, failure: Wanted) -> tuple[str, list[str], str]:
    """The look at a graph's launch, the data for it, and the expectation."""
    if match := _PADDED.fullmatch(failure.where):
        names = tuple(match.group(1).split(", "))
        look = PADDING.replace("$buffers", parts.buffers)
        return look, [f"BUFFERS = {names!r}"], f"padded rows of {', '.join(names)} are 0 when the graph is launched"
    if failure.where == _LENGTH:
        look = PREFIXES.replace("$backend", parts.backend)
        return look, [], "attention reads of every request the tokens before the new ones, which it is given besides"
    raise Refused(
        f"no script shows {failure}: there are some for padded rows, lengths of real rows and what one function shows"
    )


def _words(seed: Seed) -> str:
    fix = seed.about.get("fix", "")
    fix = fix.removeprefix("not fixed: ") if isinstance(fix, str) else ""
    return docstring(f"{fix + '. ' if fix else ''}{sentence(seed.case)}.")


def _data(setup: Setup) -> Iterator[str]:
    sizes = f"{list(setup.capture_bs)}, {setup.slots}, {setup.page_size}, {setup.context_len}"
    yield f"BUCKETS, SLOTS, PAGE, CONTEXT, DTYPE = {sizes}, {setup.dtype!r}"
    width = ", WIDTH" if setup.runner in ("draft_extend", "multi_layer") else ""
    drafts = ", ".join([str(setup.num_draft_tokens)] * (2 if width else 1))
    yield f"TOPK, NUM_STEPS, DRAFT_TOKENS{width} = {setup.topk}, {setup.num_steps}, {drafts}"
    heads = f"{setup.num_heads}, {setup.num_kv_heads}, {setup.head_dim}"
    yield f"VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM = {setup.vocab_size}, {setup.hidden_size}, {heads}"


def _calls(seed: Seed) -> Iterator[str]:
    yield "# Of each request of each call: its slot, the tokens in its KV cache, the drafts that were accepted before."
    calls = [[(r.slot, r.seq_len, r.accepted) for r in step.requests] for step in seed.case.steps]
    text = f"CALLS = {calls}"
    yield from [text] if len(text) <= _WIDTH else ["CALLS = [", *(f"    {call}," for call in calls), "]"]


def _of_these(lines: Sequence[str], oldest: Version, newest: Version) -> Iterator[str]:
    """Without what is of other releases; what is of some of these only, under a condition. An era is written
    @era SINCE BEFORE, and ends with the next one or with @end."""
    since: Version | None = None
    before: Version | None = None
    for number, line in enumerate(lines):
        if line.strip() == "@end":
            since = before = None
        elif match := _ERA.fullmatch(line.strip()):
            since, before = (None if text in ("0", "-") else release_order(text) for text in match.groups())
            later, earlier = since is not None and oldest < since, before is not None and newest >= before
            if (later or earlier) and not _outside(since, before, oldest, newest):
                condition = _condition(since if later else None, before if earlier else None)
                yield f"{_indent(lines[number + 1])}if {condition}:"
        elif _outside(since, before, oldest, newest):
            continue
        else:
            partly = (since is not None and oldest < since) or (before is not None and newest >= before)
            yield f"    {line}" if partly else line


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _outside(since: Version | None, before: Version | None, oldest: Version, newest: Version) -> bool:
    return (since is not None and newest < since) or (before is not None and oldest >= before)


def _condition(since: Version | None, before: Version | None) -> str:
    if since and before:
        return f"{since.release} <= VERSION < {before.release}"
    return f"VERSION >= {since.release}" if since else f"VERSION < {before.release if before else ()}"
