"""A Llama with the MTP layers of MiMo-V2-Flash, each of which drafts one token (enable_multi_layer_eagle)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from repro.cases.case import Setup
from repro.cases.options import OPTION
from runners.releases import model

# One KV pool of the usual kind instead of one with a sliding window.
ARGUMENTS = {"enable_multi_layer_eagle": True, "disable_hybrid_swa_memory": True}
# Before, every layer goes over one token more than the one before it, and a pool has earlier tokens' hidden states.
SERVED_SINCE = "0.5.15"


def configs(setup: Setup) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The configurations of target and layers, which only look at the configuration's attributes; with attention over
    the whole context instead of their sliding window."""
    draft = model.llama(setup, "MiMoV2MTP") | {
        "layernorm_epsilon": 1e-5,
        "swa_num_attention_heads": setup.num_heads,
        "swa_num_key_value_heads": setup.num_kv_heads,
        "swa_head_dim": setup.head_dim,
        "swa_v_head_dim": setup.head_dim,
        "v_head_dim": setup.head_dim,
        "sliding_window_size": -1,
        "sliding_window": None,
        "attention_bias": False,
        "num_nextn_predict_layers": setup.num_steps,
    }
    return model.llama(setup), draft


def arguments(setup: Setup) -> dict[str, Any]:
    """The arguments of a server that serves them."""
    os.environ[OPTION["one_graph"].name] = str(int(setup.one_graph))
    return dict(ARGUMENTS)
