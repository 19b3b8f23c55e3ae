"""fuzz check --only-changed: which runners a change touches, and what the kept results depend on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fuzz.check.plan import Item, directed
from fuzz.check.touched import Change, changes, only_functions, ran, touched, traces
from repro.cases.case import Case, Target
from repro.commands.cli import BadInput
from repro.traces.trace import End, Termination, Trace
from runners.targets.identity import identity

RUNNER = "sglang/srt/speculative/draft_runner.py"
RAN = {("draft", "triton"): frozenset({RUNNER}), ("decode", "fa3"): frozenset({"sglang/srt/decode.py"})}
BEFORE = '''"""A module."""
import os

LIMIT = 4


class Runner:
    width = 1

    def replay(self, batch):
        return batch[: self.width]
'''


def change(after: str, path: str = RUNNER, before: str | None = BEFORE) -> Change:
    return Change(name=path, path=path, before=before, after=after)


def test_a_function_touches_the_runners_that_run_its_file() -> None:
    of_change = touched([change(BEFORE.replace("self.width", "2"))], RAN)
    assert of_change.pairs == {("draft", "triton")}
    assert of_change.reasons == (f"{RUNNER}: draft/triton",)


def test_a_file_that_no_runner_runs_touches_none_and_is_named() -> None:
    other = change(BEFORE.replace("self.width", "2"), "sglang/srt/scheduler.py")
    of_change = touched([other, Change(name="docs/index.md")], RAN)
    assert of_change.pairs == frozenset()
    assert of_change.reasons == ("sglang/srt/scheduler.py: no runner runs it", "docs/index.md: no part of sglang")


def test_a_pair_of_which_nobody_knows_what_it_runs_is_touched_by_every_file_of_sglang() -> None:
    untraced = {**RAN, ("kv_move", "triton"): frozenset[str]()}
    body = change(BEFORE.replace("self.width", "2"))
    assert touched([body], untraced).pairs == {("draft", "triton"), ("kv_move", "triton")}
    assert touched([Change(name="docs/index.md")], untraced).pairs == frozenset()


@pytest.mark.parametrize(
    "after",
    [
        BEFORE.replace("LIMIT = 4", "LIMIT = 5"),
        BEFORE.replace("width = 1", "width = 2"),
        BEFORE.replace("replay(self, batch)", "replay(self, batch, full=True)"),
        BEFORE.replace("class Runner:", "@register\nclass Runner:"),
        BEFORE + "\n    def capture(self):\n        pass\n",
        BEFORE + "\nos = None\n",
        BEFORE + "\n\ndef Runner():\n    pass\n",
        BEFORE + "\n(",
    ],
)
def test_what_is_changed_outside_of_functions_touches_everybody(after: str) -> None:
    assert not only_functions(BEFORE, after)
    assert touched([change(after, "sglang/srt/constants.py")], RAN).pairs == set(RAN)


@pytest.mark.parametrize(
    "after",
    [
        BEFORE.replace("self.width]", "self.width + 1]"),
        BEFORE.replace('"""A module."""', '"""Another text."""'),
        BEFORE.replace("import os\n", "import os\nimport sys\n"),
        BEFORE + "\n\ndef rounded(number):\n    return number\n",
        BEFORE.replace("return batch", "# Why.\n        return batch"),
    ],
)
def test_bodies_imports_comments_and_functions_of_new_names_touch_their_own_runners_alone(after: str) -> None:
    assert only_functions(BEFORE, after)


def test_a_new_a_removed_and_an_unreadable_file_touch_everybody() -> None:
    for before, after, path in ((None, BEFORE, RUNNER), (BEFORE, None, RUNNER), ("{}", "[]", "sglang/a.json")):
        assert touched([Change(name=path, path=path, before=before, after=after)], RAN).pairs == set(RAN)


def tree(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "python"


def test_files_are_found_from_the_import_path_its_repository_and_here(tmp_path: Path) -> None:
    base = tree(tmp_path / "base", {f"python/{RUNNER}": BEFORE})
    here = tree(tmp_path / "here", {f"python/{RUNNER}": BEFORE + "# New.\n", "docs/index.md": "A text."})
    names = (RUNNER, f"python/{RUNNER}", str(here / RUNNER))
    for of_change in changes([*names, "docs/index.md"], here, base)[:3]:
        assert (of_change.path, of_change.before, of_change.after) == (RUNNER, BEFORE, BEFORE + "# New.\n")
    assert changes([RUNNER, "docs/index.md"], here, base)[1] == Change(name="docs/index.md")
    # A name that is nowhere may be anything.
    assert touched(changes([RUNNER, "eagle_worker.py"], here, base), RAN).pairs == set(RAN)


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_a_revision_stands_for_what_differs_from_where_the_tree_left_it(tmp_path: Path) -> None:
    python = tree(tmp_path, {f"python/{RUNNER}": BEFORE, "docs/index.md": "A text.", "python/sglang/a.py": "A = 1\n"})
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "First.")
    git(tmp_path, "checkout", "-q", "-b", "branch")
    (python / RUNNER).write_text(BEFORE.replace("self.width", "2"))
    git(tmp_path, "commit", "-q", "-a", "-m", "Second.")
    (tmp_path / "docs" / "index.md").write_text("Another text.")
    (python / "sglang" / "new.py").write_text("B = 1\n")
    git(tmp_path, "checkout", "-q", "main", "--", "python/sglang/a.py")
    by_name = {of_change.name: of_change for of_change in changes(["main"], python, python)}
    assert set(by_name) == {f"python/{RUNNER}", "docs/index.md", "python/sglang/new.py"}
    runner = by_name[f"python/{RUNNER}"]
    assert (runner.path, runner.before) == (RUNNER, BEFORE) and "[: 2]" in (runner.after or "")
    assert by_name["docs/index.md"].path == "" and by_name["python/sglang/new.py"].before is None
    with pytest.raises(BadInput, match="git rev-parse"):
        changes(["no-such-revision"], python, python)


def items() -> list[Item]:
    return [directed("draft", "triton")[0], directed("decode", "fa3")[0]]


class Noting:
    """Sessions that run the files of RAN, and note what is said to them. how: the end of each run."""

    def __init__(self, how: Termination = Termination.DONE) -> None:
        self.asked: list[Case] = []
        self.foreseen: list[Sequence[Sequence[Case]]] = []
        self.sent: list[Sequence[Case]] = []
        self._how = how

    def run(self, case: Case) -> Trace:
        self.asked.append(case)
        facts = {"files": json.dumps(sorted(RAN[case.setup.runner, case.setup.backend]))}
        return Trace(ended=End(how=self._how), facts=facts if self._how is Termination.DONE else {})

    def foresee(self, rounds: Sequence[Sequence[Case]]) -> None:
        self.foreseen.append(rounds)

    def send(self, upcoming: Sequence[Case]) -> None:
        self.sent.append(upcoming)


def test_which_files_runners_run_is_asked_once(tmp_path: Path) -> None:
    sessions = Noting()
    folder, cases = tmp_path / "kept", sum(len(item.cases) for item in items())
    assert ran(folder, items(), sessions, print) == RAN
    assert len(sessions.asked) == cases
    assert ran(folder, items(), sessions, print) == RAN and len(sessions.asked) == cases
    # Another plan may have others.
    assert set(ran(folder, items()[:1], sessions, print)) == {("draft", "triton")} and len(sessions.asked) > cases


def test_sessions_know_which_setups_and_cases_are_traced_next() -> None:
    sessions, every = Noting(), items()
    traced = [item for item, _ in traces(every, sessions, "files", print)]
    assert traced == every and sessions.foreseen == [[every[1].cases], []]
    assert sessions.sent == [item.cases[place:] for item in every for place in range(1, 1 + len(item.cases))]


def test_a_base_of_which_no_runner_runs_a_file_says_nothing_of_a_change(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no runner ran any file"):
        ran(tmp_path, items(), Noting(Termination.ERROR), print)
    assert not list(tmp_path.iterdir())


def test_a_targets_identity_is_what_its_verdicts_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tree(tmp_path, {f"python/{RUNNER}": BEFORE, "python/sglang/srt/a.json": "{}"})
    target = Target(str(python), "cuda")
    before = identity(target)
    (python / "sglang" / "__pycache__").mkdir()
    (python / "sglang" / "__pycache__" / "a.pyc").write_text("")
    monkeypatch.setenv("EAGLEEYE_LEDGER", "elsewhere")
    assert identity(target) == before
    seen = {before}
    (python / RUNNER).write_text(BEFORE + "# New.\n")
    seen.add(identity(target))
    (python / "sglang" / "srt" / "a.json").write_text("[]")
    seen.add(identity(target))
    monkeypatch.setenv("EAGLEEYE_PROBES", "1")
    seen.add(identity(target))
    assert len(seen) == 4
