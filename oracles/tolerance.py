"""The only module with a number for "close": the distance that two results of the same computation may have."""

from __future__ import annotations

# NVIDIA's tensor cores, by which Triton's kernels make attention's products (`tl.dot`), take a float32 for a number of
# this type: the first ten bits behind the point, as many as float16 has.
TENSOR_FLOAT_32 = "tf32"
# The distance from 1.0 to the next value of each type in which sglang keeps its KV cache, and of that one.
EPSILON = {
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "fp8_e4m3": 2.0**-3,
    "fp8_e5m2": 2.0**-2,
    TENSOR_FLOAT_32: 2.0**-10,
}

# The noise is measured on three other runs of the eager path. It is a maximum over few samples, so the graph
# may exceed it somewhat and still be one more sample of the same noise.
NOISE_FACTOR = 4.0

# Two kernels that add in another order differ in the last bits even where the measured runs happen to agree.
ULPS = 4.0

# What one rounding in the hidden states can grow to in a few draft steps. A larger change is not rounding: some
# choice inside the draft flipped, of which the outputs show nothing.
NOISE_ULPS_MAX = 64.0


def multiplied(dtype: str, engine: str) -> str:
    """The type as which a kernel takes values of this one that it multiplies."""
    return TENSOR_FLOAT_32 if (dtype, engine) == ("float32", "cuda") else dtype


def is_promised(deterministic: bool, engine: str) -> bool:
    """True if a value has the same bits whatever shares its batch: sglang promises that of deterministic inference. On
    a GPU it was not measured."""
    return deterministic and engine == "emulated"


def ulp(scale: float, dtype: str) -> float:
    """The spacing of the type's values at this magnitude."""
    return EPSILON[dtype] * scale


def limit(noise: float, scale: float, dtype: str) -> float:
    """The distance that graph and eager may have, given the measured noise and the largest compared magnitude."""
    return NOISE_FACTOR * noise + ULPS * ulp(scale, dtype)


def is_rounding(noise: float, scale: float, dtype: str) -> bool:
    """True if the measured noise can be rounding."""
    return noise <= NOISE_ULPS_MAX * ulp(scale, dtype)


def of_rounds(scale: float, dtype: str, kv_dtype: str) -> float:
    """The distance of a value in two passes over the same tokens, given the largest. Of keys and values of eight bits
    an entry may turn out the next one of its type."""
    return ulp(scale, kv_dtype) if kv_dtype else NOISE_ULPS_MAX * ulp(scale, dtype)


# Two engines compute the same with other kernels on other hardware: each operation of the draft model rounds in its
# own way, and a draft has some tens of them. Halves are rounded once an operation, sums of float32 many times.
ENGINE_ULPS = {"float32": 64.0, "float16": 16.0, "bfloat16": 16.0}


def across_engines(noise: float, scale: float, dtype: str) -> float:
    """The distance that two engines may have, given the noise measured on eager of either, and the largest compared
    magnitude."""
    return NOISE_FACTOR * noise + ENGINE_ULPS[dtype] * ulp(scale, dtype)
