"""A manifest's `[model]`: a description of the trained model; `name` is its kind. See node/training/models/.

- `llama`: Shoal's own decoder, described by a few numbers.
- `hf`: any causal language model that Hugging Face's transformers builds from a config. The founder's node fills in
  which tensors it has (node/run/first_weights.py). A config is data: keys that would name code are refused.
- `custom`: a module that the members' own scripts make (node/client/script/). Only the names and shapes of its tensors
  are here, and no code is sent. The run begins with the founder's weights, which are its origin; frozen weights are not
  exchanged, but their hash is here, so that all members train on the same ones.
- `flow`: a network on pictures that predicts the velocity of flow matching, which moves noise towards pictures of a
  class (node/diffusion/network.py).
- `router`: a network that predicts from which cluster of the data a noisy picture comes. It is a part of a family whose
  experts are of kind `flow`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from shoal.node.base.explain import UNKNOWN_NAME
from shoal.node.base.keys import Form, Help
from shoal.node.manifest.base import HexDigest, Spec
from shoal.node.manifest.tensors import TensorGroup, check_size, expand, layer_of, total

MAX_CONFIG = 24 << 10  # characters: a manifest has 64 KiB in all
MAX_NESTING = 7
MAX_REPEATS = 1024  # of layers or experts, so that a config from a peer cannot keep a machine building for ever
LAYERS, EXPERTS = ("layer", "block", "depth"), ("expert",)  # words in keys that say how many are built
SIZES = ("size", "dim", "width", "length", "capacity")  # words in keys that say how large one of them is
MAX_BUILT = 1 << 15  # experts of all layers
MAX_INTEGER = 1 << 31
MAX_LISTED = 1 << 20  # of integers in lists, which often hold a count for each layer
IGNORED = {  # keys that transformers writes and no run depends on; causal models have no labels
    *("_name_or_path", "_attn_implementation_autoset", "transformers_version", "torch_dtype", "dtype"),
    *("num_labels", "id2label", "label2id"),
}
FLOAT = "__float__"  # only key of the table that transformers writes for infinite numbers and NaN, which JSON lacks
REFUSED = {  # keys that name code, or numbers that are not fp32
    *("auto_map", "custom_pipelines", "attn_implementation"),
    *("quantization_config", "compression_config", "use_pretrained_backbone", "backbone"),
}

FILLED_IN = ("vocab", "tensors", "frozen", "base")  # fields of HfSpec that the founder's node fills in

TIMES = 32  # size of the embedding of a time
DIGITS = (8, 10)  # pixels per side, and classes, of data.name = "digits"
PICTURES = ("flow", "router")  # kinds of models that learn from pictures

Context = Annotated[
    int,
    Field(ge=8, le=131_072),
    Help(
        "How many tokens the model sees at once, in training and afterwards.",
        unit="tokens",
        larger="it can use what stands further back; a step takes more time and memory",
        smaller="steps are faster and need less memory",
    ),
]


class ModelTable(Spec):
    """What the tables of all kinds of models have in common; here for kinds in which the founder fills in nothing."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left for the founder's node to fill in."""
        return True

    def completes(self, draft: object) -> bool:
        """Whether this is `draft`, except for what the founder's node has filled in."""
        return self == draft


class ModelSpec(ModelTable):
    """Shoal's own language model, a Llama-shaped decoder, described by a few numbers."""

    name: Annotated[Literal["llama"], Help("The kind of model: Shoal's own decoder.")] = "llama"
    vocab: Annotated[
        int,
        Field(ge=2, le=1_000_000),
        Help(
            "How many different tokens there are: 256 for bytes, with a tokenizer at least as many as it has.",
            unit="tokens",
            larger="more parameters in the embedding, and a slower last layer",
            smaller="fewer parameters; a tokenizer with more tokens is refused",
        ),
    ] = 256
    dim: Annotated[
        int,
        Field(ge=8, le=65_536),
        Help(
            "How many values stand for a token between two layers (the width); a multiple of 2 * heads.",
            unit="values",
            larger="a stronger model; memory, traffic and time grow with its square",
            smaller="a weaker and faster model",
        ),
    ] = 128
    layers: Annotated[
        int,
        Field(ge=1, le=512),
        Help(
            "How many layers stand one after the other.",
            unit="layers",
            larger="a stronger model; memory, traffic and time grow in proportion",
            smaller="a weaker and faster model",
        ),
    ] = 4
    heads: Annotated[
        int,
        Field(ge=1, le=512),
        Help(
            "How many heads of attention a layer has, which share the width.",
            unit="heads",
            larger="a layer looks at more places at once, with fewer values for each",
            smaller="fewer places at once, with more values for each",
        ),
    ] = 4
    kv_heads: Annotated[
        int,
        Field(ge=1, le=512),
        Help(
            "How many different keys and values the heads share; heads is a multiple of it.",
            unit="heads",
            larger="slightly stronger, with more memory when texts are written",
            smaller="less memory when texts are written",
        ),
    ] = 2
    hidden: Annotated[
        int,
        Field(ge=8, le=262_144),
        Help(
            "The inner width of a layer's MLP, usually 2.7 to 4 times dim.",
            unit="values",
            larger="a stronger model; memory, traffic and time grow in proportion",
            smaller="a weaker and faster model",
        ),
    ] = 384
    context: Context = 128
    rope_theta: Annotated[
        float,
        Field(gt=1),
        Help(
            "The base of the rotary embedding of positions.",
            larger="positions that are far apart are told apart, which suits a long context",
            smaller="near positions are told apart more sharply, which suits a short context",
        ),
    ] = 10_000.0
    tied: Annotated[
        bool, Help("Whether the last layer uses the embedding's weights, which saves vocab * dim parameters.")
    ] = True

    @model_validator(mode="after")
    def _heads_fit(self) -> ModelSpec:
        if self.dim % self.heads or self.heads % self.kv_heads or (self.dim // self.heads) % 2:
            raise ValueError(
                f"dim must be a multiple of 2 * heads, and heads a multiple of kv_heads; dim is {self.dim}, heads is "
                f"{self.heads}, and kv_heads is {self.kv_heads}"
            )
        return self


class LoraSpec(Spec):
    """Low-rank adapters (Hu et al., arXiv 2106.09685) on the `targets`: only these are trained and averaged."""

    rank: Annotated[
        int,
        Field(ge=1, le=4096),
        Help(
            "The inner width of an adapter.",
            unit="values",
            larger="adapters can learn more; their memory and traffic grow in proportion",
            smaller="less memory and traffic",
        ),
    ] = 8
    alpha: Annotated[
        float,
        Field(gt=0, le=65_536),
        Help(
            "How strongly adapters act: what they add is multiplied by alpha / rank.",
            larger="adapters change the model faster",
            smaller="adapters change the model more slowly",
        ),
    ] = 16.0
    base: Annotated[
        Literal["weights", "seed"],
        Help(
            'Where the frozen weights come from. "weights": a folder of safetensors on each node '
            '(`shoal node start --weights`); "seed": random numbers by the manifest\'s seed, to try things out.'
        ),
    ] = "weights"
    targets: Annotated[
        tuple[
            Annotated[
                str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$"), Form("1 to 100 letters, digits and any of _ . -")
            ],
            ...,
        ],
        Field(min_length=1, max_length=64),
        Help("The names of the model's modules that get an adapter, as peft's target_modules."),
    ]


class HfSpec(ModelTable):
    """A causal language model that Hugging Face's transformers builds from a config."""

    name: Annotated[Literal["hf"], Help("The kind of model: one of Hugging Face's transformers.")]
    config: Annotated[
        str,
        Field(max_length=MAX_CONFIG),
        Form("the path of a config.json, a table, or JSON"),
        Help("The path of a config.json, read when the run is created; or its content as a table, or as JSON."),
    ]
    context: Context = 128
    lora: LoraSpec | None = None
    # ---- filled in by the founder's node:
    vocab: Annotated[
        int, Field(ge=0, le=4_000_000), Help("How many different tokens there are.", unit="tokens", is_filled_in=True)
    ] = 0
    tensors: Annotated[
        tuple[TensorGroup, ...], Help("The trained tensors, in the order of the flat vector.", is_filled_in=True)
    ] = ()
    frozen: Annotated[
        int,
        Field(ge=0, le=1 << 40),
        Help("How many parameters are not trained.", unit="parameters", is_filled_in=True),
    ] = 0
    base: Annotated[
        HexDigest,
        Help("The hash of frozen parameters and buffers, which every member that trains must have.", is_filled_in=True),
    ] = ""

    @field_validator("config", mode="before")
    @classmethod
    def _canonical(cls, value: Any) -> str:
        return canonical_config(value)

    @model_validator(mode="after")
    def _can_be(self) -> HfSpec:
        check_size(self.tensors)
        return self

    @property
    def is_complete(self) -> bool:
        """See ModelTable."""
        return bool(self.tensors)

    def completes(self, draft: object) -> bool:
        """See ModelTable."""
        empty = {name: HfSpec.model_fields[name].default for name in FILLED_IN}
        return self.model_copy(update=empty) == draft

    @property
    def layers(self) -> int:
        """How many layers its tensors belong to."""
        return len({layer_of(name) for name, _ in expand(self.tensors)} - {None})

    @property
    def parameters(self) -> int:
        """How many parameters are trained."""
        return total(self.tensors)

    @property
    def width(self) -> int:
        """Width of the residual stream, by the usual keys of configs; 1024 if it has none of them."""
        table = self.table
        widths = (table.get(key) for key in ("hidden_size", "n_embd", "d_model", "dim"))
        return next((each for each in widths if isinstance(each, int)), 1024)

    @property
    def table(self) -> dict[str, Any]:
        """The parsed config."""
        table: dict[str, Any] = json.loads(self.config)
        return table


class CustomSpec(ModelTable):
    """A module of the members' own scripts, whose `create` writes this table (docs/scripts.md)."""

    name: Annotated[Literal["custom"], Help("The kind of model: a module that the members' scripts make.")]
    tensors: Annotated[
        tuple[TensorGroup, ...],
        Field(min_length=1),
        Help("The trained tensors, in the order of the flat vector.", is_filled_in=True),
    ]
    frozen: Annotated[
        HexDigest,
        Help("The hash of the parameters that are not trained; empty: there are none.", is_filled_in=True),
    ] = ""

    @model_validator(mode="after")
    def _can_be(self) -> CustomSpec:
        check_size(self.tensors)
        if not self.parameters:
            raise ValueError("a model has parameters")
        return self

    @property
    def layers(self) -> int:
        """How many layers its tensors belong to."""
        return len({layer_of(name) for name, _ in expand(self.tensors)} - {None})

    @property
    def parameters(self) -> int:
        """How many parameters are trained."""
        return total(self.tensors)

    @property
    def context(self) -> int:
        """Tokens of a sample: one, as a script counts samples."""
        return 1

    @property
    def vocab(self) -> int:
        """Size of the vocabulary: 0, as only the script knows what the model sees."""
        return 0


class PictureSpec(ModelTable):
    """Common to both: square grey pictures of `classes`, and a trunk of residual layers."""

    side: Annotated[
        int,
        Field(ge=2, le=64),
        Help("The width and height of the pictures; those of `digits` have 8.", unit="pixels"),
    ] = 8
    classes: Annotated[
        int, Field(ge=1, le=1000), Help("How many classes the pictures have; `digits` have 10.", unit="classes")
    ] = 10
    width: Annotated[
        int,
        Field(ge=8, le=8192),
        Help(
            "How many values stand for a picture between two layers.",
            unit="values",
            larger="a stronger and slower network",
            smaller="a weaker and faster network",
        ),
    ] = 128
    layers: Annotated[
        int,
        Field(ge=1, le=64),
        Help(
            "How many residual layers stand one after the other.",
            unit="layers",
            larger="a stronger and slower network",
            smaller="a weaker and faster network",
        ),
    ] = 3
    hidden: Annotated[
        int,
        Field(ge=8, le=32_768),
        Help(
            "The inner width of a layer.",
            unit="values",
            larger="a stronger and slower network",
            smaller="a weaker and faster network",
        ),
    ] = 256

    @property
    def context(self) -> int:
        """Pixels of a picture, which are counted as tokens."""
        return self.side * self.side

    @property
    def vocab(self) -> int:
        """Size of the vocabulary: 0, as pictures have no tokens."""
        return 0

    @property
    def trunk(self) -> int:
        """How many parameters the network has without its head."""
        conditions = self.width * (TIMES + self.classes + 1)
        return self.context * self.width + conditions + self.layers * self.width * (2 * self.hidden + 3 * self.width)


class FlowSpec(PictureSpec):
    """A network on pictures that predicts the velocity of flow matching, one number for each pixel."""

    name: Annotated[Literal["flow"], Help("The kind of model: a network that makes pictures of noise.")]

    @property
    def parameters(self) -> int:
        """How many parameters are trained."""
        return self.trunk + self.width * self.context


class RouterSpec(PictureSpec):
    """A network that predicts from which group of the data a noisy picture comes: part of a family of kind flow."""

    name: Annotated[Literal["router"], Help("The kind of model: a network that chooses among experts on pictures.")]
    experts: Annotated[
        int,
        Field(ge=1, le=32),
        Help("How many experts it tells apart: as many as experts.clusters.count.", unit="experts"),
    ] = 8

    @property
    def parameters(self) -> int:
        """How many parameters are trained."""
        return self.trunk + self.width * self.experts


def canonical_config(value: Any) -> str:
    """The canonical JSON of a config (JSON or a table), without ignored keys; ValueError if it is refused."""
    if isinstance(value, str):
        if not value.lstrip().startswith("{"):
            raise ValueError(f"{value[:80]!r} is no config: it is a table, JSON, or the path of a config.json")
        if len(value) > MAX_CONFIG:
            raise ValueError(f"a config has at most {MAX_CONFIG:,} characters")
        try:
            value = json.loads(value)
        except RecursionError as error:
            raise ValueError("the config is nested too deeply") from error
    if not isinstance(value, Mapping):
        raise ValueError("a config is a table, or JSON")
    kept = with_floats(_without_ignored(value))
    _check_values(list(_values(kept)))
    if not isinstance(kept.get("model_type"), str):
        raise ValueError("the config needs a model_type, such as llama or gpt2")
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))  # may hold Infinity, which Python reads


def with_floats(value: Any) -> Any:
    """A config's value with the numbers for which transformers writes tables, such as an infinite limit."""
    if isinstance(value, Mapping):
        if value.keys() == {FLOAT} and value[FLOAT] in ("Infinity", "-Infinity", "NaN"):
            return float(value[FLOAT])
        return {key: with_floats(each) for key, each in value.items()}
    return [with_floats(each) for each in value] if isinstance(value, list | tuple) else value


def _without_ignored(value: Any, depth: int = 1) -> Any:
    """A config's value without IGNORED keys at any depth; ValueError if nested too deeply."""
    if depth > MAX_NESTING:
        raise ValueError("the config is nested too deeply")
    if isinstance(value, Mapping):
        return {key: _without_ignored(each, depth + 1) for key, each in value.items() if key not in IGNORED}
    return [_without_ignored(each, depth + 1) for each in value] if isinstance(value, list | tuple) else value


def _values(value: Any, key: str = "", is_listed: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """Each value at any depth, as (its nearest key, the value, whether it is in a list)."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield name, each, False
            yield from _values(each, name)
    elif isinstance(value, list):
        for each in value:
            yield key, each, True
            yield from _values(each, key, True)


def _check_values(values: Sequence[tuple[str, Any, bool]]) -> None:
    for key, value, is_listed in values:
        _check(key, value)
        if isinstance(value, int) and abs(value) > (limit := MAX_LISTED if is_listed else MAX_INTEGER):
            raise ValueError(f"`{key}` is {value}, and at most {limit:,} here")
    built = _most(values, LAYERS) * _most(values, EXPERTS)
    if built > MAX_BUILT:
        raise ValueError(f"the config's layers have {built:,} experts together, and at most {MAX_BUILT:,} here")


def _check(key: str, value: Any) -> None:
    if (key in REFUSED or key.startswith("_")) and value not in (None, False):
        raise ValueError(f"`{key}` is not for configs of runs: it may name code, or other numbers than fp32")
    if isinstance(value, float) and isnan(value):
        raise ValueError(f"`{key}` is no number")
    if isinstance(value, int) and _counts(key, LAYERS + EXPERTS) and value > MAX_REPEATS:
        raise ValueError(f"`{key}` is {value}, and at most {MAX_REPEATS} here")


def _most(values: Sequence[tuple[str, Any, bool]], words: Sequence[str]) -> int:
    """The largest number under a key that counts what the words name; 1 if there is none."""
    return max((each for key, each, _ in values if _counts(key, words) and isinstance(each, int)), default=1)


def _counts(key: str, words: Sequence[str]) -> bool:
    """Whether a number under this key is a count of what the words name, and not a size."""
    return any(word in key for word in words) and not any(size in key for size in SIZES)


def _kind(table: Any, kinds: Sequence[str]) -> str | None:
    """The name in a table or spec, `llama` if it has none; None if the name is not one of `kinds`."""
    name = table.get("name", "llama") if isinstance(table, Mapping) else getattr(table, "name", "llama")
    return name if name in kinds else None


KINDS = ("llama", "hf", "custom", "flow", "router")
FROM_SEED = ("llama", "flow", "router")  # kinds whose first weights follow from the manifest's seed
AnySeeded = Annotated[
    Annotated[ModelSpec, Tag("llama")] | Annotated[FlowSpec, Tag("flow")] | Annotated[RouterSpec, Tag("router")],
    Discriminator(
        lambda table: _kind(table, FROM_SEED),
        custom_error_type=UNKNOWN_NAME,
        custom_error_message=f"must be one of {', '.join(FROM_SEED)}",
    ),
]
AnyModel = Annotated[
    Annotated[ModelSpec, Tag("llama")]
    | Annotated[HfSpec, Tag("hf")]
    | Annotated[CustomSpec, Tag("custom")]
    | Annotated[FlowSpec, Tag("flow")]
    | Annotated[RouterSpec, Tag("router")],
    Discriminator(
        lambda table: _kind(table, KINDS),
        custom_error_type=UNKNOWN_NAME,
        custom_error_message=f"must be one of {', '.join(KINDS)}",
    ),
]


def writes_text(spec: AnyModel) -> bool:
    """Whether text can be written with a run's states: by no pictures, scripts, or adapters without base."""
    return isinstance(spec, ModelSpec) or (isinstance(spec, HfSpec) and spec.lora is None)
