"""The contents of a bundle for GPU hosts without a package index: wheels, by version, and their parts that stay out."""

from __future__ import annotations

# What such a host has of its own: an x86-64 Linux, this Python, and PyTorch 2.11 for CUDA 13 with its Triton.
PYTHON = "3.12"
PLATFORMS = tuple(
    f"{tag}_x86_64"
    for tag in (
        *(f"manylinux_2_{minor}" for minor in (34, 31, 28, 27, 26, 24, 17)),
        *("manylinux2014", "manylinux_2_12", "manylinux2010", "manylinux_2_5", "manylinux1"),
    )
)

# The parts on which results depend. They are those of sglang 0.5.13; the other releases import over them too.
SGLANG_KERNEL = "0.4.3"
FLASHINFER = "0.6.12"
TRANSFORMERS = "5.8.1"

# What the parent process imports and must have of this very version, the one of requirements/emulated.txt: cases are
# drawn by Hypothesis. First itself, then what it needs.
PARENT = ("hypothesis==6.170.15", "sortedcontainers==2.4.0")

# What importing sglang's runners needs and an image made for PyTorch lacks, read off by importing them there.
BASE = (
    f"sglang-kernel=={SGLANG_KERNEL}",
    f"flashinfer-python=={FLASHINFER}",
    f"transformers=={TRANSFORMERS}",
    "annotated-types==0.8.0",
    "apache-tvm-ffi==0.1.9",
    "asttokens==3.0.2",
    "blobfile==3.3.0",
    "compressed-tensors==0.20.0",
    "cuda-tile==1.7.0",
    "decorator==5.3.1",
    "dill==0.4.1",
    "distro==1.9.0",
    "einops==0.8.2",
    "executing==2.3.0",
    "fastapi==0.165.0",
    "gguf==0.19.0",
    "interegular==0.3.3",
    "ipython==9.18.1",
    "ipython-pygments-lexers==1.1.1",
    "jiter==0.19.0",
    "jsonschema==4.26.0",
    "jsonschema-specifications==2025.9.1",
    "kernels==0.14.1",
    "kernels-data==0.16.2",
    "loguru==0.7.3",
    "matplotlib-inline==0.2.2",
    "msgspec==0.22.0",
    "openai==2.6.1",
    "opentelemetry-api==1.45.2",
    "orjson==3.13.0",
    "parso==0.8.7",
    "partial-json-parser==0.2.1.1.post7",
    "pexpect==4.9.0",
    "prompt-toolkit==3.0.53",
    "ptyprocess==0.7.0",
    "pure-eval==0.2.4",
    "pybase64==1.5.1",
    "pydantic==2.14.3",
    "pydantic-core==2.50.4",
    "python-multipart==0.0.34",
    "pyzmq==27.3.0",
    "quack-kernels==0.6.5",
    "referencing==0.37.0",
    "rpds-py==2026.9.1",
    "setproctitle==1.3.8",
    "sniffio==1.3.1",
    "stack-data==0.6.3",
    "starlette==1.10.0",
    "tokenizers==0.22.2",
    "torch-memory-saver==0.0.10",
    "torchao==0.17.0",
    "traitlets==5.16.1",
    "typing-inspection==0.4.5",
    "uvicorn==0.54.0",
    "watchfiles==1.3.0",
    "wcwidth==0.9.4",
)

# Of what newer releases want in front (runners/targets/packages.py), what the base brings besides its own: they lie in
# a folder each, so that other releases do not see them. The base's own apache-tvm-ffi serves all releases.
IN_FRONT = ("transformers==5.19.0", "tokenizers==0.23.2")
# What it brings besides on demand: draft_extend, rounds and verify's opt-in host plan over flashinfer need it from
# 0.5.18 on. 11 MB more. A prefill's kernels compile for SM90 from what is left of its sources.
NEWER_FLASHINFER = ("flashinfer-python==0.7.2", "apache-tvm-ffi==0.1.11")

# From this release on CUTLASS's Python, which stays out, is stood in for (cutlass_standin.py): DeepSeek's and GLM's
# modules import it, and 0.5.23 does not start without.
CUTLASS_SINCE = "0.5.15"

# Paths inside wheels that stay out, by distribution or pin.
LEFT_OUT = {
    # flash_ops is FlashAttention 3, 1 GB: only on demand, and cut down (flash_ops.py). sm100 is another GPU's build.
    # What lies beside sgl_kernel is for several GPUs or mixtures of experts.
    "sglang-kernel": (
        *("sgl_kernel/sm100/*", "sgl_kernel/flash_ops*", "sgl_kernel/flashmla_ops*"),
        *("_mscclpp*", "include/*", "lib/*", "lib64/*", "triton_kernels/*"),
    ),
    # Sources of kernels that no runner compiles: of experts, of linear attention, of other architectures; examples.
    NEWER_FLASHINFER[0]: (
        *(f"flashinfer/data/csrc/{part}*" for part in ("cake_", "kda/", "gdn/", "fused_moe/", "experimental/")),
        *(f"flashinfer/data/cutlass/{part}/*" for part in ("python", "test", "examples", "media", "docs")),
        *(f"flashinfer/data/cccl/{part}/*" for part in ("python", "benchmarks", "docs", "test", "examples", "c")),
        *("flashinfer/data/csrc/blackwell_*", "flashinfer/experimental/*.cu", "flashinfer/moe_ep/*.cu"),
        "flashinfer/fused_moe/backends/*.json",
    ),
    # The sources that modeling_*.py are made from, which nothing imports.
    "transformers": ("transformers/models/*/modular_*.py",),
    # Image and video models, and servers and clients in Rust (7 to 42 MB), loaded on demand.
    "sglang": ("sglang/multimodal_gen/*", "sglang/srt/grpc/_core*", "sglang/srt/rust_extensions/*.so"),
}
