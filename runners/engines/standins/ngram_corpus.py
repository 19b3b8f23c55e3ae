"""sglang's table of n-grams without TVM's FFI, which is absent without a GPU: its own C++ is compiled by g++ and called
through ctypes, so that texts go into the table and drafts come out of it as on a GPU."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from runners.recording.observer import Unsupported

# Of sglang's sources the one that binds the others to TVM's FFI, instead of which there are these functions. Since
# 0.5.17 the others are in namespace sglang.
_BINDING = "ngram_corpus_ffi.cpp"
_FUNCTIONS = """
#include "ngram.h"
#include <cstdio>
#include <cstring>
#include <exception>
namespace sglang {}
using namespace sglang;
using Lists = std::vector<std::vector<int32_t>>;

static Lists lists(const int32_t* tokens, const int64_t* ends, int64_t count) {
  Lists all(count);
  for (int64_t i = 0; i < count; ++i) all[i].assign(tokens + ends[i], tokens + ends[i + 1]);
  return all;
}

extern "C" {
void* corpus_made(const int64_t* sizes) {
  ngram::Param param{};
  param.enable = true;
  param.max_trie_depth = sizes[1];
  param.min_bfs_breadth = sizes[2];
  param.max_bfs_breadth = sizes[3];
  param.draft_token_num = sizes[4];
  param.match_type = sizes[5] ? "PROB" : "BFS";
  return new ngram::Ngram(sizes[0], param);
}
void corpus_gone(void* corpus) { delete static_cast<ngram::Ngram*>(corpus); }
void corpus_insert(void* corpus, const int32_t* tokens, const int64_t* ends, int64_t count) {
  static_cast<ngram::Ngram*>(corpus)->asyncInsert(lists(tokens, ends, count));
}
int corpus_match(void* corpus, const int64_t* states, const int32_t* tokens, const int64_t* ends,
                 const int64_t* lengths, int64_t count, int32_t* drafts, int64_t room, uint8_t* mask, int64_t bits) {
  try {
    auto found = static_cast<ngram::Ngram*>(corpus)->batchMatch(
        {states, states + count}, lists(tokens, ends, count), {lengths, lengths + count});
    if (int64_t(found.token.size()) > room || int64_t(found.mask.size()) > bits) return 1;
    std::memcpy(drafts, found.token.data(), found.token.size() * sizeof(int32_t));
    std::memcpy(mask, found.mask.data(), found.mask.size());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\\n", error.what());
    return 1;
  }
}
void corpus_erase(void* corpus, const int64_t* states, int64_t count) {
  static_cast<ngram::Ngram*>(corpus)->eraseMatchState({states, states + count});
}
void corpus_synchronize(void* corpus) { static_cast<ngram::Ngram*>(corpus)->synchronize(); }
void corpus_reset(void* corpus) { static_cast<ngram::Ngram*>(corpus)->reset(); }
}
"""
# Up to 0.5.16 a header takes size_t for granted.
_FLAGS = ("-std=c++20", "-O1", "-include", "cstddef", "-shared", "-fPIC", "-pthread")
# What says where such modules are kept that were compiled on this host.
_KEPT = "TVM_FFI_CACHE_DIR"


class Corpus:
    """Replaces tvm_ffi.Object, the base of sglang's class of the table. Tensors are on the host, as its own are."""

    __slots__ = ("__weakref__", "_native")
    library: Any = None

    def __ffi_init__(self, *sizes: int) -> None:
        """sizes: room in nodes, depth, least and most breadth, tokens of a tree, kind of match, and those of corpora
        from outside, of which there are none here."""
        values = (ctypes.c_int64 * len(sizes))(*sizes)
        self._native = ctypes.c_void_p(self.library.corpus_made(values))
        weakref.finalize(self, self.library.corpus_gone, self._native)

    def async_insert(self, tokens: torch.Tensor, ends: torch.Tensor) -> None:
        self.library.corpus_insert(self._native, _at(tokens), _at(ends), _count(ends.numel() - 1))

    def batch_match_stateful(
        self,
        states: torch.Tensor,
        tokens: torch.Tensor,
        ends: torch.Tensor,
        lengths: torch.Tensor,
        drafts: torch.Tensor,
        mask: torch.Tensor,
    ) -> None:
        inputs = (_at(states), _at(tokens), _at(ends), _at(lengths))
        results = (_at(drafts), _count(drafts.numel()), _at(mask), _count(mask.numel()))
        if self.library.corpus_match(self._native, *inputs, _count(ends.numel() - 1), *results):
            raise RuntimeError("the table of n-grams gives no drafts")

    def erase_match_state(self, states: torch.Tensor) -> None:
        self.library.corpus_erase(self._native, _at(states), _count(states.numel()))

    def synchronize(self) -> None:
        self.library.corpus_synchronize(self._native)

    def reset(self) -> None:
        """Wait for pending inserts, then empty the table: its thread would insert them before or after the reset."""
        self.synchronize()
        self.library.corpus_reset(self._native)


def bind(module: Any, sources: Path) -> None:
    """Have the Python module of sglang's class take its native part from here. sources: the folder of its C++."""

    def load_jit(*_: str, cpp_files: Sequence[str], **__: Any) -> Any:
        Corpus.library = _loaded(tuple(sources / name for name in cpp_files))
        return SimpleNamespace(register_once=lambda: None)

    module.load_jit = load_jit
    module.tvm_ffi = SimpleNamespace(Object=Corpus, register_object=lambda name: lambda kind: kind)


def _at(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _count(number: int) -> ctypes.c_int64:
    return ctypes.c_int64(number)


def _loaded(files: Sequence[Path]) -> Any:
    """The compiled corpus, which is kept under a name of all that it is made of. Unsupported."""
    sources = [file for file in files if file.name != _BINDING]
    whole = [*sources, *sorted(sources[0].parent.glob("*.h"))]
    key = hashlib.sha256("".join([_FUNCTIONS, *_FLAGS, *(file.read_text() for file in whole)]).encode()).hexdigest()
    folder = Path(os.environ.get(_KEPT) or tempfile.gettempdir())
    built = folder / f"ngram-corpus-{key[:16]}.so"
    if not built.exists():
        _build(sources, built)
    library = ctypes.CDLL(str(built))
    library.corpus_made.restype = ctypes.c_void_p
    return library


def _build(sources: Sequence[Path], built: Path) -> None:
    if shutil.which("g++") is None:
        raise Unsupported("g++, which compiles NGRAM's table, is not installed")
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        functions, made = Path(folder, "functions.cpp"), Path(folder, built.name)
        functions.write_text(_FUNCTIONS)
        command = ["g++", *_FLAGS, f"-I{sources[0].parent}", *map(str, sources), str(functions), "-o", str(made)]
        subprocess.run(command, check=True)
        made.replace(built)
