"""The oracle tree_mask, and the stand-in for the kernel that builds what it judges."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import numpy as np
import pytest

from oracles import tree_mask
from oracles.tree_mask import INDEX, LINKS, POSITIONS, PREFIX, STARTS, TREE, judge
from repro.cases.case import Case, Request, Setup, Step, Target
from repro.cases.tree import NONE, ancestors, parents_of, reached
from repro.traces.finding import Status
from repro.traces.trace import Array, End, RecordedArray, Termination, Trace
from runners.targets.environments import interpreter, worker_environment
from tests.builders.project import PROJECT
from tests.builders.toy_traces import changed

SCRIPT = PROJECT / "tests" / "tools" / "tree_problems.py"
SETUP = Setup(runner="verify", topk=2, num_steps=3, num_draft_tokens=5, capture_bs=(2,), slots=2)
CASE = Case(
    setup=SETUP,
    steps=(Step(requests=(Request(slot=1, seq_len=3, data=0), Request(slot=2, seq_len=1, data=0))),),
)
# Candidates 0 and 1 are the root's children, 2..5 those of the two best of step 0, 6..9 of the two best of step 1.
PARENTS = np.array([[-1, 0, 1, 3, 4], [-1, 0, 1, 2, 5]])
SELECTED = np.array([[0, 1, 3, 6], [0, 2, 6, 7]])
# Row 0: 1 and 2 below the root, 3 below 1, 4 below 3. Row 1: a chain of 1, 2, 3, and 4 beside 3.
TREES = (
    ("10000", "11000", "10100", "11010", "11011"),
    ("10000", "11000", "11100", "11110", "11101"),
)
# The first child of each token, and the next child of its parent.
CHILDREN = np.array([[1, 3, -1, 4, -1], [1, 2, 3, -1, -1]])
SIBLINGS = np.array([[-1, 2, -1, -1, -1], [-1, -1, -1, 4, -1]])
DEPTHS = ((0, 1, 1, 2, 3), (0, 1, 2, 3, 3))


def sound() -> Trace:
    masks = [
        np.concatenate([np.ones((5, length), dtype=np.uint8), np.array([[int(c) for c in line] for line in rows])], 1)
        for length, rows in zip((3, 1), TREES, strict=True)
    ]
    positions = np.array([[3 + depth for depth in DEPTHS[0]], [1 + depth for depth in DEPTHS[1]]])
    recorded: dict[str, dict[str, Array]] = {
        "input": {"seq_lens": np.array([3, 1]), "scores_index": SELECTED, "parents": PARENTS},
        "before": {"index": np.arange(10).reshape(2, 5), "next_token": CHILDREN, "next_sibling": SIBLINGS},
        "launch": {"positions": positions},
        "metadata": {
            "custom_mask": np.concatenate([mask.reshape(-1) for mask in masks]).astype(np.uint8),
            "mask_indptr": np.array([0, 40, 70, 0]),
        },
    }
    seen = [
        RecordedArray(step=0, path=path, name=n, array=a) for path, named in recorded.items() for n, a in named.items()
    ]
    return Trace(ended=End(how=Termination.DONE), seen=tuple(seen))


def test_a_sound_tree_passes() -> None:
    assert judge(CASE, sound()).status is Status.PASS


def test_ancestors_of_a_parent_that_was_not_kept() -> None:
    """A tie can leave a child without its parent; the kernel then lets it see the root and itself."""
    tree = ancestors(parents_of(SETUP, np.array([0, 1, 4, 6]), PARENTS[0]))
    assert ["".join(map(str, row)) for row in tree.tolist()] == ["10000", "11000", "10100", "10110", "10001"]


def test_below_a_parent_that_was_not_kept_no_link_leads() -> None:
    assert reached([NONE, 0, NONE, 2, 3, 1]) == [NONE, 0, NONE, NONE, NONE, 1]
    assert reached([NONE, 0, 0, 1, 2]) == [NONE, 0, 0, 1, 2]


def flipped(place: int) -> Callable[[Array], Array]:
    def change(array: Array) -> Array:
        array.reshape(-1)[place] ^= 1
        return array

    return change


def added(place: int, more: int) -> Callable[[Array], Array]:
    def change(array: Array) -> Array:
        array.reshape(-1)[place] += more
        return array

    return change


@pytest.mark.parametrize(
    ("path", "name", "change", "where"),
    [
        ("metadata", "custom_mask", flipped(3 * 8 + 3 + 1), TREE),  # row 0 token 3 does not see its parent
        ("metadata", "custom_mask", flipped(40 + 4 * 6 + 1 + 3), TREE),  # row 1 token 4 sees its sibling
        ("metadata", "custom_mask", flipped(40), PREFIX),  # row 1's root does not see the prefix
        ("metadata", "mask_indptr", added(1, -1), STARTS),
        ("metadata", "mask_indptr", added(2, 5), STARTS),
        ("launch", "positions", added(4, -1), POSITIONS),
        ("launch", "positions", added(5, 1), POSITIONS),
        ("before", "next_token", added(6, -2), LINKS),  # row 1's token 1 has no child
        ("before", "next_sibling", added(1, 1), LINKS),  # row 0's token 3 is the root's
        ("before", "next_sibling", added(9, 4), LINKS),  # row 1's token 4 leads back to token 3
        ("before", "index", added(5, -5), INDEX),
    ],
)
def test_what_is_wrong_is_told(path: str, name: str, change: Callable[[Array], Array], where: str) -> None:
    verdict = judge(CASE, changed(sound(), 0, path, name, change))
    assert (verdict.status, verdict.where) == (Status.FAIL, where)


def test_a_mask_of_another_tree_is_told() -> None:
    other = changed(sound(), 0, "input", "scores_index", lambda array: array[::-1])
    assert judge(CASE, other).where in (TREE, POSITIONS)


def test_padding_is_not_judged() -> None:
    more = changed(sound(), 0, "metadata", "custom_mask", lambda array: np.append(array, [0, 0, 1]))
    assert judge(CASE, more).status is Status.PASS


@pytest.mark.parametrize(("path", "name"), [("metadata", "custom_mask"), ("input", "scores_index")])
def test_without_a_record_nothing_is_said(path: str, name: str) -> None:
    verdict = judge(CASE, changed(sound(), 0, path, name, lambda _: None))
    assert (verdict.status, verdict.oracle) == (Status.UNKNOWN, tree_mask.ORACLE)


def differences(whose: str, target: Target) -> object:
    """In a process of its own: this one stays without torch, and without a CUDA context for those that fork."""
    command = [str(interpreter(target)), str(SCRIPT), whose, "20"]
    ran = subprocess.run(
        command, env=worker_environment(target), capture_output=True, text=True, check=False, timeout=900
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.exhaustive
@pytest.mark.emulated("0.5.15.post1")
def test_the_stand_in_builds_the_trees_of_sglangs_own_triton_kernel() -> None:
    assert differences("triton", Target("0.5.15.post1", "emulated")) == {"built": 20, "differ": []}


@pytest.mark.emulated("0.5.13")
def test_the_stand_in_builds_what_fits_into_a_mask_that_ends_too_early() -> None:
    assert differences("short", Target("0.5.13", "emulated")) == {"built": 20, "differ": []}


@pytest.mark.cuda
def test_the_stand_in_builds_the_trees_of_sgl_kernel(cuda_target: Target) -> None:
    assert differences("sgl_kernel", cuda_target) == {"built": 20, "differ": []}
