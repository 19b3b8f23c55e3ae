"""The console command eagleeye: its table has every command, its help is that of the command, and it starts quickly."""

from __future__ import annotations

import argparse
import resource
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module

import pytest

from repro import __main__ as repro
from repro.commands.eagleeye import SHELLS, main
from repro.commands.verbs import GROUPS, NESTED, VERBS, Verb
from repro.traces.exit_codes import ExitCode
from tests.builders.command_parsers import PARSERS, commands_of
from tests.builders.project import PROJECT

SEED = "repro/seeds/pr23037-stale-padding.json"
HIDDEN = {("fuzz", "slot")}  # only other commands start them


def nested(verb: Verb) -> dict[str, argparse.ArgumentParser]:
    """The commands of a verb that has some."""
    inner = getattr(commands_of(PARSERS[verb.package]())[verb.command], "commands", None)
    return dict(inner.choices) if inner else {}


def test_the_table_has_every_command_once() -> None:
    commands = {(name, command) for name, parser in PARSERS.items() for command in commands_of(parser())}
    rows = [(each.package, each.command) for group in GROUPS.values() for each in group]
    assert sorted(rows) == sorted(commands - HIDDEN)
    assert len(VERBS) == len(rows)


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
def test_an_example_can_be_typed(verb: Verb) -> None:
    program, name, *words = shlex.split(verb.example)
    assert (program, name) == ("eagleeye", verb.name)
    assert PARSERS[verb.package]().parse_args([verb.command, *words]).command == verb.command
    assert all((PROJECT / word).is_file() for word in words if word.startswith("repro/"))


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
def test_the_help_of_a_verb(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb.name, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0 and text.startswith(f"usage: eagleeye {verb.name} [-h]")
    assert f"\n{verb.sentence}\n" in text and text.endswith(f"example: {verb.example}\n")
    # Its package shows its own words, as before.
    assert commands_of(PARSERS[verb.package]())[verb.command].prog == f"python -m {verb.package} {verb.command}"


def test_a_doctor_of_flags_lists_the_bugs_that_concern_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--like", "--attention-backend triton", "--release", "0.5.23"]
    texts = []
    for name in ("doctor", "concerns"):
        assert main([name, *words]) == ExitCode.PASS
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and "known bugs that concern these flags" in texts[0]


@pytest.mark.parametrize("name", [verb.name for verb in VERBS.values() if nested(verb)])
def test_the_help_of_a_verb_of_a_verb(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb = VERBS[name]
    assert NESTED[name].keys() == nested(verb).keys()
    for inner, (sentence, example) in NESTED[name].items():
        with pytest.raises(SystemExit) as ended:
            main([name, inner, "--help"])
        text = capsys.readouterr().out
        assert ended.value.code == 0 and text.startswith(f"usage: eagleeye {name} {inner} [-h]")
        assert f"\n{sentence}\n" in text and text.endswith(f"example: eagleeye {name} {inner} {example}\n")
        words = [verb.command, inner, *shlex.split(example)]
        assert PARSERS[verb.package]().parse_args(words).command == verb.command


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
def test_every_option_has_a_help_that_names_its_default(verb: Verb) -> None:
    command = commands_of(PARSERS[verb.package]())[verb.command]
    for option in (action for parser in (command, *nested(verb).values()) for action in parser._actions):
        if option.option_strings:
            assert option.help, option
            if option.default not in (None, "", False, True, argparse.SUPPRESS) and option.default != []:
                assert option.help == argparse.SUPPRESS or "default" in option.help, option


def test_the_overview_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for verb in VERBS.values():
        assert sum(line.split() == [verb.name, *verb.sentence.split()] for line in lines) == 1
    assert all(f"{group}:" in lines for group in GROUPS)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("", "a verb is missing (see eagleeye --help)"),
        ("reply X.json", "reply: no such verb; close to it: replay (see eagleeye --help)"),
        ("html", "html: no such verb; close to it: report (see eagleeye --help)"),
        ("xyzzy", "xyzzy: no such verb (see eagleeye --help)"),
        ("--nothing", "unrecognized arguments: --nothing (see eagleeye --help)"),
        ("slot", "slot: no such verb"),
        ("show --upside-down X.json", "unrecognized arguments: --upside-down"),
        ("replay", "(see eagleeye replay --help)"),
        ("show missing.json", "missing.json: No such file"),
    ],
)
def test_bad_input_is_3_and_one_line(words: str, refusal: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 3
    shown = capsys.readouterr()
    assert refusal in shown.err and shown.err.count("\n") == 1 and shown.out == ""


def test_a_verb_is_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(PROJECT / SEED)
    assert main(["validate", path]) == 0
    shown = capsys.readouterr().out
    assert repro.main(["check", path]) == 0
    assert shown and capsys.readouterr().out == shown


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    stated = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"eagleeye {stated['version']}\n"
    module, function = stated["scripts"]["eagleeye"].split(":")
    assert callable(getattr(import_module(module), function))


def imported(words: str) -> set[str]:
    """The modules that a process of this command imports."""
    script = (
        "import sys; before = set(sys.modules); from repro.commands.eagleeye import console;"
        f"sys.argv = ['eagleeye', *{words.split()!r}]; code = console();"
        "print(code, *sorted(set(sys.modules) - before), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=PROJECT, check=True)
    assert done.stdout
    code, *modules = done.stderr.split()
    assert code == "0"
    return set(modules)


def test_help_imports_next_to_nothing() -> None:
    modules = imported("--help")
    parts = {
        "repro",
        "repro.commands",
        *(f"repro.commands.{name}" for name in ("eagleeye", "interrupts", "last_resort", "verbs")),
    }
    assert {name for name in modules if name.split(".")[0] not in sys.stdlib_module_names} == parts
    assert len(modules) < 60


def test_help_starts_in_less_than_three_tenths_of_a_processor_second() -> None:
    """The least of a few runs: others use the machine, too."""
    script = "import sys; from repro.commands.eagleeye import main; sys.exit(main(['--help']))"
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=PROJECT, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.3, spent


def test_a_verb_imports_its_own_package_alone() -> None:
    modules = imported(f"show {SEED}")
    assert "repro.__main__" in modules
    assert not modules & {"fuzz.__main__", "reports.__main__", "runners.__main__"}


def test_help_is_not_upset_by_a_reader_that_has_left() -> None:
    script = "import sys; from repro.commands.eagleeye import main; sys.exit(main(['--help']))"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 0)


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_verbs_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in VERBS) and "sanitizer" in text


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("eagleeye repl", ["replay"]),
        ("eagleeye run --set", ["--setups-per-session", "--set"]),
        ("eagleeye ledger mer", ["merge"]),
        ("eagleeye replay repro/see", ["repro/seeds"]),
    ],
)
def test_bash_completes(words: str, completed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", "bash"]) == 0
    typed = words.split()
    ask = f"COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; _shtab_eagleeye; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    script = f"{capsys.readouterr().out}\n{ask}\n"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=PROJECT, check=True)
    assert sorted(done.stdout.split()) == sorted(completed)
