"""Stand-ins for sglang's objects in a runner's session, and the objects that are real: for the trace's facts.

The engine's own stand-ins (graphs, native code) are another matter: docs/engines.md.
"""

from __future__ import annotations

_GRAPH = (
    "real: ServerArgs, target and draft worker, model runner, model, pools, attention backend, graph runner, "
    "ForwardBatch; by hand: the fields of the batch, when the runner captures, the output that graphs share"
)
_VERIFIED = (
    "real: ServerArgs, target worker, the worker that verifies, model runner, model, pools, attention backend, "
    "ForwardBatch, verify's input; by hand: the batch, of sglang's class and with its defaults, its requests, and a "
    "group of two ranks of which only this one is there; "
)
STOOD_IN = {
    "kv_move": "real: the KV cache, the request table and the functions that move rows; by hand: allocation, the "
    "batch, and of a worker the pools alone",
    "round": "real: ServerArgs, scheduler, event loop, workers, model runners, models, pools, tree cache, attention "
    "backends, graphs, batches; by hand: sockets, the receiver of requests, weights",
    "verify_eager": f"{_VERIFIED}not reached: sampling",
    "verify_eager_tree": f"{_VERIFIED}not reached: sampling",
    "verify_eager_multi_layer": f"{_VERIFIED}its draft worker has one layer; not reached: sampling",
}


def stood_in(runner: str) -> str:
    """In words."""
    return STOOD_IN.get(runner, _GRAPH)
