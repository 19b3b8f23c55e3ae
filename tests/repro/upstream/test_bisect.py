"""Bisection: the posterior, the search over releases and commits, flaky failures, and ranges that make no sense."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from repro.__main__ import main, options_of
from repro.cases import codec
from repro.cases.case import Case, Target
from repro.commands import bisect as command
from repro.commands.cli import BadInput
from repro.traces.finding import Status, Verdict
from repro.traces.trace import End, Termination, Trace
from repro.upstream.bisect import Bisection, Candidate, summary
from repro.upstream.changepoint import look, next_look, posterior
from repro.upstream.fixes import SEEDS
from repro.upstream.history import history
from repro.upstream.rig import Refused, Rig, Sighting, Wanted, runs_of, sighting
from tests.builders import rigs

SEED = SEEDS / "pr23037-stale-padding.json"
CASE = codec.read(SEED).case
WANTED = command.wanted_of(codec.read(SEED))
FAIL = Verdict(oracle=WANTED.oracle, status=Status.FAIL, where=WANTED.where)
DONE = Trace(ended=End(how=Termination.DONE))
REFUSED = Trace(ended=End(how=Termination.UNSUPPORTED, what="NotDriven", detail="no such runner"))

# What a run on a target comes to: True fails, False passes, None cannot be run.
World = Callable[[Target], bool | None]


def rig(world: World, lines: list[str], releases: Sequence[str] = ()) -> Rig:
    def ran(target: Target, case: Case) -> tuple[Trace, list[Verdict]]:
        bad = world(target)
        passed = Verdict(oracle=WANTED.oracle, status=Status.PASS)
        return (REFUSED if bad is None else DONE), [FAIL if bad else passed]

    return rigs.rig(ran, lines, releases=releases)


def test_a_failing_run_between_passing_ones_leaves_one_place() -> None:
    best = posterior([0, 0, 5, 0], [2, 2, 0, 2])[0]
    assert (best.start, best.stop) == (2, 3) and best.chance > 0.99 and best.rate > 0.98


def test_what_was_not_looked_at_stays_open_and_is_looked_at_next() -> None:
    places = posterior([0, 0, 0, 0, 5], [2, 0, 0, 0, 0], to_the_end=True)
    assert {place.start for place in places[:4]} == {1, 2, 3, 4}
    assert places[0].chance == pytest.approx(places[3].chance)
    candidate, runs, bits = next_look(places, 5)
    assert candidate in (2, 3) and runs == 1 and bits == pytest.approx(1, abs=0.05)


def test_a_failure_that_comes_and_goes_needs_more_runs() -> None:
    flaky = posterior([0, 3], [20, 7], to_the_end=True)[0]
    assert flaky.start == 1 and 0.2 < flaky.rate < 0.5
    assert look(1.0) == 1 < look(flaky.rate) <= 8


def test_one_pass_of_a_flaky_failure_proves_little() -> None:
    sure = posterior([0, 5], [1, 0], to_the_end=True)[0]
    flaky = posterior([0, 2], [1, 3], to_the_end=True)[0]
    assert sure.start == flaky.start == 1 and sure.chance > 0.99 > 0.8 > flaky.chance


RELEASES = tuple(f"0.5.{n}" for n in range(8, 24))


def bisect(world: World, *arguments: str, releases: Sequence[str] = RELEASES) -> tuple[int, list[str]]:
    lines: list[str] = []
    code = command.go(options_of(["bisect", str(SEED), *arguments]), rig(world, lines, releases))
    return code, lines


def number(target: Target) -> int:
    return int(target.sglang.rpartition(".")[2])


@pytest.mark.parametrize("first", [8, 9, 14, 23])
@pytest.mark.parametrize("length", [1, 4, 20])
def test_every_stretch_is_found(first: int, length: int, tmp_path: Path) -> None:
    out = tmp_path / "range.json"
    code, _ = bisect(lambda target: first <= number(target) < first + length, "--json", str(out))
    located = json.loads(out.read_text())
    assert code == 0
    assert located["first_bad"] == f"0.5.{first}" and located["posterior"] > 0.99
    assert located["last_good"] == (f"0.5.{first - 1}" if first > 8 else "")
    assert located["last_bad"] == f"0.5.{min(23, first + length - 1)}"
    assert located["first_fixed"] == (f"0.5.{first + length}" if first + length < 24 else "")
    if length == 20:  # the newest fails, so that nothing has to be searched for first
        assert sum(bool(candidate["runs"]) for candidate in located["candidates"]) <= 7


def test_a_release_that_cannot_run_the_case_is_not_good(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = bisect(lambda target: None if number(target) < 12 else number(target) < 15)
    assert code == 0
    assert any(text.startswith("0.5.11: skipped: NotDriven: no such runner") for text in lines)
    shown = capsys.readouterr().out
    assert "last good release: none, as old as the feature: 0.5.11 cannot run the case (NotDriven" in shown
    assert "first bad release: 0.5.12\n" in shown and "first fixed release: 0.5.15\n" in shown


def test_the_posterior_is_told() -> None:
    _, lines = bisect(lambda target: number(target) > 20)
    assert any("posterior of the failing stretch: 0.5.21..0.5.23 " in text for text in lines)


def test_a_run_that_ended_before_its_oracle_could_judge_says_nothing() -> None:
    doubt = Verdict(oracle=WANTED.oracle, status=Status.UNKNOWN, detail="nothing was launched")
    crash = Verdict(oracle="ended", status=Status.FAIL, where="SIGSEGV")
    seen = sighting(DONE, [crash, doubt], WANTED)
    assert seen.bad is None and seen.why.endswith("could not judge: nothing was launched; ended at SIGSEGV failed")
    elsewhere = Verdict(oracle=WANTED.oracle, status=Status.FAIL, where="padded rows of others")
    assert sighting(DONE, [elsewhere], WANTED).bad is False
    assert sighting(DONE, [elsewhere], Wanted(oracle=WANTED.oracle)).bad is True


def test_what_makes_no_sense_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bisect(lambda target: False)[0] == 2
    assert "is in no release of the range that can run the case" in capsys.readouterr().out
    bad = tmp_path / "silent.json"
    codec.write(bad, codec.Seed(case=CASE))
    for arguments, text in (
        ([str(SEED), "--from", "0.5.13", "--to", "0.5.11"], "the wrong way round: --from 0.5.13 is newer than --to"),
        ([str(SEED), "--from", "newest"], "--from: 'newest' is not a release number"),
        ([str(SEED), "--from", "9.0"], "no release of the range is installed; installed: "),
        ([str(SEED), "--repo", str(tmp_path)], "--repo, --good and --bad go together"),
        ([str(SEED), "--keep", str(tmp_path)], "--keep is for the clones of --repo"),
        ([str(SEED), "--repo", str(tmp_path), "--good", "a", "--bad", "b"], "not a git repository"),
        (
            [str(SEED), "--repo", str(tmp_path), "--good", "a", "--bad", "b", "--to", "0.5.13"],
            "--from and --to are releases; with --repo the range is --good and --bad",
        ),
        ([str(bad)], "the seed lacks about.oracle"),
    ):
        assert main(["bisect", *arguments]) == 3
        printed = capsys.readouterr().err
        assert text in printed and printed.startswith("error: ") and printed.count("\n") == 1


def test_releases_of_which_none_can_be_used_or_run_the_case() -> None:
    none = replace(rig(lambda target: True, [], RELEASES), lacks=lambda target: f"{target} lacks a package")
    with pytest.raises(BadInput, match=r"no release of the range can be used: 0\.5\.8/emulated lacks a package"):
        command.go(options_of(["bisect", str(SEED)]), none)
    code, lines = bisect(lambda target: None)
    assert code == 2 and sum("skipped: NotDriven" in text for text in lines) == len(RELEASES)


def test_a_seed_that_names_no_target_was_found_on_no_release() -> None:
    stored = codec.read(SEED)
    assert command.found_on(stored) == "0.5.10.post1"
    for target in ("by hand", "0.5.13", ""):
        assert command.found_on(replace(stored, about={"found": target})) == ""


COMMITS = 210


def git(folder: Path, *arguments: str) -> str:
    words = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """COMMITS commits that change sglang, as many that do not, one file each."""
    top = tmp_path_factory.mktemp("history") / "sglang"
    files = top / "python" / "sglang" / "srt"
    files.mkdir(parents=True)
    git(top, "init", "--quiet")
    script = []
    for number in range(COMMITS):
        for path, text in (("python/sglang/srt/number.py", f"NUMBER = {number}\n"), ("README.md", f"{number}\n")):
            script.append(f"commit refs/heads/main\ncommitter a <a@b> {number} +0000\ndata 1\nx")
            script.append(f"M 100644 inline {path}\ndata {len(text)}\n{text}")
    subprocess.run(["git", "-C", str(top), "fast-import", "--quiet"], input="\n".join(script), text=True, check=True)
    git(top, "checkout", "--quiet", "--force", "main")
    git(top, "tag", "v0.5.13", "main~300")
    return top


def at(target: Target) -> int:
    """The number of the commit that lies there."""
    return int((Path(target.sglang) / "sglang" / "srt" / "number.py").read_text().split()[-1])


def commits(repository: Path, world: World, lines: list[str], *more: str) -> int:
    """A search from the first commit that changes sglang to the last."""
    good = git(repository, "rev-list", "--max-parents=0", "main")
    arguments = ["bisect", str(SEED), "--repo", str(repository), "--good", good, "--bad", "main", *more]
    return command.go(options_of(arguments), rig(world, lines))


@pytest.mark.parametrize(
    ("rate", "searches"),
    [(1.0, 3), *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in ((1.0, 8), (0.3, 20)))],
)
def test_the_commit_is_named_every_time(repository: Path, rate: float, searches: int, tmp_path: Path) -> None:
    chance, right, looks = random.Random(5), 0, []
    for _ in range(searches):
        first, out = chance.randrange(1, COMMITS), tmp_path / "range.json"
        seen: set[int] = set()

        def world(target: Target, first: int = first, seen: set[int] = seen) -> bool:
            seen.add(at(target))
            return at(target) >= first and chance.random() < rate

        arguments = ("--tries", "20", "--confidence", "0.999", "--json", str(out))
        assert commits(repository, world, [], *arguments) == 0
        located = json.loads(out.read_text())
        right += git(repository, "show", f"{located['first_bad']}:python/sglang/srt/number.py") == f"NUMBER = {first}"
        looks.append(len(seen))
    assert right == searches
    assert max(looks) <= (16 if rate == 1 else 60)


def test_the_checkout_stays_as_it_is_and_says_which_release_it_is(repository: Path) -> None:
    with history(repository, "main~9", "main") as past:
        # Those between that change only the README are left out; the ends are looked at all the same.
        assert len(past.commits) == 6
        path = past.go_to(past.commits[1], *past.releases(past.commits[1]))
        assert (path / "sglang" / "_version.py").read_text().startswith("__version__ = '0.5.13'")
    assert not path.exists()
    assert git(repository, "status", "--porcelain") == ""


def test_the_nearest_clone_goes_and_kept_ones_are_taken_again(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repro.upstream.history.FAR", 0)
    monkeypatch.setattr("repro.upstream.history.CLONES", 2)
    keep = tmp_path / "clones"
    with history(repository, "main~9", "main", keep) as past:
        first, second = past.commits[:2]
        places = [past.go_to(commit, "0.5.12") for commit in (first, second, first, second)]
        assert places == [keep / f"clone{number}" / "python" for number in (0, 1, 0, 1)]
        # No third one, however far it lies.
        assert past.go_to(past.commits[2], "0.5.12") in places
    with history(repository, "main~9", "main", keep) as past:
        assert len(past.at) == 2 and past.go_to(past.commits[2], "0.5.12") in places
    other = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", str(repository), str(other))
    with (
        pytest.raises(Refused, match=re.escape(f"--keep {keep}: holds clones of {repository}")),
        history(other, "HEAD~9", "HEAD", keep),
    ):
        pass


def test_a_commit_is_driven_as_the_releases_around_it(tmp_path: Path) -> None:
    """sglang tags each release on a branch of its own, patch releases too."""
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")

    def grown(number: int) -> str:
        (tmp_path / "sglang" / "srt" / "number.py").write_text(f"NUMBER = {number}\n")
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "--quiet", "--message", "x")
        return git(tmp_path, "rev-parse", "HEAD")

    line = [grown(number) for number in range(5)]
    tagged: dict[str, str] = {}
    for place, releases in ((1, ("0.5.13", "0.5.13.post1")), (3, ("0.5.14",))):
        git(tmp_path, "checkout", "--quiet", "--detach", line[place])
        for release in releases:
            tagged[release] = grown(9 + len(tagged))
            git(tmp_path, "tag", f"v{release}")
    with history(tmp_path, line[0], "main") as past:
        assert [past.releases(commit) for commit in line] == [
            ("0.5.13",),
            ("0.5.13",),
            ("0.5.13.post1", "0.5.14"),
            ("0.5.13.post1", "0.5.14"),
            ("0.5.14",),
        ]
        assert [past.releases(commit) for commit in tagged.values()] == [(release,) for release in tagged]


def test_a_commit_that_says_which_release_it_is_stays_as_it_is(tmp_path: Path) -> None:
    package = tmp_path / "python" / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "_version.py").write_text("__version__ = '0.6'\n")
    git(tmp_path, "init", "--quiet")
    for text in ("", "NUMBER = 1\n"):
        (package / "srt" / "number.py").write_text(text)
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "--quiet", "--message", "x")
    with history(tmp_path, "HEAD~1", "HEAD") as past:
        assert past.releases(past.commits[1]) == ("",)
        assert (past.go_to(past.commits[1]) / "sglang" / "_version.py").read_text() == "__version__ = '0.6'\n"


@pytest.mark.slow
def test_ends_that_are_none_are_told(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refused, match=r"the wrong way round: .* fails, .* does not"):
        commits(repository, lambda target: at(target) == 0, [])
    with pytest.raises(Refused, match="cannot be the good end: it fails in 5 of 5 runs"):
        commits(repository, lambda target: True, [])
    assert commits(repository, lambda target: False, []) == 2
    with pytest.raises(Refused, match="cannot be judged, so that nothing lies between: NotDriven: no such runner"):
        commits(repository, lambda target: None if at(target) == 0 else True, [])
    lacking = replace(rig(lambda target: True, []), lacks=lambda target: "its packages are not those of this host")
    ends = ["--good", git(repository, "rev-list", "--max-parents=0", "main"), "--bad", "main"]
    with pytest.raises(Refused, match=f"^{git(repository, 'rev-parse', 'main')}: its packages are not those"):
        command.go(options_of(["bisect", str(SEED), "--repo", str(repository), *ends]), lacking)
    options = ["bisect", str(SEED), "--repo", str(repository), "--good", "main", "--bad", "main~2"]
    assert main(options) == 3 and "the wrong way round: main~2 lies before main" in capsys.readouterr().err
    assert main([*options[:-1], "nothing"]) == 3 and "has no commit 'nothing'" in capsys.readouterr().err
    git(
        repository,
        "branch",
        "--force",
        "bare",
        git(repository, "commit-tree", "-m", "x", "-p", "main", git(repository, "mktree")),
    )
    assert main([*options[:-1], "bare"]) == 3 and "holds no sglang: " in capsys.readouterr().err


def test_what_is_no_range_is_refused_with_its_reason(repository: Path, tmp_path: Path) -> None:
    tree = git(repository, "rev-parse", "main^{tree}")
    git(repository, "branch", "--force", "side", git(repository, "commit-tree", "-m", "x", tree))
    (tmp_path / "file").write_text("")
    for place, good, bad, why in (
        (repository, "main", "main", "--good main and --bad main are the same commit"),
        (repository, "side", "main", "side does not lie before main: they are on different branches"),
        (repository, "--all", "main", "'--all' is not a revision"),
        (tmp_path / "file", "a", "b", "no such folder"),
        (tmp_path, "a", "b", "not a git repository"),
    ):
        with pytest.raises(Refused, match=re.escape(why)), history(place, good, bad):
            pass


def test_without_git_it_says_so(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="git is not installed"), history(repository, "main~9", "main"):
        pass


def seen_on(used: Rig, name: str, most: int, until_bad: bool) -> list[Sighting]:
    with used.opened(Target(name, "emulated")) as run:
        return runs_of(used, run, CASE, WANTED, most, until_bad)


def test_a_search_may_run_out_of_runs() -> None:
    lines: list[str] = []
    candidates = [Candidate(name=release) for release in RELEASES]
    used = rig(lambda target: number(target) > 12, lines, RELEASES)
    search = Bisection(
        candidates=candidates,
        see=partial(seen_on, used),
        tell=lines.append,
        runs=6,
    )
    located = search.go("0.5.23")
    assert 0.05 < located.chance < 0.9
    assert any(f"posterior {located.chance:.2%}" in text for text in summary(located, WANTED, "release"))


@pytest.mark.parametrize("bad", [9, 14, 20])
def test_both_edges_are_looked_at_however_little_is_asked_for(bad: int) -> None:
    candidates = [Candidate(name=release) for release in RELEASES]
    used = rig(lambda target: number(target) >= bad, [], RELEASES)
    search = Bisection(
        candidates=candidates,
        see=partial(seen_on, used),
        tell=lambda text: None,
        confidence=0.01,
    )
    located = search.go("0.5.23")
    runs = {candidate.name: candidate.runs for candidate in candidates}
    assert runs[located.good] and runs[located.bad]
    assert located.bad == f"0.5.{number(Target(located.good, 'emulated')) + 1}"


@pytest.mark.exhaustive
@pytest.mark.emulated("0.5.11", "0.5.12.post1", "0.5.13")
def test_on_real_sglang(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    seed, out = SEEDS / "pr26335-uninitialised-tail.json", tmp_path / "range.json"
    assert main(["bisect", str(seed), "--from", "0.5.11", "--to", "0.5.13", "--json", str(out)]) == 0
    located = json.loads(out.read_text())
    assert (located["last_bad"], located["first_fixed"]) == ("0.5.12.post1", "0.5.13"), capsys.readouterr().out
