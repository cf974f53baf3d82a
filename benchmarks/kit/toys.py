"""One rule that makes a model of the library small: its default config, with each number shrunk by what its key says.

The rule knows words, and no model: a key with `head` in it counts heads, unless it says how wide one is, and so on. A
number that is small enough already stays, and so does what is no number. Where keys and values have fewer heads than
queries, or some layers are counted, they are as large a part of the few as they were of the many. A list that says
something of each layer is as long as there are layers, with its kinds in turn. What the library works out of other
numbers is left to it, so that it comes out right for the small ones. What makes some types causal is said to all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from shoal.node.base import extra
from shoal.node.manifest.model import IGNORED

VOCAB, CONTEXT = 256, 64
LAYERS, HEADS, EXPERTS, WIDTH, HEAD = 4, 4, 4, 64, 16  # a layer's width is that of its heads together
# The first line of which a word is in a key says what a number of that key is at most.
MOST = (
    (("vocab",), VOCAB),
    (("head_dim", "head_size", "headdim", "d_head", "dim_head", "rope_dim", "rotary_dim", "d_kv", "d_state"), HEAD),
    (("state_size", "rank", "chunk", "block_size", "conv_kernel"), HEAD),
    (("head",), HEADS),
    (("expand", "offset"), 1),
    (("per_tok", "top_k", "topk", "moe_k", "shared_expert", "period", "interval", "freq", "stride", "group"), 2),
    (("expert",), EXPERTS),
    (("position", "seq_len", "n_ctx", "max_len", "context"), CONTEXT),
    (("window",), HEAD),
    (("size", "dim", "d_model", "n_embd", "width", "inner", "ffn", "channels"), WIDTH),
    (("layer", "depth", "blocks"), LAYERS),
)
FILLED = ("head", "expert", "per_tok")  # in keys that some defaults leave out, although their model needs them
LARGEST = 1024  # of what no word speaks of: more than this is some size
HEAD_PARTS = ("qk_nope_head_dim", "qk_rope_head_dim")
KV_HEADS = ("kv_head", "kv_n_head", "key_value_head", "head_kv")
ALL_HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
ALL_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")


def toy(model_type: str) -> dict[str, Any]:
    """The shrunk config of a type, as a table."""
    return shrunk(_said(extra.transformers().AutoConfig.for_model(model_type)))


def _said(config: Any) -> dict[str, Any]:
    """What a config says, and not what its constructor worked out: what is no field, and numbers and tables unset.

    What says something of each layer stays.
    """
    table = config.to_dict()
    defaults = {field.name: field.default for field in fields(config)}
    said = {"model_type": config.model_type}
    for key, each in table.items():
        part = getattr(config, key) if isinstance(each, dict) else None
        set_by_library = key not in defaults or (isinstance(each, int | dict) and isinstance(defaults[key], str | None))
        if isinstance(part, extra.transformers().PreTrainedConfig):
            said[key] = _said(part)
        elif not set_by_library or _of_each_layer(each, table) or _by_layer(each):
            said[key] = each
    return said


def shrunk(table: dict[str, Any]) -> dict[str, Any]:
    """The same config with small numbers."""
    kept = {key: each for key, each in table.items() if key not in IGNORED and not key.startswith("_")}
    return {key: _value(key, each, table) for key, each in kept.items()}


def _value(key: str, value: Any, table: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return shrunk(_for_few(value, table) if _by_layer(value) else value)
    if value is None and key == "layer_types":
        return ["full_attention"] * LAYERS
    if value is None and any(word in key for word in FILLED):
        value = LARGEST
    if value is None and key.startswith("default_"):
        return next(iter(table.get(key.removeprefix("default_") + "s") or ()), None)  # the first of those listed
    if key in ("is_decoder", "causal"):
        return True  # some are causal only then
    if value == "bi":
        return "uni"  # the same, of the directions in which attention looks
    if isinstance(value, list | tuple):
        kept = [_value(key, each, table) for each in (_varied(value) if _of_each_layer(value, table) else value)]
        return sorted({min(each, LAYERS - 1) for each in kept}) if key.endswith("layer_indices") else kept
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if key.endswith(("_id", "_index", "_ids", "_idx")):
        return value if value < VOCAB else VOCAB - 1 - value % 16
    return min(value, _most(key, value, table))


def _most(key: str, value: int, table: dict[str, Any]) -> int:
    """What a number is at most in the small config."""
    words, most = next((line for line in MOST if any(word in key for word in line[0])), ((), LARGEST))
    if key.endswith("head_dim") and value == sum(table.get(part) or 0 for part in HEAD_PARTS):
        return 2 * HEAD
    if any(word in key for word in KV_HEADS) and (heads := _count(table, ALL_HEADS)) > value:
        return max(1, HEADS * value // heads)
    if "layer" in words and (layers := _count(table, ALL_LAYERS)) > value > LAYERS:
        return max(1, LAYERS * value // layers)
    return most


def _count(table: dict[str, Any], keys: Iterable[str]) -> int:
    """How many there are before they are shrunk; 0 if the config does not say."""
    return next((each for each in map(table.get, keys) if isinstance(each, int)), 0)


def _of_each_layer(value: Any, table: dict[str, Any]) -> bool:
    return isinstance(value, list | tuple) and len(value) == _count(table, ALL_LAYERS) > 1


def _by_layer(value: Any) -> bool:
    """Whether it is a table of some layers, by their numbers."""
    return isinstance(value, dict) and bool(value) and all(str(key).isdecimal() for key in value)


def _for_few(by_layer: dict[Any, Any], table: dict[str, Any]) -> dict[str, Any]:
    """For as many layers as there will be, each with what the first of its kind had: its own, and what all have."""
    kinds = list(table.get("layer_types") or ())
    common = {key: each for key, each in table.items() if key.endswith("head_dim")}
    entries = {int(key): common | each for key, each in by_layer.items()}
    firsts = map(kinds.index, _varied(kinds))
    return {str(layer): entries[first] for layer, first in enumerate(firsts) if first in entries}


def _varied(values: Iterable[Any]) -> list[Any]:
    """For as many layers as there will be: each kind in turn, as they first come."""
    kinds = list({repr(each): each for each in values}.values())
    return (kinds * LAYERS)[:LAYERS]
