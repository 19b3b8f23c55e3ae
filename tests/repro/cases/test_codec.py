"""The seed file: it comes back as it was, and what is no seed is refused by part and value."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.cases import codec
from repro.cases.case import DATA_MAX, Case, Request, Setup, Step, problems, seq_len_max
from repro.cases.codec import BadSeed, Seed
from repro.cases.option import SERVER, TARGET
from repro.cases.options import OPTIONS
from tests.builders.seed_files import NEW, OLD, Change, drop, need_refused, put

# A busy machine is no failure.
unhurried = settings(deadline=None)

SETUP = Setup(runner="draft", topk=2, num_steps=3, num_draft_tokens=4, capture_bs=(1, 4), slots=8)
CASE = Case(
    setup=SETUP,
    steps=(
        Step(requests=(Request(slot=1, seq_len=7, data=11), Request(slot=5, seq_len=9, data=DATA_MAX))),
        Step(requests=(Request(slot=5, seq_len=10, data=0),)),
    ),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small valid cases over the fields whose text form differs: enough for a round trip."""
    backend = draw(st.sampled_from(["triton", "flashinfer"]))
    buckets = tuple(sorted(draw(st.sets(st.integers(1, 6), min_size=1, max_size=3))))
    setup = Setup(
        runner=draw(st.sampled_from(["draft", "toy"])),
        backend=backend,
        topk=2,
        num_steps=draw(st.integers(2, 4)),
        num_draft_tokens=draw(st.integers(2, 6)),
        capture_bs=buckets,
        slots=draw(st.integers(buckets[-1], 12)),
        page_size=draw(st.sampled_from([1, 4, 16])),
        context_len=draw(st.integers(64, 100)),
        dtype=draw(
            st.sampled_from({"triton": ["float32", "bfloat16"], "flashinfer": ["float16", "bfloat16"]}[backend])
        ),
        head_dim={"triton": 16, "flashinfer": 64}[backend],
    )
    lengths, data = st.integers(1, seq_len_max(setup)), st.integers(0, DATA_MAX)
    slots = st.lists(st.integers(1, setup.slots), min_size=1, max_size=buckets[-1], unique=True)
    batches = draw(st.lists(slots, min_size=1, max_size=4))
    steps = tuple(
        Step(requests=tuple(Request(slot=slot, seq_len=draw(lengths), data=draw(data)) for slot in batch))
        for batch in batches
    )
    return Case(setup=setup, steps=steps)


def texts(length_max: int = 20) -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8"), max_size=length_max).filter(str.isprintable)


ABOUT = st.dictionaries(
    texts(), texts() | st.lists(texts(), max_size=3).map(tuple) | st.dictionaries(texts(), texts(), max_size=3)
)


@pytest.mark.slow
@unhurried
@given(case=cases(), about=ABOUT)
def test_a_seed_comes_back_as_it_was(case: Case, about: dict[str, Any]) -> None:
    assert problems(case) == []
    seed = Seed(about=about, case=case)
    text = codec.dumps(seed)
    assert codec.loads(text) == seed
    assert codec.dumps(codec.loads(text)) == text
    assert codec.case_from_json(json.loads(json.dumps(codec.case_to_json(case)))) == case


@pytest.mark.slow
@unhurried
@given(first=cases(), second=cases())
def test_a_digest_is_the_same_for_the_same_case_only(first: Case, second: Case) -> None:
    assert (codec.digest(first) == codec.digest(second)) == (first == second)


def test_one_request_a_line_in_a_fixed_order_of_keys() -> None:
    lines = codec.dumps(Seed(about={"found": "here"}, case=CASE)).splitlines()
    assert lines[1:5] == [' "format": 2,', ' "about": {', '  "found": "here"', " },"]
    assert '   {"req_pool_idx": 1, "seq_len": 7, "data": 11},' in lines
    assert sum("req_pool_idx" in line and "data" in line for line in lines) == 3
    names = [line.split('"')[1] for line in lines if line.startswith('   "')]
    # Options that came later are written only where they are set.
    plain = [option for option in OPTIONS if not option.later]
    assert names == [option.name for part in (SERVER, TARGET) for option in plain if option.part == part]


@pytest.mark.parametrize("path", [OLD, NEW], ids=lambda path: path.stem)
def test_a_file_of_each_format_still_means_the_same(path: Path) -> None:
    seed = codec.read(path)
    assert seed.case == Case(
        setup=Setup(
            runner="draft",
            backend="triton",
            topk=4,
            num_steps=3,
            num_draft_tokens=8,
            capture_bs=(1, 4),
            slots=6,
            page_size=16,
            context_len=256,
            vocab_size=128,
            hidden_size=32,
            num_heads=2,
            num_kv_heads=2,
            head_dim=16,
            dtype="float32",
            kv_splits=1,
        ),
        steps=(
            Step(
                requests=(
                    Request(slot=1, seq_len=17, data=0),
                    Request(slot=2, seq_len=5, data=2147483647),
                    Request(slot=6, seq_len=100, data=3),
                )
            ),
            Step(requests=(Request(slot=2, seq_len=9, data=4), Request(slot=1, seq_len=18, data=5))),
        ),
    )
    assert seed.about["expected"] == {"clean": "pass", "stale_padding": "fail"}
    assert seed.about["found"] == ("2026-01-05", "stale_padding/toy")
    # A digest is written into other files, so it never changes.
    assert codec.digest(seed.case) == "a65dd549ce53"


def test_the_digest_leaves_about_and_written_defaults_out() -> None:
    value = json.loads(OLD.read_text())
    value["setup"]["dtype"] = "float32"
    value["about"] = {}
    assert codec.digest(codec.loads(json.dumps(value)).case) == codec.digest(codec.read(OLD).case)
    value["setup"]["dtype"] = "float16"
    assert codec.digest(codec.loads(json.dumps(value)).case) != codec.digest(codec.read(OLD).case)


REFUSED = [
    (put("steps", 0, "requests", 1, "slot", to="2"), 'steps[0].requests[1].slot: expected an integer, not "2"'),
    (put("steps", 0, "requests", 1, "slot", to=True), "steps[0].requests[1].slot: expected an integer, not true"),
    (put("steps", 1, "mirrored", to=1), "steps[1].mirrored: expected true or false, not 1"),
    (put("steps", 1, "requests", 0, "data", to=1.0), "steps[1].requests[0].data: expected an integer, not 1.0"),
    (put("steps", 1, "requests", 0, "data", to=None), "steps[1].requests[0].data: expected an integer, not null"),
    (put("steps", 1, "requests", 0, "data", to=float("nan")), "requests[0].data: expected an integer, not NaN"),
    (put("steps", 1, "requests", 0, "data", to=10**30), "requests[0].data: 1000000000000000000000000000000 is"),
    (put("steps", 1, "requests", 0, "size", to=1), 'steps[1].requests[0]: unknown key "size"; known are accepted,'),
    (drop("steps", 1, "requests", 0, "slot"), "steps[1].requests[0]: slot is missing"),
    (put("steps", 1, "requests", to={}), "steps[1].requests: expected a list, not an object"),
    (put("steps", 1, to=[1, 2]), "steps[1]: expected an object, not a list of 2"),
    (put("steps", to="all"), 'steps: expected a list, not "all"'),
    (drop("steps"), "seed: steps is missing"),
    (drop("format"), "seed: format is missing"),
    (put("format", to=7), "format 7 is unknown: this version reads formats 1 and 2"),
    (put("format", to=2), "topk is a key of format 1; in format 2 it is speculative_eagle_topk in setup.server_args"),
    (put("setup", "server_args", to={}), "setup: server_args is a key of format 2, and this is format 1"),
    (put("steps", 0, "requests", 0, "req_pool_idx", to=1), "req_pool_idx is a key of format 2; here it is slot"),
    (put("format", to="1"), 'format: expected an integer, not "1"'),
    (put("format", to=True), "format: expected an integer, not true"),
    (put("comment", to="hello"), 'seed: unknown key "comment"; known are about, format, setup, steps'),
    (drop("setup", "topk"), "setup: topk is missing"),
    (put("setup", "top_k", to=4), 'setup: unknown key "top_k"; did you mean topk?'),
    (put("setup", "capture_bs", to=4), "setup.capture_bs: expected a list, not 4"),
    (put("setup", "capture_bs", 1, to=[4]), "setup.capture_bs[1]: expected an integer, not a list of 1"),
    (put("setup", "runner", to=7), "setup.runner: expected a text, not 7"),
    (put("setup", "runner", to="d" * 200), "setup.runner: a text of 200 characters is longer than 100"),
    (put("setup", "runner", to="dragon"), "not a valid case: setup: runner 'dragon' is not one of draft, "),
    (put("setup", "num_steps", to=10**18), "setup: speculative_num_steps 1000000000000000000 is outside"),
    (put("steps", 1, "requests", 1, "slot", to=2), "not a valid case: step 1: a slot is used twice in [2, 2]"),
    (put("steps", to=[]), "not a valid case: a case has 1..64 steps, not 0"),
    (put("about", to=[]), "about: expected an object, not a list of 0"),
    (put("about", "name", to=5), "about.name: expected a text, not 5"),
    (put("about", "name", to="x" * 1001), "about.name: a text of 1001 characters is longer than 1000"),
    (put("about", "name", to="\x1b[2J"), 'about.name: "\\u001b[2J" holds a character that cannot be printed'),
    (put("about", "name", to="\ud800"), 'about.name: "\\ud800" holds a character that cannot be printed'),
    (put("about", "expected", "clean", to=["pass"]), "about.expected.clean: expected a text, not a list of 1"),
    (put("about", "found", 1, to={}), "about.found[1]: expected a text, not an object"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message[:60] for _, message in REFUSED])
def test_a_wrong_part_is_refused_by_name_and_value(change: Change, message: str) -> None:
    need_refused(OLD, change, message)


def test_a_key_written_twice_is_refused() -> None:
    text = OLD.read_text().replace('"slot": 6,', '"slot": 6, "slot": 5,')
    with pytest.raises(BadSeed, match=r'steps\[0\].requests\[2\]: expected an object, not one with "slot" twice'):
        codec.loads(text)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999", "6.0", "6e0"])
def test_only_whole_numbers_are_read(constant: str) -> None:
    with pytest.raises(BadSeed, match=r"requests\[2\].slot: expected an integer"):
        codec.loads(OLD.read_text().replace('"slot": 6', f'"slot": {constant}'))


def test_every_truncated_file_is_refused_as_too_short() -> None:
    whole = OLD.read_text().rstrip()
    for length in range(1, len(whole)):
        with pytest.raises(BadSeed, match=r"ends too early|not JSON"):
            codec.loads(whole[:length])
    with pytest.raises(BadSeed, match="empty"):
        codec.loads(" \n")
    with pytest.raises(BadSeed, match="ends too early, at line 20"):
        codec.loads("".join(whole.splitlines(keepends=True)[:19]))


@unhurried
@given(st.data())
def test_damage_to_any_byte_is_refused_or_harmless(data: st.DataObject) -> None:
    """Whatever is loaded is valid; whatever is refused is refused as BadSeed and as nothing else."""
    whole = OLD.read_text()
    place = data.draw(st.integers(0, len(whole) - 1))
    text = whole[:place] + data.draw(st.text(max_size=3)) + whole[place + data.draw(st.integers(0, 5)) :]
    try:
        seed = codec.loads(text)
    except BadSeed:
        return
    assert problems(seed.case) == []
    assert codec.loads(codec.dumps(seed)) == seed


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000])
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(BadSeed, match=r"nested too deeply|ends too early"):
        codec.loads(text)


def test_an_integer_of_ten_thousand_digits_is_refused() -> None:
    with pytest.raises(BadSeed, match=r"digits|bits"):
        codec.loads(OLD.read_text().replace('"slot": 6', '"slot": ' + "6" * 10_000))
    with pytest.raises(BadSeed, match=r"requests\[2\].slot: an integer of \d+ bits"):
        codec.loads(OLD.read_text().replace('"slot": 6', '"slot": ' + "6" * 4000))


def test_many_problems_are_not_all_listed() -> None:
    value = json.loads(OLD.read_text())
    for number in range(20):
        value["steps"].append({"requests": [{"slot": 99, "seq_len": number + 1, "data": 0}]})
    with pytest.raises(BadSeed, match=r"and 12 more$") as refusal:
        codec.loads(json.dumps(value))
    assert len(str(refusal.value)) < 2000


def test_a_hundred_megabytes_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    before = time.process_time()
    with pytest.raises(BadSeed, match="104857600 bytes are too many"):
        codec.read(path)
    assert time.process_time() - before < 0.1
    with pytest.raises(BadSeed, match="too many"):
        codec.loads(" " * (codec.BYTES_MAX + 1))


def test_a_device_without_a_size_is_read_no_further_than_the_limit() -> None:
    with pytest.raises(BadSeed, match="1048577 bytes are too many"):
        codec.read(Path("/dev/zero"))


def test_what_is_no_readable_file_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(BadSeed, match=r"none\.json: No such file"):
        codec.read(tmp_path / "none.json")
    with pytest.raises(BadSeed, match="Is a directory"):
        codec.read(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe9"}')
    with pytest.raises(BadSeed, match=r"latin\.json: not UTF-8 text, from byte 7 on"):
        codec.read(tmp_path / "latin.json")
    (tmp_path / "wrong.json").write_text("{]")
    with pytest.raises(BadSeed, match=r"wrong\.json: not JSON"):
        codec.read(tmp_path / "wrong.json")


def test_a_seed_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "seed.json"
    invalid = Case(setup=SETUP, steps=())
    with pytest.raises(BadSeed, match="not a valid case"):
        codec.write(path, Seed(case=invalid))
    with pytest.raises(BadSeed, match=r"about\.found"):
        codec.write(path, Seed(about={"found": "two\nlines"}, case=CASE))
    assert list(tmp_path.iterdir()) == []


def test_writing_leaves_the_old_file_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "seed.json"
    codec.write(path, Seed(about={"found": "first"}, case=CASE))

    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="No space left"):
            codec.write(path, Seed(about={"found": "second"}, case=CASE))
    assert codec.read(path).about == {"found": "first"}
    assert [p.name for p in tmp_path.iterdir()] == ["seed.json"]
    codec.write(path, Seed(about={"found": "third"}, case=CASE))
    assert codec.read(path) == Seed(about={"found": "third"}, case=CASE)
    assert [p.name for p in tmp_path.iterdir()] == ["seed.json"]


@pytest.mark.slow
def test_a_reader_never_sees_half_a_file_while_it_is_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "seed.json"
    codec.write(path, Seed(case=CASE))
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            codec.write(path, Seed(about={"found": "x" * 900}, case=CASE))
            codec.write(path, Seed(case=CASE))

    writers = [threading.Thread(target=rewrite) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        assert all(codec.read(path).case == CASE for _ in range(300))
    finally:
        stop.set()
        for writer in writers:
            writer.join()


@pytest.mark.parametrize(
    "value",
    [None, [], {"setup": {}}, {"setup": {}, "steps": [], "format": 1}, {"setup": None, "steps": []}],
    ids=str,
)
def test_what_is_no_case_is_refused_without_a_file(value: object) -> None:
    with pytest.raises(BadSeed):
        codec.case_from_json(value)


def test_an_invalid_case_still_travels_between_processes() -> None:
    invalid = Case(setup=dataclasses.replace(SETUP, topk=99), steps=CASE.steps)
    assert problems(invalid)
    assert codec.case_from_json(copy.deepcopy(codec.case_to_json(invalid))) == invalid
