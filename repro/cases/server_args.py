"""The options of a setup in the words of sglang's command line: names, values, a server's flags, its saved arguments.

A name is sglang's in the newest release or an older one, or the field of Setup.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.cases.bounded_file import read_text
from repro.cases.close_names import close_to
from repro.cases.option import Option
from repro.cases.options import NAMED as NAMED

# The largest bucket, of which the others are made; no field of a setup.
MAX_BS = ("max_bs", "cuda_graph_max_bs", "cuda_graph_max_bs_decode")
# Arguments with the backend of sparse attention's decode passes, and what attention_backend is with them.
SPARSE, SPARSE_BACKENDS = ("dsa_decode_backend", "nsa_decode_backend"), ("dsa", "nsa")
ADAPTS = -1  # the value of `adaptive` in a server's arguments, which do not say with how many steps it starts
FILE_MAX = 1 << 20
_SHORT = {
    "tp": "tp_size",
    "dp": "dp_size",
    "tensor_parallel_size": "tp_size",
    "data_parallel_size": "dp_size",
    "model": "model_path",
    "speculative_draft": "speculative_draft_model_path",
    "speculative_draft_model": "speculative_draft_model_path",
}
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_LAUNCH = re.compile(r"(?:^|/)python[0-9.]*$|^-m$|^sglang(?:\.launch_server|\.cli\.main)?$|^serve$|^-$")
_SETTING = re.compile(r"[A-Z][A-Z0-9_]*=")


class BadOption(ValueError):
    """There is no such option, or it has no such value. The text is one line."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a server. place: what it was read from, for a person. value: a text, or what JSON had."""

    name: str
    value: Any
    place: str

    @property
    def is_flag(self) -> bool:
        """True if it was read from a command line by itself."""
        return self.place == f"--{self.name.replace('_', '-')}"

    def __str__(self) -> str:
        text = self.place if self.is_flag else self.name
        return text if self.value is True else f"{text} {self.value}"


def option_named(name: str, others: Iterable[str] = ()) -> Option:
    """BadOption, with the names that are close, if there is none. others: names that would be right, too."""
    name = _plain(name)
    if name not in NAMED:
        raise BadOption(f"{name}: no such option{close_to(name, [*NAMED, *others])}")
    return NAMED[name]


def full_name(name: str, known: Collection[str]) -> str:
    """The name that this short form means; as sglang's parser has it, the start of one name alone means that name."""
    if name in known or name in NAMED or name in _SHORT or name in MAX_BS:
        return _SHORT.get(name, name)
    begin = {other for other in (*known, *NAMED) if other.startswith(name)}
    return begin.pop() if len(begin) == 1 else name


def value_of(option: Option, name: str, value: Any) -> Any:
    """The field's value that a text, or a value of JSON, under this name means. BadOption."""
    name = _plain(name)
    by_field = name == option.field and name != option.name
    try:
        read = _typed(option, value)
    except (TypeError, ValueError) as error:
        raise BadOption(f"{name}={value}: {error}") from error
    if option.reversed and not by_field:
        read = not read
    if option.bounds and read != ADAPTS and not option.bounds[0] <= read <= option.bounds[1]:
        raise BadOption(f"{name}={value}: outside {option.bounds[0]}..{option.bounds[1]}")
    if option.choices and read not in option.choices:
        known = ", ".join(map(str, filter(None, option.choices)))
        raise BadOption(f"{name}={value}: not driven; known are {known}")
    return read


def _typed(option: Option, value: Any) -> Any:
    for plain, form in option.forms:
        if form == value:
            return plain
    if option.field == "adaptive" and str(value).lower() in ("true", "false"):
        return ADAPTS if str(value).lower() == "true" else 0
    if isinstance(option.default, bool):
        if str(value).lower() not in _TRUTHS:
            raise ValueError("expected true or false")
        return _TRUTHS[str(value).lower()]
    if option.field == "capture_bs":
        texts = re.split(r"[\s,]+", value.strip("[] ")) if isinstance(value, str) else value
        return tuple(sorted({whole(text) for text in texts}))
    if isinstance(option.default, str) or option.field == "runner":
        return str(value)
    return whole(value)


def whole(value: Any) -> int:
    """ValueError if it is no integer."""
    text = str(value)
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError("expected an integer of at least 0")
    return int(text)


def name_of(option: Option) -> str:
    """Its name, and with "draft_model." where the name alone is the target's option."""
    return option.name if NAMED[option.name] is option else option.names[-1]


def text_of(option: Option, value: Any) -> str:
    """NAME=VALUE, as value_of reads it."""
    form, name = option.form(value), name_of(option)
    if isinstance(form, list):
        return f"{name}={','.join(map(str, form))}"
    if isinstance(form, bool) or (option.field == "adaptive" and value == ADAPTS):
        return f"{name}={'true' if form else 'false'}"
    return f"{name}={form}"


def arguments(text: str, also: Collection[str] = ()) -> list[Argument]:
    """The arguments in a command line, a file of one, or a server's arguments as JSON or as its log has them. also:
    names that are read from a log besides those of options. BadOption if it is none of these, OSError if the file
    cannot be read."""
    place = "--like"
    if "\n" not in text and (text.endswith((".json", ".sh", ".txt", ".log")) or _is_file(text)):
        place, text = text, read_text(Path(text), FILE_MAX)
    if text.lstrip().startswith("{"):
        return _of_json(text, place)
    if (start := text.find("ServerArgs(")) >= 0:
        return _of_log(text[start:], place, (*NAMED, *_OTHERS, *also))
    return list(_of_flags(text.replace("\\\n", " "), place))


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # a command line longer than a file's name may be, or with a null
        return False


def _of_json(text: str, place: str) -> list[Argument]:
    try:
        form = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadOption(f"{place}: not JSON: {error}") from error
    inner = form.get("server_args", form)
    if not isinstance(inner, dict):
        raise BadOption(f"{place}: server_args is no object")
    return [Argument(name, value, place) for name, value in inner.items() if value is not None]


def _of_log(text: str, place: str, names: Collection[str]) -> list[Argument]:
    try:
        call = ast.parse(text[: _closed(text)], mode="eval").body
        assert isinstance(call, ast.Call)
        values = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg in names}
    except (SyntaxError, ValueError, AssertionError, RecursionError) as error:
        raise BadOption(f"{place}: ServerArgs(...) is cut, or not as sglang logs it") from error
    return [Argument(str(name), value, place) for name, value in values.items() if value is not None]


def _closed(text: str) -> int:
    """The length of the text up to the parenthesis that closes its first one."""
    depth = 0
    for end, letter in enumerate(text, start=1):
        depth += (letter == "(") - (letter == ")")
        if letter == ")" and not depth:
            return end
    return len(text)


# Other settings of a saved server that choose what is driven (fuzz/draw/aim.py).
_OTHERS = (*MAX_BS, *SPARSE, "enable_multi_layer_eagle", "disable_cuda_graph")


def _of_flags(text: str, place: str) -> Iterator[Argument]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise BadOption(f"{place}: {error}") from error
    name, values = "", list[str]()
    for word in [*words, "--"]:
        if word.startswith("--"):
            if name:
                yield Argument(name, " ".join(values) if values else True, f"--{name.replace('_', '-')}")
            head, equals, value = word[2:].partition("=")
            name, values = _plain(head), [value] if equals else []
        elif name:
            values.append(word)
        elif not (_LAUNCH.search(word) or _SETTING.match(word)):
            raise BadOption(f"{place}: {word!r} is neither a flag nor the start of a server{_hint(word)}")


def _hint(word: str) -> str:
    return "; there is no such file" if "." in word or "/" in word else ""


def _plain(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")
