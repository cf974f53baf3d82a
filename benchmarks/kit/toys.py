"""One rule that makes a model of the library small: its default config, with each number shrunk by what its key says.

The rule knows words, and no model: a key with `head` in it counts heads, unless it says how wide one is, and so on. A
number that is small enough already stays, and so does what is no number. A list that says something of each layer is
as long as there are layers, and has as many of its kinds as it can.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shoal.node.models import extra
from shoal.node.spec.model import ABOUT_FILES

VOCAB, CONTEXT = 256, 64
LAYERS, HEADS, EXPERTS, WIDTH, HEAD = 4, 4, 4, 64, 16  # a layer's width is that of its heads together
# The first line of which a word is in a key says what a number of that key is at most.
MOST = (
    (("vocab",), VOCAB),
    (("qk_head_dim",), 2 * HEAD),  # a half with positions, and one without
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


def toy(model_type: str) -> dict[str, Any]:
    """The shrunk config of a type, as a table."""
    made = extra.transformers().AutoConfig.for_model(model_type)
    return shrunk(made.to_dict())


def shrunk(table: dict[str, Any]) -> dict[str, Any]:
    """The same config with small numbers."""
    layers = _layers(table)
    kept = {key: each for key, each in table.items() if key not in ABOUT_FILES and not key.startswith("_")}
    return {key: _value(key, each, layers) for key, each in kept.items() if not key.isdecimal() or int(key) < LAYERS}


def _value(key: str, value: Any, layers: int) -> Any:
    if isinstance(value, dict):
        return shrunk(value)
    if value is None and key == "layer_types":
        return ["full_attention"] * LAYERS
    if value is None and any(word in key for word in FILLED):
        value = LARGEST
    if key in ("is_decoder", "causal"):
        return True  # some are causal only then
    if isinstance(value, list | tuple):
        per_layer = len(value) == layers > 1
        kept = [_value(key, each, layers) for each in (_varied(value) if per_layer else value)]
        return sorted({min(each, LAYERS - 1) for each in kept}) if key.endswith("layer_indices") else kept
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if key.endswith(("_id", "_index", "_ids", "_idx")):
        return value if value < VOCAB else VOCAB - 1 - value % 16
    return min(value, next((most for words, most in MOST if any(word in key for word in words)), LARGEST))


def _layers(table: dict[str, Any]) -> int:
    """How many layers the config has before it is shrunk."""
    counts = (table.get(key) for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"))
    return next((each for each in counts if isinstance(each, int)), 0)


def _varied(values: Iterable[Any]) -> list[Any]:
    """For as many layers as there will be: each kind once, as they first come, then again."""
    values = list(values)
    kinds = list({repr(each): each for each in values}.values())
    return [*kinds, *values][:LAYERS] if len(kinds) > 1 else values[:LAYERS]
