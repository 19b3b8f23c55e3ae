"""Weights of target and draft with which texts depend on the whole prefix, and drafts agree as often as is wanted."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.model_executor.model_runner import ModelRunner
from torch.nn.functional import pad

from repro.cases.case import Setup
from repro.cases.families import GDN, GEMMA, GPT_OSS, QWEN35, V4, family_facts, is_latent
from repro.cases.runner_facts import FROM_TABLE, IN_BLOCKS
from repro.cases.sharing import share_of, sharers_of
from runners.releases.adapters.round import dsv4_weights, gemma4_weights
from runners.releases.adapters.round.mixing import evenly, mixing
from runners.releases.options import nan_logits
from runners.releases.options.algorithms import hot_tokens
from runners.releases.options.blocks import mask_token
from runners.releases.workers.checkpoint import complete

# How much scores and attention's output weigh: enough that a wrong row of a prefix changes logits, and the text soon.
_SCORES, _OUTPUT = 1.4, 2.0
# No draft has layers behind its first, and EAGLE3's neither the embedding beside its attention nor half of the tokens:
# their targets are such that this matters little, else no draft would be accepted.
_LITTLE, _UNKNOWN = 0.05, 0.5
# How much a layer with a state adds, which no draft has: the text hangs on states, and drafts are accepted.
_OF_STATES = 0.5
# The layer of the target that is the draft's, where that is not the first; and the logarithm of how fast states decay,
# by some 6 % a token.
_DRAFTS = {GDN: 1, QWEN35: 1}
_LOG_DECAY = -3.0
# How many tokens a target prefers whose texts repeat themselves, and what others weigh.
_OFTEN, _SELDOM = 16, 0.3
# The norms of a block draft's heads, and the sizes of what they norm: of queries and of keys.
_NORMS, _SIZES = ("q_norm.weight", "k_norm.weight"), (1.0, _SCORES)
# The scores by which the token before chooses, in a Markov head.
_MARKOV = "markov_w2.weight"
Parameters = Mapping[str, torch.Tensor]


@contextmanager
def loading(setup: Setup, device: str) -> Iterator[None]:
    """While entered, models that are loaded get these weights: the target, which comes first, and drafts of it, layer
    by layer where they are models of their own."""
    loads, loaded = ModelRunner.load_model, list[Any]()

    def load(self: Any, *args: Any, **kwargs: Any) -> None:
        loads(self, *args, **kwargs)
        loaded.append(self.model)
        fill_last(loaded, setup, device)

    ModelRunner.load_model = load
    try:
        yield
    finally:
        ModelRunner.load_model = loads


def fill_last(models: Sequence[Any], setup: Setup, device: str) -> None:
    """Give weights to the last of these networks: a target, or the draft that was loaded behind those before it."""
    target, network, share = models[0], models[-1], share_of(setup)
    if len(models) > 1:
        fill_draft(target, network, setup, len(models) - 2)
        nan_logits.fill_draft(network, share)
    else:
        fill_target(target, setup)
        nan_logits.fill_target(target, share)
    complete(setup, device, network)


def fill_target(target: torch.nn.Module, setup: Setup) -> None:
    if setup.family == GEMMA:
        gemma4_weights.fill_target(target)
        return
    if setup.family == V4:
        dsv4_weights.fill_target(target)
        return
    config, share = _shared(getattr(target.config, "text_config", target.config), setup), share_of(setup)
    zero_centred, drafts = _zero_centred(target), _drafts(setup)
    for name, parameter in _read(target).items():
        values = _of_target(name, parameter, config)
        if setup.family == GPT_OSS:
            values = _of_experts(name, values)
        if name in zero_centred or (name.endswith("qkv_proj.bias") and family_facts(setup).sees):  # its draft has none
            values = torch.zeros_like(values)
        if _is_besides(name, drafts):
            values = values * _LITTLE
        if setup.algorithm == "EAGLE3":
            values = _nearly_draft(name, values, hot_tokens(share))
        if setup.algorithm in FROM_TABLE:
            values = _repeating(name, values, setup.disagreement / 100)
        if setup.algorithm in IN_BLOCKS:
            values = _blind(name, values, config, drafts)
        parameter.data.copy_(values)


def fill_draft(target: torch.nn.Module, draft: Any, setup: Setup, number: int = 0) -> None:
    """The draft is the target's first layer. It is given the token and, times the disagreement, a random image of the
    hidden states: at 0 it mostly drafts what the target says, and a wrong hidden state never changes the text. number:
    of several such layers, each of which has an image of its own."""
    if setup.family == GEMMA:
        gemma4_weights.fill_draft(target, draft, setup)
        return
    if setup.family == V4:
        dsv4_weights.fill_draft(target, draft, setup)
        return
    sources = _read(target)
    disagreement = setup.disagreement / 100
    if setup.algorithm == "EAGLE3":
        hot, head = torch.from_numpy(hot_tokens(share_of(setup))), sources["lm_head.weight"]
        # A checkpoint has it among its weights.
        draft.hot_token_id = torch.from_numpy(hot_tokens(setup)).to(head.device)
        rows = draft.lm_head.weight.shape[0]  # of a vocabulary that is padded
        sources["lm_head.weight"] = pad(head[hot], (0, 0, 0, rows - len(hot)))
    zero_centred, drafts = _zero_centred(draft), _drafts(setup)
    if setup.family == GDN and setup.algorithm in IN_BLOCKS:
        sources = _as_plain(target, draft, drafts)
    if is_latent(setup) and setup.algorithm in IN_BLOCKS:
        sources = {}  # no draft of blocks has latent attention: it is like nothing of its target
    for name, parameter in draft.named_parameters():
        if name in zero_centred:
            parameter.data.zero_()
            continue
        if name == "lm_head.weight" and len(parameter) < len(sources.get(name, parameter)):
            continue  # a rank's share of a head, whose place the target's whole one takes
        its = f"{number}.{name}" if number else name.replace("layers.0.", drafts)
        values = _of_draft(its, parameter, sources, disagreement * (_LITTLE if setup.algorithm in IN_BLOCKS else 1.0))
        if setup.family == GPT_OSS and name.endswith("down_proj.weight"):
            values = torch.zeros_like(values)
        if name.endswith(_NORMS) and setup.algorithm in IN_BLOCKS:  # the target has none
            values = values * _SIZES[name.endswith(_NORMS[1])]
        if name.endswith(_MARKOV):
            values = values * (_LITTLE + disagreement)
        if setup.algorithm == "STANDALONE" and "embed" in name:  # nothing else is joined to the token
            values = values + disagreement * mixing(name, tuple(values.shape)).to(values)
        parameter.data.copy_(values)


def _shared(config: Any, setup: Setup) -> Any:
    """The configuration of a model that is as large as this rank's share of one."""
    ranks, share = sharers_of(setup), copy.copy(config)
    if ranks > 1:
        share.num_attention_heads = config.num_attention_heads // ranks
        share.num_key_value_heads = -(-config.num_key_value_heads // ranks)
        share.vocab_size = config.vocab_size // ranks
    return share


def _read(target: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters of a target but those of its vision tower, which never runs."""
    return {name: parameter for name, parameter in target.named_parameters() if not name.startswith("visual.")}


def _drafts(setup: Setup) -> str:
    """The layer of the target that is the draft's, as in names. A block's first feature is what that layer is given."""
    return f"layers.{int(setup.algorithm in IN_BLOCKS) or _DRAFTS.get(setup.family, 0)}."


def _of_draft(name: str, parameter: torch.Tensor, sources: Parameters, disagreement: float) -> torch.Tensor:
    if name.endswith("fc.bias"):
        return torch.zeros_like(parameter)
    if name.endswith(("fc.weight", "eh_proj.weight")):
        return _joining(name, parameter, disagreement)
    source = sources.get(_same(name, sources))
    if name.endswith("w2_weight") and (source is None or source.shape != parameter.shape):
        return torch.zeros_like(parameter)
    if source is None:
        return torch.ones_like(parameter) if parameter.dim() < 2 else mixing(name, tuple(parameter.shape))
    values = source.data
    if values.shape != parameter.shape:  # EAGLE3's attention is over the token and the hidden states side by side
        values = torch.cat((values, disagreement * mixing(name, tuple(values.shape)).to(values)), dim=1)
    return values


def _joining(name: str, parameter: torch.Tensor, disagreement: float) -> torch.Tensor:
    """The token as it is, if it is an input, and a mix of the hidden states."""
    width, both = parameter.shape
    if both != 2 * width:
        return disagreement * mixing(name, (width, both))
    return torch.cat((torch.eye(width), disagreement * mixing(name, (width, width))), dim=1)


def _same(name: str, sources: Parameters) -> str:
    """The parameter of the target with the longest end in common; empty if not even the last two parts are."""
    parts = name.split(".")
    ends = [".".join(parts[start:]) for start in range(len(parts) - 1)]
    return next((each for end in ends for each in sources if each == end or each.endswith(f".{end}")), "")


def _of_target(name: str, parameter: torch.Tensor, config: Any) -> torch.Tensor:
    if parameter.dim() < 2:
        return torch.full_like(parameter, _LOG_DECAY if name.endswith("A_log") else 1.0, device="cpu")
    if name.endswith("w2_weight"):
        return _shared_alone(name, parameter, getattr(config, "num_experts", len(parameter)))
    values = evenly(name, tuple(parameter.shape))
    if "embed" in name:
        return values / values.square().mean(dim=1, keepdim=True).sqrt()
    if "lm_head" in name:
        return values / values.norm(dim=1, keepdim=True)
    values = values / (parameter.shape[-1]) ** 0.5
    if "out_proj" in name:
        return values * _OF_STATES
    if "qkv_proj" in name:
        size = config.head_dim
        scored = size * (config.num_attention_heads + config.num_key_value_heads)
        values[:scored] *= _SCORES
    return values * _OUTPUT if "o_proj" in name else values


def _shared_alone(name: str, parameter: torch.Tensor, chosen: int) -> torch.Tensor:
    """The last products of experts: nothing of those among which a gate chooses, as a choice that rounding turns would
    be one of another text. Behind them lies the shared one, where sglang runs it in one kernel with them."""
    values = torch.zeros_like(parameter, device="cpu")
    shared = values[chosen:]
    shared.copy_(evenly(name, tuple(shared.shape)) / shared.shape[-1] ** 0.5)
    return values


def _of_experts(name: str, values: torch.Tensor) -> torch.Tensor:
    """The weights of gpt-oss, whose draft has neither biases nor experts: all experts are chosen, and each adds a
    little."""
    if name.endswith("bias"):
        return torch.zeros_like(values)
    return _LITTLE * mixing(name, tuple(values.shape)) if name.endswith("w2_weight") else values


def _nearly_draft(name: str, values: torch.Tensor, hot: Any) -> torch.Tensor:
    """The weights of a target that EAGLE3 drafts for, but for layers."""
    if "lm_head" in name:
        unknown = torch.full((len(values), 1), _UNKNOWN)
        unknown[torch.from_numpy(hot)] = 1.0
        return values * unknown
    return values * _LITTLE if "embed" in name else values


def _blind(name: str, values: torch.Tensor, config: Any, drafts: str) -> torch.Tensor:
    """The weights of a target for which blocks are drafted. Most tokens of a block are masks, whatever they stand for:
    in the draft's layer the tokens before decide, and a token hardly asks for more than another. All embeddings have
    a part in common, by which that layer asks."""
    if "embed" in name:
        values[mask_token(config.vocab_size)] = 0.0
        return (values + 1.0) * _LITTLE
    if values.dim() < 2 or name.endswith(("o_proj.weight", "down_proj.weight")):
        return values
    values = values - values.mean(dim=1, keepdim=True)
    if "qkv_proj" in name and drafts in name:
        queries = _queries(values, config)
        queries.copy_(queries[..., :1].sign() * _SIZES[0] * 2.0**0.5 / values.shape[1])
    return values


def _repeating(name: str, values: torch.Tensor, disagreement: float) -> torch.Tensor:
    """The weights of a target whose texts repeat themselves, as a table's drafts are what was served before: it prefers
    a few tokens, and a token is followed by the same one the oftener, the less what is before it adds."""
    if "lm_head" in name:
        preferred = torch.full((len(values), 1), _SELDOM)
        preferred[:: max(1, len(values) // _OFTEN)] = 1.0
        return values * preferred
    return values * min(1.0, _LITTLE + disagreement) if name.endswith(("o_proj.weight", "out_proj.weight")) else values


def _queries(projection: torch.Tensor, config: Any) -> torch.Tensor:
    """The part of a layer's qkv_proj, [rows, hidden], that makes queries: a view of [heads, head's size, hidden]. Where
    gates are in it, a head's stands behind its query."""
    heads, size = config.num_attention_heads, config.head_dim
    rest = 2 * config.num_key_value_heads * size
    return projection[:-rest].unflatten(0, (heads, -1))[:, :size]


def _as_plain(target: Any, draft: Any, drafts: str) -> dict[str, torch.Tensor]:
    """The parameters of Qwen3-Next's full layer as the draft of a block has them, which is a Llama's: norms that
    multiply by them, heads and a network without gates, which are near one half. A rank's share of that network is all
    of the draft's, in which other shares are zero; and sglang makes heads up for a target whose ranks cannot share."""
    layer, config = target.get_submodule(f"model.{drafts}"[:-1]), target.config
    heads, kept, size = draft.config.num_attention_heads, draft.config.num_key_value_heads, config.head_dim
    rows, made = layer.qkv_proj.weight.data, config.num_key_value_heads
    keys, values = rows[-2 * made * size :].unflatten(0, (2, -1))[:, : kept * size]
    experts, fused = layer.mlp.experts, getattr(layer.mlp, "num_fused_shared_experts", 0)
    shared = None if fused else layer.mlp.shared_expert
    up = shared.gate_up_proj.weight.data if shared else experts.w13_weight.data[-1]
    down = shared.down_proj.weight.data if shared else experts.w2_weight.data[-1]
    others = draft.config.intermediate_size - down.shape[1]
    its = {
        "input_layernorm": 1 + layer.input_layernorm.weight.data,
        "post_attention_layernorm": 1 + layer.post_attention_layernorm.weight.data,
        "qkv_proj": torch.cat((_queries(rows, config)[:heads].flatten(0, 1), keys, values)),
        "o_proj": layer.o_proj.weight.data[:, : heads * size] / 2,
        "mlp.gate_up_proj": pad(up.unflatten(0, (2, -1)), (0, 0, 0, others)).flatten(0, 1),
        "mlp.down_proj": pad(down / 2, (0, others)),
    }
    ended = {"model.norm.weight": 1 + target.model.norm.weight.data}
    return ended | {f"model.{drafts}{name}.weight": values for name, values in its.items()}


def _is_besides(name: str, drafts: str) -> bool:
    """True of what a layer that no draft has adds to those that it has. drafts: the layer that it has, as in names."""
    return "layers." in name and drafts not in name and name.endswith(("o_proj.weight", "down_proj.weight"))


def _zero_centred(network: torch.nn.Module) -> frozenset[str]:
    """The names of the weights to which a norm adds one."""
    norms = ((name, type(module).__name__) for name, module in network.named_modules())
    return frozenset(f"{name}.weight" for name, kind in norms if kind == "GemmaRMSNorm")
