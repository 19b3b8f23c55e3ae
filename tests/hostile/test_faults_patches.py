"""Attacked from outside: patches that name files elsewhere, and repositories whose configuration names commands."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuzz.check.touched import changes
from repro.cases import bounded_file
from repro.commands.cli import BadInput
from repro.upstream import git as git_module
from repro.upstream.git import git
from repro.upstream.history import history
from repro.upstream.patch_file import applied
from repro.upstream.rig import Refused

RUNNER = "def replay(rows):\n    rows.append(0)\n    return rows\n"
HUNK = "@@ -1,3 +1,3 @@\n def replay(rows):\n-    rows.append(0)\n+    rows.append(1)\n     return rows\n"
NEW = "@@ -0,0 +1 @@\n+HERE = 1\n"
RIGHT = f"--- a/python/sglang/srt/runner.py\n+++ b/python/sglang/srt/runner.py\n{HUNK}"


def changed(before: str, after: str, hunk: str = HUNK) -> str:
    return f"--- {before}\n+++ {after}\n{hunk}"


def made(mode: str, name: str = "python/sglang/srt/link") -> str:
    link = "@@ -0,0 +1 @@\n+../../../secret\n\\ No newline at end of file\n"
    head = f"diff --git a/{name} b/{name}\nnew file mode {mode}\nindex 0000000..1111111\n"
    return f"{head}--- /dev/null\n+++ b/{name}\n{link}"


def renamed(to: str, *, kind: str = "rename") -> str:
    name = "python/sglang/srt/runner.py"
    return f"diff --git a/{name} b/{to}\nsimilarity index 100%\n{kind} from {name}\n{kind} to {to}\n"


OUTSIDE, LINKS = "names a file outside", "symbolic links and submodules"
PATCHES = {
    "above": (changed("a/sglang/../../secret", "b/sglang/../../secret"), OUTSIDE),
    "above, with a prefix": (changed("a/python/sglang/../../../secret", "b/python/sglang/../../../secret"), OUTSIDE),
    "above, new": (changed("/dev/null", "b/sglang/srt/../../../secret", NEW), OUTSIDE),
    "above, gone": (changed("a/sglang/../../secret", "/dev/null"), OUTSIDE),
    "above, in quotes": (changed('"a/sglang/../../secret"', '"b/sglang/../../secret"'), OUTSIDE),
    "above, with a date": (changed("a/sglang/../../secret\t2026-01-01", "b/sglang/../../secret\t2026-01-01"), OUTSIDE),
    "above, from the start": (changed("../secret", "../secret"), OUTSIDE),
    "absolute": (changed("/etc/passwd", "/etc/passwd"), OUTSIDE),
    "absolute and right": (changed("/sglang/srt/runner.py", "/sglang/srt/runner.py"), OUTSIDE),
    "moved above": (RIGHT + renamed("sglang/../../secret"), OUTSIDE),
    "copied above": (RIGHT + renamed("sglang/../../secret", kind="copy"), OUTSIDE),
    "an empty file above": (RIGHT + "diff --git a/sglang/../x b/sglang/../x\nnew file mode 100644\n", OUTSIDE),
    "a link": (made("120000"), LINKS),
    "a link in other words": (made("0120000"), LINKS),
    "a link with a sign": (made(" +120000"), LINKS),
    "a link beside": (RIGHT + made("120000", "test/link"), LINKS),
    "a link that is changed": (RIGHT.replace("---", "index 1111111..2222222 120000\n---", 1), LINKS),
    "a submodule": (made("160000"), LINKS),
    "a file through a link": (made("120000") + changed("/dev/null", "b/python/sglang/srt/link/x.py", NEW), LINKS),
    "more than memory": (
        RIGHT + "diff --git a/x b/x\nGIT binary patch\nliteral 99999999999\nzcmV\n",
        "unpacks to more",
    ),
}


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Path]:
    """A release that stays as it is, like all around it."""
    path = tmp_path / "a" / "b" / "release"
    (path / "sglang" / "srt").mkdir(parents=True)
    (path / "sglang" / "srt" / "runner.py").write_text(RUNNER)
    (tmp_path / "secret").write_text("as it was")
    yield path
    files = {str(file.relative_to(tmp_path)): file.read_text() for file in tmp_path.rglob("*") if file.is_file()}
    files.pop("some.diff", None)
    assert files == {"a/b/release/sglang/srt/runner.py": RUNNER, "secret": "as it was"}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder in which a patch is applied lies where the patch's names lead to the secret."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a"))


@pytest.mark.parametrize(("text", "words"), PATCHES.values(), ids=PATCHES)
def test_a_patch_that_leads_elsewhere(text: str, words: str, release: Path, tmp_path: Path, temporary: None) -> None:
    path = tmp_path / "some.diff"
    path.write_text(text)
    with pytest.raises(Refused, match=re.escape(words)) as refused:
        applied(path, release)
    assert "\n" not in str(refused.value)


def test_a_patch_whose_text_has_two_dots(release: Path, tmp_path: Path) -> None:
    """Else all that is refused above might be refused for another reason."""
    path = tmp_path / "some.diff"
    path.write_text(RIGHT.replace("append(1)", "append(1)  # ../.. and /etc"))
    assert list(applied(path, release).contents) == ["sglang/srt/runner.py"]


def test_a_patch_without_an_end_and_one_that_never_comes(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused, match=r"/dev/zero: .* bytes are too many"):
        applied(Path("/dev/zero"), release)
    monkeypatch.setattr(bounded_file, "WAIT_S", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused, match="nothing was written into it"):
        applied(tmp_path / "pipe", release)
    (tmp_path / "pipe").unlink()


def plainly(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, check=False, timeout=60)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Three commits that change sglang, a file that differs from the last, and one that git knows nothing of."""
    top = tmp_path / "checkout"
    package = top / "python" / "sglang" / "srt"
    package.mkdir(parents=True)
    (top / ".gitattributes").write_text("*.py filter=evil diff=evil\n")
    plainly(top, "init", "--quiet", "--initial-branch", "main")
    for number in range(3):
        (package / "number.py").write_text(f"NUMBER = {number}\n")
        plainly(top, "add", "--all")
        plainly(top, "commit", "--quiet", "--message", "x")
    (package / "number.py").write_text("NUMBER = 7\n")
    (package / "new.py").write_text("NEW = 1\n")
    return top


def settings(top: Path, ran: Path) -> dict[str, str]:
    """Everything that names a command which git may run; each leaves a file of its own."""
    folder = ran.parent / "hooks"
    folder.mkdir()
    for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc", "evil"):
        (folder / name).write_text(f"#!/bin/sh\ntouch '{ran}-{name}'\ncat\n")
        (folder / name).chmod(0o755)
    script = folder / "evil"
    return {
        "core.fsmonitor": str(script),
        "core.hooksPath": str(folder),
        "core.pager": str(script),
        "core.sshCommand": str(script),
        "core.gitProxy": str(script),
        "core.editor": str(script),
        "core.alternateRefsCommand": str(script),
        "credential.helper": str(script),
        "diff.external": str(script),
        "diff.evil.command": str(script),
        "diff.evil.textconv": str(script),
        "filter.evil.clean": str(script),
        "filter.evil.smudge": str(script),
        "filter.evil.process": str(script),
        "filter.evil.required": "true",
        "gpg.program": str(script),
        "gpg.ssh.program": str(script),
        "log.showSignature": "true",
        "uploadpack.packObjectsHook": str(script),
        "protocol.allow": "always",
        "protocol.ext.allow": "always",
        "alias.log": f"!{script}",
        "alias.ls-tree": f"!{script}",
        "alias.rev-list": f"!{script}",
        "pager.log": str(script),
        "pager.diff": str(script),
        "interactive.diffFilter": str(script),
    }


def plant(top: Path, named: dict[str, str]) -> None:
    with (top / ".git" / "config").open("a") as file:
        for name, value in named.items():
            section, _, key = name.rpartition(".")
            section, _, subsection = section.partition(".")
            quoted = f' "{subsection}"' if subsection else ""
            file.write(f'[{section}{quoted}]\n\t{key} = "{value}"\n')


def search(top: Path) -> None:
    with history(top, "main~2", "main") as past:
        for commit in past.commits:
            assert past.title(commit) and past.releases(commit)
            assert (past.go_to(commit, "0.5.13") / "sglang" / "srt" / "number.py").read_text().startswith("NUMBER = ")


def since(top: Path) -> None:
    names = {change.name for change in changes(["main~1"], top / "python", top / "python")}
    assert {"python/sglang/srt/number.py", "python/sglang/srt/new.py"} <= names


def every_reader(top: Path) -> None:
    for words in ("log -p -2", "ls-tree main", "rev-list main", "diff main", "show main", "describe --dirty --all"):
        assert git(top, *words.split())


@pytest.mark.parametrize("ask", [search, since, every_reader])
def test_a_repository_names_commands_and_none_is_run(
    ask: Callable[[Path], None], checkout: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    plant(checkout, settings(checkout, ran))
    # An own driver under a name that would end on a command line.
    plainly(checkout, "config", "filter.a=b.clean", str(tmp_path / "hooks" / "evil"))
    ask(checkout)
    assert list(tmp_path.glob("ran*")) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("core.fsmonitor", ("diff", "--name-only", "main")),
        ("filter.evil.clean", ("diff", "--name-only", "main")),
        ("diff.external", ("diff", "main")),
        ("diff.evil.textconv", ("log", "-p", "-1")),
        ("alias.evil", ("evil",)),
    ],
)
def test_they_would_be_run(name: str, words: tuple[str, ...], checkout: Path, tmp_path: Path) -> None:
    """Else what is shown above might hold for another reason."""
    ran = tmp_path / "ran"
    named = settings(checkout, ran)
    plainly(checkout, "config", name, named.get(name, f"!{tmp_path / 'hooks' / 'evil'}"))
    plainly(checkout, *words)
    assert list(tmp_path.glob("ran*"))


@pytest.mark.parametrize("url", ["ext::EVIL", "ssh://host/x", "git://host/x", "ORIGIN"])
def test_nothing_that_is_missing_is_fetched(url: str, checkout: Path, tmp_path: Path) -> None:
    """A partial clone asks where it came from for what it lacks, by a command that its configuration names."""
    ran = tmp_path / "ran"
    plant(checkout, settings(checkout, ran))
    evil = str(tmp_path / "hooks" / "evil")
    promised = {
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.partialclonefilter": "blob:none",
        "remote.origin.uploadpack": evil,
        "remote.origin.url": url.replace("EVIL", evil).replace("ORIGIN", str(checkout)),
    }
    plant(checkout, promised)
    blob = git(checkout, "rev-parse", "main~1:python/sglang/srt/number.py").strip()
    (checkout / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(Refused) as refused:
        search(checkout)
    assert "\n" not in str(refused.value)
    with pytest.raises(Refused):
        git(checkout, "cat-file", "blob", blob)
    assert list(tmp_path.glob("ran*")) == []


def test_a_repository_that_keeps_git_waiting(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_module, "LIMIT_S", 0.5)
    os.mkfifo(tmp_path / "pipe")
    with (checkout / ".git" / "config").open("a") as file:
        file.write(f"[include]\n\tpath = {tmp_path / 'pipe'}\n")
    begun = time.monotonic()
    with pytest.raises(Refused, match="took longer than"), history(checkout, "main~2", "main"):
        pass
    with pytest.raises(BadInput, match="took longer than"):
        changes(["main"], checkout / "python", checkout / "python")
    assert time.monotonic() - begun < 30
