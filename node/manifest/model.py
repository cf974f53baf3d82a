"""A manifest's `[model]`: a description of the trained model; `name` is its kind. See node/training/models/.

- `llama`: Shoal's own decoder, described by a few numbers.
- `hf`: any causal language model that Hugging Face's transformers builds from a config. The founder's node fills in
  which tensors it has (node/run/naming.py). A config is data: keys that would name code are refused.
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

Context = Annotated[int, Field(ge=8, le=131_072)]


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
    """A Llama-shaped decoder over `vocab` tokens."""

    name: Literal["llama"] = "llama"
    vocab: Annotated[int, Field(ge=2, le=1_000_000)] = 256
    dim: Annotated[int, Field(ge=8, le=65_536)] = 128
    layers: Annotated[int, Field(ge=1, le=512)] = 4
    heads: Annotated[int, Field(ge=1, le=512)] = 4
    kv_heads: Annotated[int, Field(ge=1, le=512)] = 2
    hidden: Annotated[int, Field(ge=8, le=262_144)] = 384
    context: Context = 128
    rope_theta: Annotated[float, Field(gt=1)] = 10_000.0
    tied: bool = True

    @model_validator(mode="after")
    def _heads_fit(self) -> ModelSpec:
        if self.dim % self.heads or self.heads % self.kv_heads or (self.dim // self.heads) % 2:
            raise ValueError("dim must be a multiple of 2 * heads, and heads a multiple of kv_heads")
        return self


class LoraSpec(Spec):
    """Low-rank adapters (Hu et al., arXiv 2106.09685) on the `targets`: only these are trained and averaged."""

    rank: Annotated[int, Field(ge=1, le=4096)] = 8
    alpha: Annotated[float, Field(gt=0, le=65_536)] = 16.0
    base: Literal["weights", "seed"] = "weights"  # from a folder of each node, or initialised from the manifest's seed
    targets: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$")], ...], Field(min_length=1, max_length=64)
    ]


class HfSpec(ModelTable):
    """A causal language model of transformers; the founder's node fills in the fields below the line."""

    name: Literal["hf"]
    config: Annotated[str, Field(max_length=MAX_CONFIG)]  # JSON, canonical; in TOML also a table
    context: Context = 128
    lora: LoraSpec | None = None
    # ----
    vocab: Annotated[int, Field(ge=0, le=4_000_000)] = 0
    tensors: tuple[TensorGroup, ...] = ()  # trained tensors, in the order of the flat vector
    frozen: Annotated[int, Field(ge=0, le=1 << 40)] = 0  # number of parameters that are not trained
    base: HexDigest = ""  # hash of frozen parameters and buffers, which every member that trains must have

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
    """A module of the members' scripts: names and shapes of its trained tensors, in the order of the flat vector."""

    name: Literal["custom"]
    tensors: Annotated[tuple[TensorGroup, ...], Field(min_length=1)]
    frozen: HexDigest = ""  # hash of the parameters that are not trained (script/module.py); empty: there are none

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

    side: Annotated[int, Field(ge=2, le=64)] = 8  # in pixels
    classes: Annotated[int, Field(ge=1, le=1000)] = 10
    width: Annotated[int, Field(ge=8, le=8192)] = 128
    layers: Annotated[int, Field(ge=1, le=64)] = 3
    hidden: Annotated[int, Field(ge=8, le=32_768)] = 256

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
    """A network that predicts a velocity: its head gives one number for each pixel."""

    name: Literal["flow"]

    @property
    def parameters(self) -> int:
        """How many parameters are trained."""
        return self.trunk + self.width * self.context


class RouterSpec(PictureSpec):
    """A router: its head gives one number for each of its experts."""

    name: Literal["router"]
    experts: Annotated[int, Field(ge=1, le=32)] = 8

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
