"""Code that asks for "cuda" by that name gets the CPU, whichever of torch's functions it asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from runners.engines.cuda_to_cpu import replacements

pytestmark = pytest.mark.emulated

# What takes a device and makes no tensor there, or is not called but by torch itself.
_NOT_ASKED = {"Generator", "is_pinned", "pin_memory"}


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for owner, name, function in list(replacements()):
        monkeypatch.setattr(owner, name, function)
    yield


@pytest.mark.usefixtures("replaced")
def test_a_literal_cuda_is_the_cpu() -> None:
    for made in (
        torch.zeros(2, device="cuda"),
        torch.empty(2, device=torch.device("cuda", 0)),
        torch.tensor([1], device="cuda:1"),
        torch.ones(1).to("cuda"),
        torch.ones(1).to("cuda", torch.int32),
        torch.ones(1).to(device="cuda", dtype=torch.int32),
        torch.empty_like(torch.ones(1), device="cuda"),
        torch.ones(1).new_zeros(3, device="cuda"),
        torch.ones(1).cuda(),
        torch.nn.Linear(2, 2, device="cuda").cuda().to("cuda").weight,
    ):
        assert made.device.type == "cpu"
    with torch.device("cuda"):
        assert torch.zeros(1).device.type == "cpu"
    assert torch.zeros(1, device="meta").device.type == "meta"
    assert torch.ones(1).to(torch.int32, copy=True).dtype == torch.int32


def test_whatever_takes_a_device_is_replaced() -> None:
    """Operators' schemas say what takes a device, and so do Python's functions of that name."""
    names = {(owner, name) for owner, name, _ in replacements()}
    schemas = torch._C._jit_get_all_schemas()
    taking = {schema.name for schema in schemas if any(argument.name == "device" for argument in schema.arguments)}
    public = {name.removeprefix("aten::") for name in taking if name.startswith("aten::")} - _NOT_ASKED
    visible = {name for name in public if not name.startswith("_")}
    factories = {name for name in visible if hasattr(torch, name)}
    methods = {name for name in visible if hasattr(torch.Tensor, name) and not hasattr(torch, name)}
    assert len(factories) > 30 and {"new_zeros", "to"} <= methods
    assert {name for name in factories if (torch, name) not in names} == set()
    assert {name for name in methods if (torch.Tensor, name) not in names} == set()
