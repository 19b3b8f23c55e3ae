"""Commits of a checkout of sglang, in clones that move from commit to commit, so that the checkout stays as it is. Of a
few clones the nearest one moves, so that a step compiles only the changed files, also where a search goes back and
forth between releases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from repro.cases.own_place import temporary_folder
from repro.cases.release_list import ADAPTED
from repro.upstream.git import git
from repro.upstream.rig import Refused

_PLACES = ("python/sglang", "sglang")
_VERSION = "_version.py"
_HASH = 12  # characters of a commit's name that are shown


# Most clones; another is made where each of them differs from a commit in so many files.
CLONES, FAR = 4, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """top: the repository, which is only read. commits: from the good end to the bad one, both included, by their full
    names; only those that change sglang's own files. package: where these lie, python/sglang or sglang. folder: has
    the clones; at: the commit of each. Mutable: clones are made where they are needed."""

    top: Path
    commits: tuple[str, ...]
    package: str
    folder: Path
    at: dict[Path, str]

    def go_to(self, commit: str, release: str = "") -> Path:
        """Have the files of this commit in a clone; its import path. release: what sglang is to say that it is, where
        the commit itself does not."""
        clone = self._nearest(commit)
        _git(clone, "checkout", "--quiet", "--force", "--detach", commit)
        self.at[clone] = commit
        stated = clone / self.package / _VERSION
        if not self._states(commit):
            numbers = tuple(release.split("."))
            stated.write_text(f"__version__ = {release!r}\n__version_tuple__ = {numbers!r}\n")
        return clone / Path(self.package).parent

    def _nearest(self, commit: str) -> Path:
        """The clone to which this commit changes least; a new one where that is much."""
        apart = {clone: self._apart(present, commit) for clone, present in self.at.items()}
        nearest = min(apart, key=lambda clone: apart[clone], default=None)
        if nearest is None or (apart[nearest] > FAR and len(apart) < CLONES):
            nearest = self.folder / f"clone{len(apart)}"
            _shared(self.top, nearest)
            _git(nearest, "sparse-checkout", "set", "--no-cone", f"/{self.package}/")
        return nearest

    def _apart(self, present: str, commit: str) -> int:
        """The number of sglang's files that differ."""
        return len(_git(self.top, "diff", "--name-only", present, commit, "--", self.package).splitlines())

    def releases(self, commit: str) -> tuple[str, ...]:
        """The releases as which the files of this commit may be driven: the last one before it, then the first one
        behind it; one empty text where the commit says itself. sglang's tags lie on branches of their own: the last one
        before a commit is the one whose branch leaves the commit's line nearest to it."""
        if self._states(commit):
            return ("",)
        before, nearest, behind = "", 0, ""
        for release in ADAPTED:
            fork = _fork(self.top, f"v{release}", commit)
            apart = int(_git(self.top, "rev-list", "--count", f"{fork}..{commit}")) if fork else 0
            if fork and not apart:
                behind = release
                break
            # Several may leave at one place: the newest counts.
            if fork and (not before or apart <= nearest):
                before, nearest = release, apart
        if behind and _commit(self.top, f"v{behind}") == commit:
            return (behind,)
        return tuple(release for release in (before, behind) if release) or ("",)

    def _states(self, commit: str) -> bool:
        """True if the commit holds the file that states its release, which is otherwise made by a build."""
        return bool(_git(self.top, "ls-tree", "--name-only", commit, f"{self.package}/{_VERSION}"))

    def title(self, commit: str) -> str:
        return _git(self.top, "log", "-1", "--format=%h %ad %s", "--date=short", f"--abbrev={_HASH}", commit)


@contextmanager
def history(repository: Path, good: str, bad: str, keep: Path | None = None) -> Iterator[History]:
    """The commits of a range, in clones that last as long as this, or in `keep`, where the next search finds them with
    what was compiled in them. Refused if it is no range of sglang's commits."""
    top = _repository(repository)
    first, last = _commit(top, good), _commit(top, bad)
    if first == last:
        raise Refused(f"--good {good} and --bad {bad} are the same commit")
    if not _is_ancestor(top, first, last):
        if _is_ancestor(top, last, first):
            raise Refused(f"the range is the wrong way round: {bad} lies before {good}")
        raise Refused(f"{good} does not lie before {bad}: they are on different branches; take their merge base")
    package = _package(top, last)
    listed = _git(top, "rev-list", "--reverse", "--first-parent", f"{first}..{last}", "--", package).split()
    # The ends are looked at whether or not they themselves change anything.
    commits = tuple(dict.fromkeys((first, *listed, last)))
    with nullcontext(keep.resolve()) if keep else temporary_folder("eagleeye-history-") as folder:
        yield History(top=top, commits=commits, package=package, folder=folder, at=_kept(folder, top))


def _shared(top: Path, clone: Path) -> None:
    """A clone that has all objects from there. It is made, not cloned: for that git would run in the other repository
    what it runs for a fetch."""
    form = _git(top, "rev-parse", "--show-object-format")
    _git(top, "init", "--quiet", "--template=", f"--object-format={form}", str(clone))
    objects = _git(top, "rev-parse", "--path-format=absolute", "--git-path", "objects")
    (clone / ".git" / "objects" / "info" / "alternates").write_text(f"{objects}\n")
    _git(clone, "config", "remote.origin.url", str(top))


def _kept(folder: Path, top: Path) -> dict[Path, str]:
    """The clones that an earlier search left there, and their commits. Refused if they are of another repository."""
    clones = sorted(folder.glob("clone*"))
    for clone in clones:
        if (origin := _git(clone, "config", "remote.origin.url")) != str(top):
            raise Refused(f"--keep {folder}: holds clones of {origin}")
    return {clone: _git(clone, "rev-parse", "HEAD") for clone in clones}


def _repository(path: Path) -> Path:
    if not path.is_dir():
        raise Refused(f"--repo {path}: no such folder")
    try:
        is_bare = _git(path, "rev-parse", "--is-bare-repository") == "true"
        return Path(_git(path, "rev-parse", "--absolute-git-dir" if is_bare else "--show-toplevel"))
    except Refused as error:
        raise Refused(f"--repo {path}: {error}") from error


def _commit(top: Path, revision: str) -> str:
    if revision.startswith("-"):
        raise Refused(f"{revision!r} is not a revision")
    try:
        return _git(top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except Refused:
        raise Refused(f"{top} has no commit {revision!r}") from None


def _is_ancestor(top: Path, first: str, last: str) -> bool:
    try:
        git(top, "merge-base", "--is-ancestor", first, last)
    except Refused:
        return False
    return True


def _package(top: Path, commit: str) -> str:
    for place in _PLACES:
        if _git(top, "ls-tree", "-d", "--name-only", commit, f"{place}/srt"):
            return place
    raise Refused(f"{top} holds no sglang: neither {' nor '.join(_PLACES)} at {commit[:_HASH]} has a folder srt")


def _fork(folder: Path, tag: str, commit: str) -> str:
    """The last commit that lies before both; empty where there is no such tag, or none in common."""
    try:
        return _git(folder, "merge-base", tag, commit)
    except Refused:
        return ""


def _git(folder: Path, *arguments: str) -> str:
    return git(folder, *arguments).strip()


def names(commits: Sequence[str]) -> list[str]:
    """Short names, as short as they stay apart."""
    length = next(n for n in range(_HASH, 41) if len({commit[:n] for commit in commits}) == len(commits))
    return [commit[:length] for commit in commits]
