"""Differences in how a batch is laid out and a graph is launched, chosen by what this sglang has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.speculative.eagle_info import EagleVerifyInput

from runners.recording.observer import Refused

# What a batch carried of its model runner up to 0.5.12.
_CARRIED = ("req_to_token_pool", "token_to_kv_pool", "attn_backend")


def forward_batch(model_runner: Any, fields: Mapping[str, Any]) -> Any:
    """A ForwardBatch of these fields, for this model runner; since 0.5.22 with a plan of which KV slots it reads and
    writes, as init_new makes one."""
    carried = {name: getattr(model_runner, name) for name in _CARRIED if name in ForwardBatch.__dataclass_fields__}
    batch = ForwardBatch(**fields, **carried)
    if "kv_loc_plan" in ForwardBatch.__dataclass_fields__:
        translator = model_runner.kv_index_translator
        translator.own_plan(batch).bind(batch, translator)
    return batch


def plan(backend: Any, batch: Any) -> None:
    """Make attention's metadata for this batch; since 0.5.13 a batch is marked as one that has it."""
    backend.init_forward_metadata(batch)
    if hasattr(batch, "mark_forward_metadata_ready"):
        batch.mark_forward_metadata_ready()


def forward_planned(model_runner: Any, batch: Any) -> Any:
    """The logits output of an eager pass over metadata that is made first; that of an idle batch sglang makes itself,
    once MLP synchronisation has padded it (forward_idle)."""
    if batch.forward_mode.is_idle():
        return model_runner.forward(batch).logits_output
    plan(model_runner.attn_backend, batch)
    options = {} if hasattr(batch, "mark_forward_metadata_ready") else {"skip_attn_backend_init": True}
    return model_runner.forward(batch, **options).logits_output


def accept(runner: Any, batch: Any) -> None:
    """Refused where the runner has no graph for this batch. The question was another up to 0.5.13."""
    question = "can_run_graph" if hasattr(runner, "can_run_graph") else "can_run"
    if not getattr(runner, question)(batch):
        raise Refused(f"{question} refused a batch of {batch.batch_size}")


def launch(runner: Any, batch: Any, *more: Any, **named: Any) -> Any:
    """Replay the graph that fits this batch: execute, and up to 0.5.13 replay."""
    return (runner.execute if hasattr(runner, "execute") else runner.replay)(batch, *more, **named)


def replayed(runner: Any, batch: Any, *more: Any) -> Any:
    """Ask, then replay."""
    accept(runner, batch)
    return launch(runner, batch, *more)


def verify_spelling() -> str:
    """The beginning of the names of a verify input's fields that lead through the tree: misspelt in 0.5.10.post1."""
    return "retrieve" if "retrieve_index" in EagleVerifyInput.__dataclass_fields__ else "retrive"
