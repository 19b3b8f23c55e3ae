"""Attacked from outside: files of which one part is another, drawn at random. Whatever it is, a command ends with a
result, or with one clear line and exit code 3: never with a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzz import __main__ as fuzz
from reports import __main__ as reports
from repro import __main__ as repro
from repro.cases.case import Target
from repro.ledger.write import Ledger
from repro.traces import trace_file
from repro.traces.trace_file import Kept
from repro.upstream.patch_file import applied
from repro.upstream.rig import Refused
from runners import __main__ as runners
from runners.targets.bundle import archive, build
from tests.builders.project import PROJECT
from tests.builders.small_wheels import make, small_index
from tests.builders.toy_traces import toy_trace
from tests.hostile.test_faults_records import array, packed
from tests.repro.ledger.test_ledger import fill
from tests.repro.test_repro_main import CASE

pytestmark = pytest.mark.slow

SEED = PROJECT / "repro" / "seeds" / "pr23037-stale-padding.json"
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 31, 1 << 63, 10**30, 1.5, float("nan"), float("inf")),
    *("", "x", "x" * 5000, "\x1b[2J", "\ud800", "../../x", "/dev/zero", "\n::error::x"),
    *([], [[]], [None], {}, {"": None}),
)


def leaves(form: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all parts of a form, but the whole."""
    items = form.items() if isinstance(form, dict) else enumerate(form) if isinstance(form, list) else ()
    for key, part in items:
        yield (*path, key)
        yield from leaves(part, (*path, key))


def altered(form: Any, chance: random.Random) -> Any:
    """The form with one part that is another, missing, or there twice."""
    form = json.loads(json.dumps(form))
    *way, last = chance.choice(list(leaves(form)))
    place = form
    for key in way:
        place = place[key]
    if chance.random() < 0.2:
        del place[last]
    elif isinstance(place, list) and chance.random() < 0.2:
        place.append(place[last])
    else:
        place[last] = chance.choice(ODD)
    return form


def torn(data: bytes, chance: random.Random) -> bytes:
    """The bytes with some changed, cut, moved or written twice."""
    start, other = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    length = chance.choice((1, 2, 16, 300))
    return chance.choice(
        (
            data[:start],
            data[start:],
            data[:start] + chance.randbytes(length) + data[start + length :],
            data[:start] + chance.randbytes(length) + data[start:],
            data[:start] + bytes(length) + data[start + length :],
            data[:start] + data[other:],
            data + data[start:other],
        )
    )


def ends_well(main: Callable[[list[str]], int], *words: object) -> None:
    printed, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
        code = main([str(word) for word in words])
    # Commands report their progress on a slow host.
    lines = [line for line in complained.getvalue().splitlines() if not re.match(r"warning: |\d+ of \d+ cases$", line)]
    assert not any("Traceback" in line or "harness error" in line for line in lines), complained.getvalue()
    assert code in (0, 1, 2) if not lines else (code == 3 and len(lines) == 1), (code, lines)


NUMBERS = range(60)


def chance_of(number: int) -> random.Random:
    return random.Random(number)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_seed(number: int, tmp_path: Path) -> None:
    path, chance = tmp_path / "seed.json", chance_of(number)
    text = json.dumps(altered(json.loads(SEED.read_text()), chance))
    path.write_bytes(text.encode(errors="surrogatepass") if number % 2 else torn(SEED.read_bytes(), chance))
    ends_well(repro.main, "show", path)
    ends_well(repro.main, "check", path)
    ends_well(reports.main, "issue", path)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, target = tmp_path_factory.mktemp("trace") / "whole.npz", Target("stale_padding", "toy")
    trace_file.save(path, Kept(case=CASE, target=target, trace=toy_trace(CASE, target.sglang)))
    return path


@pytest.mark.parametrize("number", NUMBERS)
def test_a_trace(number: int, trace: Path, tmp_path: Path) -> None:
    path, chance = tmp_path / "trace.npz", chance_of(number)
    with np.load(trace) as file:
        head, body = json.loads(file["head"].tobytes()), file["body"].tobytes()
    if number % 3 == 0:
        path.write_bytes(torn(trace.read_bytes(), chance))
    elif number % 3 == 1:
        form = json.dumps(altered(head, chance)).encode(errors="surrogatepass")
        path.write_bytes(packed({"head.npy": array(form), "body.npy": array(body)}))
    else:
        start = chance.randrange(len(body) - 8)
        other = body[:start] + chance.randbytes(8) + body[start + 8 :]
        path.write_bytes(packed({"head.npy": array(json.dumps(head).encode()), "body.npy": array(other)}))
    ends_well(repro.main, "judge", path)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "whole.npz"
    words = ["fidelity", "--targets", "clean/toy", "--record", str(path), "--drawn", "2", "--runner", "toy"]
    assert repro.main(words) == 0
    return path


@pytest.mark.parametrize("number", NUMBERS)
def test_a_recording(number: int, recording: Path, tmp_path: Path) -> None:
    path, chance = tmp_path / "recording.npz", chance_of(number)
    with np.load(recording) as file:
        head, body = json.loads(file["head"].tobytes()), file["body"].tobytes()
    form = json.dumps(altered(head, chance)).encode(errors="surrogatepass")
    path.write_bytes(packed({"head.npy": array(form), "body.npy": array(body)}))
    if number % 3 == 0:
        path.write_bytes(torn(recording.read_bytes(), chance))
    ends_well(repro.main, "fidelity", "--against", path, path, "--targets", "clean/toy")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("record")
    words = ["run", "--target", "stale_padding/toy", "--cases", "4", "--out", str(folder / "out"), "--json"]
    assert fuzz.main([*words, str(folder / "record.json")]) == 1
    return folder / "record.json"


@pytest.mark.parametrize("number", NUMBERS)
def test_a_campaigns_record(number: int, record: Path, tmp_path: Path) -> None:
    path, chance = tmp_path / "record.json", chance_of(number)
    text = json.dumps(altered(json.loads(record.read_text()), chance))
    path.write_bytes(text.encode(errors="surrogatepass") if number % 3 else torn(record.read_bytes(), chance))
    ends_well(reports.main, "summary", path)
    ends_well(reports.main, "summary", "--markdown", path)
    ends_well(reports.main, "html", "--out", tmp_path / "page.html", path)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "whole.db"
    with Ledger.open(path) as ledger:
        fill(ledger)
    return path


@pytest.mark.parametrize("number", NUMBERS)
def test_a_ledger(number: int, ledger: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(torn(ledger.read_bytes(), chance_of(number)))
    ends_well(reports.main, "summary", "--ledger", path)
    ends_well(repro.main, "ledger", "merge", tmp_path / "out.db", path)
    ends_well(repro.main, "ledger", "check", path)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patched:
        made, _ = make(tmp_path_factory.mktemp("bundle"), small_index(patched), "0.5.13")
        yield made


@pytest.mark.parametrize("number", NUMBERS)
def test_a_bundle(number: int, bundle: Path, tmp_path: Path) -> None:
    chance, made = chance_of(number), tmp_path / "bundle"
    shutil.copytree(bundle, made)
    form = json.loads((made / build.LIST).read_text())
    if number % 2:
        (made / build.LIST).write_text(json.dumps(altered(form, chance)))
    else:
        path = chance.choice(sorted(made.glob("*.xz")))
        path.write_bytes(torn(path.read_bytes(), chance))
        entry = form["archives"][path.name.removesuffix(build.SUFFIX)]
        entry |= {"sha256": archive.digest(path), "bytes": path.stat().st_size}
        (made / build.LIST).write_text(json.dumps(form))
    ends_well(runners.main, "unpack", made, "--cache", tmp_path / "host")
    assert {path.name for path in tmp_path.iterdir()} <= {"bundle", "host"}


PATCH = """\
diff --git a/python/sglang/srt/runner.py b/python/sglang/srt/runner.py
index 1111111..2222222 100644
--- a/python/sglang/srt/runner.py
+++ b/python/sglang/srt/runner.py
@@ -1,3 +1,3 @@
 def replay(rows):
-    rows.append(0)
+    rows.append(1)
     return rows
"""


@pytest.mark.parametrize("number", NUMBERS)
def test_a_patch(number: int, tmp_path: Path) -> None:
    path, source = tmp_path / "some.diff", tmp_path / "release"
    (source / "sglang" / "srt").mkdir(parents=True)
    (source / "sglang" / "srt" / "runner.py").write_text("def replay(rows):\n    rows.append(0)\n    return rows\n")
    path.write_bytes(torn(PATCH.encode(), chance_of(number)))
    try:
        assert set(applied(path, source).contents)
    except Refused as error:
        assert "\n" not in str(error)
    assert {path.name for path in tmp_path.iterdir()} == {"some.diff", "release"}
