"""Tensor contents from one small integer, for ever the same on every machine and library version.

The source is splitmix64 (Steele, Lea, Flood 2014) over counters, in wrapping 64-bit arithmetic.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
NOISE_SIZE = 1 << 20
Words = npt.NDArray[np.uint64]

_WORD = (1 << 64) - 1
_FEW = 4096
_STEP = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def words(data: int, name: str, count: int) -> Words:
    """`count` 64-bit words that depend on `data` and on the tensor's name."""
    return _mixed(_multiples(count) + np.uint64(_state(data, name)))


def _words_each(data: Sequence[int], name: str, count: int) -> Words:
    """The same for each: [len(data), count]."""
    states = np.array([_state(number, name) for number in data], dtype=np.uint64)
    return _mixed(_multiples(count) + states[:, None])


def _mixed(x: Words) -> Words:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX[0])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX[1])
    return np.asarray(x ^ (x >> np.uint64(31)))


def _first_word(data: int, name: str) -> int:
    """words(data, name, 1)[0], by a way that is shorter for one."""
    x = (_state(data, name) + _STEP) & _WORD
    x = ((x ^ (x >> 30)) * _MIX[0]) & _WORD
    x = ((x ^ (x >> 27)) * _MIX[1]) & _WORD
    return x ^ (x >> 31)


def _state(data: int, name: str) -> int:
    return (((data << 32) ^ zlib.crc32(name.encode())) * 0xD1342543DE82EF95) & _WORD


def _multiples(count: int) -> Words:
    return _few_multiples()[:count] if count <= _FEW else _many_multiples(count)


@functools.cache
def _few_multiples() -> Words:
    return _many_multiples(_FEW)


def _many_multiples(count: int) -> Words:
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP)


def floats(data: int, name: str, shape: tuple[int, ...]) -> Floats:
    """float32 values in [-1, 1), exact multiples of 2**-23."""
    return _as_floats(words(data, name, math.prod(shape))).reshape(shape)


def floats_each(data: Sequence[int], name: str, shape: tuple[int, ...]) -> Floats:
    """floats() of each: [len(data), *shape]."""
    return _as_floats(_words_each(data, name, math.prod(shape))).reshape(len(data), *shape)


def _as_floats(words: Words) -> Floats:
    # 24 bits: every step of this is exact in float32.
    top = (words >> np.uint64(40)).astype(np.float32)
    return (top - np.float32(2**23)) * np.float32(2.0**-23)


def noise() -> Floats:
    """NOISE_SIZE values in [-1, 1): from them large contents are cut as windows, which costs no more than a copy."""
    return floats(0, "noise", (NOISE_SIZE,))


def window(data: int, name: str) -> int:
    """The index in noise() at which the contents of this name begin; past its end they go on at its beginning."""
    return _first_word(data, name) % NOISE_SIZE


def integers(data: int, name: str, shape: tuple[int, ...], high: int) -> Ints:
    """int64 values in [0, high)."""
    return (words(data, name, math.prod(shape)) % np.uint64(high)).astype(np.int64).reshape(shape)


def integers_each(data: Sequence[int], name: str, shape: tuple[int, ...], high: int) -> Ints:
    """integers() of each: [len(data), *shape]."""
    words = _words_each(data, name, math.prod(shape)) % np.uint64(high)
    return words.astype(np.int64).reshape(len(data), *shape)


def shuffled(data: int, name: str, count: int) -> Ints:
    """A permutation of 0..count-1."""
    return np.argsort(words(data, name, count), kind="stable").astype(np.int64)
