"""Products whose rows do not depend on how many there are, in place of sglang's batch-invariant Triton kernels: in
float32 PyTorch sums one, two or three rows on a CPU in another order than four."""

from __future__ import annotations

import torch

# The registration, which lasts as long as the process.
_REGISTERED: list[torch.library.Library] = []


def by_row(*_: object, **__: object) -> None:
    """Have PyTorch make products so from here on."""
    if _REGISTERED:
        return
    library = torch.library.Library("aten", "IMPL")
    _REGISTERED.append(library)
    library.impl("mm", product, "CPU")
    library.impl("mm.out", product_into, "CPU")
    library.impl("addmm", product_added, "CPU")
    library.impl("bmm", products, "CPU")


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The same product of one row, as many times as there are rows."""
    if left.dtype != right.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {left.dtype} != {right.dtype}")
    nothing = left.new_zeros(())
    return torch.baddbmm(nothing, left[:, None], right.expand(len(left), -1, -1), beta=0)[:, 0]


def product_into(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(product(left, right))


def product_added(
    added: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    return beta * added + alpha * product(left, right)


def products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    if not len(left):
        return left.new_zeros((0, left.shape[1], right.shape[2]))
    return torch.stack([product(each, other) for each, other in zip(left, right, strict=True)])
