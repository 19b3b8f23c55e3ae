"""A real session in which the probes of sglang see what the test has planted: bad values are written into a probed
tensor just before its probe looks at it, and taken out again behind it.

EAGLEEYE_PLAN names a JSON file, read when a session opens. on: whether sglang's probes are. plant: the sites at which
to plant, as [module, line, kind]. What was probed, and where was planted, is told as facts; and, for which variable
alone, which probes fire when they are called directly.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from repro.cases.case import Case, Setup, Target
from runners.recording.observer import RunCase, Watch
from runners.sessions import open
from tests.builders.probe_sites import PROBES

VARIABLES = ("SGLANG_SPEC_NAN_DETECTION", "SGLANG_SPEC_OOB_DETECTION", "SGLANG_ENABLE_ASYNC_ASSERT")
HOME = "sglang.srt.utils.async_probe"  # from 0.5.13 on
Site = tuple[str, int, str]


class Planter:
    """Stands before every probe. probed: the sites that were passed with a tensor; planted: those of them at which
    something was planted and whose probe said nothing."""

    def __init__(self, plant: list[Site]) -> None:
        self.plant = set(plant)
        self.probed: set[Site] = set()
        self.planted: set[Site] = set()

    def patch(self) -> None:
        """In every module of sglang's that has them by name."""
        for name, module in list(sys.modules.items()):
            for probe in PROBES if name.startswith("sglang.") and module else ():
                original = vars(module).get(probe)
                if callable(original) and not hasattr(original, "stands_before"):
                    setattr(module, probe, self.before(original, PROBES[probe]))

    def before(self, original: Callable[..., None], kind: str) -> Callable[..., None]:
        def probe(tensor: torch.Tensor | None, *args: Any, **kwargs: Any) -> None:
            caller = sys._getframe(1)
            site = (str(caller.f_globals["__name__"]), caller.f_lineno, kind)
            kept = None
            if tensor is not None and tensor.numel():
                self.probed.add(site)
                if site in self.plant:
                    kept = tensor.clone()
                    tensor[(0,) * tensor.dim()] = bad(kind, args)
            original(tensor, *args, **kwargs)
            if tensor is not None and kept is not None:
                tensor.copy_(kept)
                self.planted.add(site)

        # So that it is known again; a function has no such attribute as far as mypy knows.
        probe.stands_before = original  # type: ignore[attr-defined]
        return probe


def bad(kind: str, args: tuple[Any, ...]) -> float:
    """A value that a probe of this kind, called with these arguments behind its tensor, must catch."""
    match kind:
        case "nan":
            return float("nan")
        case "inf":
            return float("inf")
        case "page_aligned":
            return 1
        case _:
            return int(args[1])  # the first index that is too high


def direct() -> dict[str, list[str]]:
    """Per variable, which of the probes fire on bad values when it alone is set; and "flag", if the server has one."""
    home = importlib.import_module(HOME if importlib.util.find_spec(HOME) else "sglang.srt.speculative.spec_utils")
    calls: dict[str, tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]] = {
        "nan": (torch.ones(3), torch.tensor([1.0, float("nan")]), ("here",)),
        "inf": (torch.ones(3), torch.tensor([1.0, float("inf")]), ("here",)),
        "oob": (torch.arange(3), torch.tensor([0, 3]), (0, 3, "here")),
        "page_aligned": (torch.arange(3) * 4, torch.tensor([4, 6]), (4, "here")),
    }
    names: dict[str, list[str]] = {}
    for variable in ("", *VARIABLES):
        os.environ |= {name: "1" if name == variable else "0" for name in VARIABLES}
        fired = []
        for probe, kind in PROBES.items():
            good, wrong, args = calls[kind]
            if not hasattr(home, probe):
                continue
            getattr(home, probe)(good, *args)
            try:
                getattr(home, probe)(wrong, *args)
            except RuntimeError as error:
                assert "here" in str(error), error
                fired.append(kind)
        names[variable] = fired
    server_args = importlib.import_module("sglang.srt.server_args").ServerArgs
    names["flag"] = [field.name for field in fields(server_args) if field.name == "enable_nan_detection"]
    return names


def open_session(setup: Setup, target: Target, watch: Watch) -> RunCase:
    plan = json.loads(Path(os.environ["EAGLEEYE_PLAN"]).read_text())
    watch.fact("direct", json.dumps(direct()))
    os.environ |= dict.fromkeys(VARIABLES, "1" if plan["on"] else "0")
    watch.fact("probes", "on" if plan["on"] else "off")
    planter = Planter([(module, line, kind) for module, line, kind in plan["plant"]])
    planter.patch()
    run = open.open_session(setup, target, watch)
    planter.patch()  # what the session has imported since

    def run_case(case: Case, watch: Watch) -> None:
        try:
            run(case, watch)
        finally:
            watch.fact("probed", json.dumps(sorted(planter.probed)))
            watch.fact("planted", json.dumps(sorted(planter.planted)))

    return run_case
