"""Errors of a GPU by the words of its driver, and which of them say that a kernel has failed."""

from __future__ import annotations

import re

# What torch (and kernels that borrow its wording) and Triton's launcher say of a failed call. The reason ends
# where it turns into advice, an error number or a place.
_CUDA = re.compile(r"(?:CUDA error|Triton Error \[CUDA\]): ([^\n.(]+)", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(r"CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation")
# After these a process can make no further call: each says the same again, whatever it is for.
_FAULT = re.compile(
    r"illegal memory access|misaligned address|device-side assert|illegal instruction|invalid program counter"
    r"|operation not supported on global/shared address space|unspecified launch failure|launch timed out"
    r"|hardware stack error|CUBLAS_STATUS_EXECUTION_FAILED",
    re.IGNORECASE,
)


def cuda_error(text: str) -> str:
    """The CUDA error that a text speaks of, as "CUDA error: an illegal memory access"; empty if of none."""
    if _OUT_OF_MEMORY.search(text):
        return "CUDA error: out of memory"
    match = _CUDA.search(text)
    return _named(match[1]) if match else ""


def device_fault(text: str) -> str:
    """The CUDA error by which a kernel has failed, named as by cuda_error; empty if the text speaks of none. Memory
    that is used up and a call with wrong arguments are none: the host hears of these at once, by the call itself."""
    return next((_named(match[1]) for match in _CUDA.finditer(text) if _FAULT.search(match[1])), "")


def fault_in(error: BaseException) -> BaseException | None:
    """The device fault that an exception is, or that it was raised for or after; else None."""
    faults, waiting, seen = [], [error], set[int]()
    while waiting:
        inner = waiting.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        if device_fault(str(inner)):
            faults.append(inner)
        waiting += [raised for raised in (inner.__cause__, inner.__context__) if raised is not None]
    return faults[-1] if faults else None


def _named(reason: str) -> str:
    return "CUDA error: " + " ".join(reason.replace(" was encountered", "").split())[:80]
