"""Tensors of a GPU that was not started: of plain type, with a shape and strides, and no memory.

For what asks for no more than that: a tracer, whose result then holds for real ones.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from unittest.mock import patch

import torch

# Makes a tensor of this shape and dtype.
Unbacked = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
# DLPack's: https://dmlc.github.io/dlpack/latest/c_api.html
_CUDA = 2
_CODES = {torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16), torch.int64: (0, 64)}
# It lies in no memory; null would be an empty tensor's.
_NOWHERE = 1 << 46


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int),
        ("device_id", ctypes.c_int),
        ("dimensions", ctypes.c_int),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        # Who made it, and what is called when it is no longer needed.
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_made: list[_Tensor] = []  # PyTorch looks at them again when it lets go of a tensor


def unbacked(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor on the first GPU. KeyError if the dtype is none of those that are known here."""
    code, bits = _CODES[dtype]
    count = len(shape)
    strides = list(itertools.accumulate(reversed(shape[1:]), int.__mul__, initial=1))[::-1]
    lengths = ctypes.c_int64 * count
    tensor = _Tensor(
        data=_NOWHERE,
        device_type=_CUDA,
        dimensions=count,
        code=code,
        bits=bits,
        lanes=1,
        shape=lengths(*shape),
        strides=lengths(*strides),
    )
    _made.append(tensor)
    with patch.multiple(torch.cuda, init=_not_started, _lazy_init=_not_started):
        return torch._C._from_dlpack(_capsule(ctypes.addressof(tensor), b"dltensor", None))


def _not_started() -> None:
    """Instead of starting the device."""
