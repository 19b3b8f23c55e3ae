"""A model that sglang cannot import is an error of the environment, and no other model is served in its place."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from repro.cases.case import Case, Request, Setup, Step, Target
from repro.cases.families import GLM
from repro.cases.release_list import NEWEST
from repro.traces.trace import Termination
from runners.processes.pool import Pool
from runners.recording.observer import HarnessError
from runners.releases import own_models
from runners.releases.refusals import refused

SETUP = Setup(
    runner="decode", topk=1, num_steps=1, num_draft_tokens=1, capture_bs=(1,), slots=2, context_len=32, family=GLM
)


def test_the_reason_is_the_error_of_the_models_own_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name, text in (("__init__", ""), ("glm", "import cutlass\n\nclass Glm4MoeForCausalLM:\n    pass\n")):
        (tmp_path / "models" / f"{name}.py").write_text(text)
    loader = ModuleType("sglang.srt.model_loader.utils")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, loader.__name__, loader)
    monkeypatch.setattr(own_models, "_MODELS", "models")
    own_models.require()
    with pytest.raises(
        HarnessError, match="Glm4MoeForCausalLM: ModuleNotFoundError: No module named 'cutlass'"
    ) as lack:
        loader.resolve_transformers_arch(SimpleNamespace(), ["Glm4MoeForCausalLM"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert refused(SETUP, lack.value) == f"cutlass is not installed: {lack.value}"
    assert refused(replace(SETUP, family=""), lack.value) == ""


@pytest.mark.exhaustive
@pytest.mark.emulated(NEWEST)
def test_no_other_model_is_served() -> None:
    case = Case(setup=SETUP, steps=(Step(requests=(Request(slot=1, seq_len=5, data=1),)),))
    with Pool(Target(NEWEST, "emulated"), variables={"SGLANG_DISABLED_MODEL_ARCHS": "glm4_moe"}) as pool:
        ended = pool.run(case).ended
    assert ended.how is Termination.ERROR
    assert "Glm4MoeForCausalLM: its module is not in sglang's registry" in ended.detail
