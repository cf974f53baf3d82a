"""A manifest's `[model]`: what is trained, as data. `name` says of which kind it is; see node/training/models/.

- `llama`: Shoal's own decoder, in a handful of numbers.
- `hf`: any causal language model that Hugging Face's transformers builds from a config. Whoever founds the run has the
  rest filled in (run/first_weights.py): which tensors there are. A config is data: what would name code is refused.
- `flow`, `router`: pictures (node/manifest/flow.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from shoal.node.base.explain import UNKNOWN_NAME
from shoal.node.manifest.base import HexDigest, Spec
from shoal.node.manifest.custom import CustomSpec
from shoal.node.manifest.flow import FlowSpec, RouterSpec
from shoal.node.manifest.tensors import TensorGroup, check_size, expand, layer_of, total

MAX_CONFIG = 24 << 10  # characters: a manifest has 64 KiB in all
MAX_NESTING = 7
MAX_REPEATS = 1024  # of what a config counts: a stranger's must not keep a machine building for ever
LAYERS, EXPERTS = ("layer", "block", "depth"), ("expert",)  # in keys whose numbers are how often something is built
SIZES = ("size", "dim", "width", "length", "capacity")  # in keys that say how large one such thing is
MAX_BUILT = 1 << 15  # experts of all layers
MAX_INTEGER = 1 << 31
MAX_LISTED = 1 << 20  # of integers in lists, which tend to count something for each layer
ABOUT_FILES = {  # what a run does not depend on, and transformers writes; no causal model has classes to be labelled
    *("_name_or_path", "_attn_implementation_autoset", "transformers_version", "torch_dtype", "dtype"),
    *("num_labels", "id2label", "label2id"),
}
FLOAT = "__float__"  # the only key of a table that transformers writes for a number that JSON has no word for
REFUSED = {  # keys that name code, or numbers that are not fp32
    *("auto_map", "custom_pipelines", "attn_implementation"),
    *("quantization_config", "compression_config", "use_pretrained_backbone", "backbone"),
}

FILLED_IN = ("vocab", "tensors", "frozen", "base")  # by the founder's node

Context = Annotated[int, Field(ge=8, le=131_072)]


class ModelSpec(Spec):
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

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left for the founder's node to fill in."""
        return True

    def is_of(self, other: object) -> bool:
        """Whether this is `other` but for what was filled in."""
        return self == other


class LoraSpec(Spec):
    """Low-rank adapters (Hu et al., arXiv 2106.09685) on the `targets`: only they are trained, and averaged."""

    rank: Annotated[int, Field(ge=1, le=4096)] = 8
    alpha: Annotated[float, Field(gt=0, le=65_536)] = 16.0
    base: Literal["weights", "seed"] = "weights"  # a folder of each node's, or what the manifest's seed gives
    targets: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$")], ...], Field(min_length=1, max_length=64)
    ]


class HfSpec(Spec):
    """A causal language model of transformers; what is below the line is filled in for whoever founds the run."""

    name: Literal["hf"]
    config: Annotated[str, Field(max_length=MAX_CONFIG)]  # JSON, canonical; in TOML also a table
    context: Context = 128
    lora: LoraSpec | None = None
    # ----
    vocab: Annotated[int, Field(ge=0, le=4_000_000)] = 0
    tensors: tuple[TensorGroup, ...] = ()  # that are trained, in the order of the flat vector
    frozen: Annotated[int, Field(ge=0, le=1 << 40)] = 0  # parameters that are not
    base: HexDigest = ""  # of what is not trained, frozen or saved beside the weights: who trains must have it

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
        """Whether nothing is left for the founder's node to fill in."""
        return bool(self.tensors)

    def is_of(self, other: object) -> bool:
        """Whether this is `other` but for what was filled in."""
        empty = {name: HfSpec.model_fields[name].default for name in FILLED_IN}
        return self.model_copy(update=empty) == other

    @property
    def layers(self) -> int:
        """How many layers its tensors are of."""
        return len({layer_of(name) for name, _ in expand(self.tensors)} - {None})

    @property
    def parameters(self) -> int:
        """How many are trained."""
        return total(self.tensors)

    @property
    def width(self) -> int:
        """How wide the stream between layers is, by the commonest of the names that configs have for it."""
        table = self.table
        widths = (table.get(key) for key in ("hidden_size", "n_embd", "d_model", "dim"))
        return next((each for each in widths if isinstance(each, int)), 1024)

    @property
    def table(self) -> dict[str, Any]:
        """The config."""
        table: dict[str, Any] = json.loads(self.config)
        return table


def canonical_config(value: Any) -> str:
    """The JSON of a config, which is JSON or a table, without what no run depends on; ValueError if it is refused."""
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
    kept = with_floats(_without_notes(value))
    _check_values(list(_values(kept)))
    if not isinstance(kept.get("model_type"), str):
        raise ValueError("the config needs a model_type, such as llama or gpt2")
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))  # with Infinity, which Python reads


def with_floats(value: Any) -> Any:
    """A config's value with numbers where transformers has written tables for them, such as an infinite limit."""
    if isinstance(value, Mapping):
        if value.keys() == {FLOAT} and value[FLOAT] in ("Infinity", "-Infinity", "NaN"):
            return float(value[FLOAT])
        return {key: with_floats(each) for key, each in value.items()}
    return [with_floats(each) for each in value] if isinstance(value, list | tuple) else value


def _without_notes(value: Any, depth: int = 1) -> Any:
    """Without what is about files, at any depth; ValueError if too deep."""
    if depth > MAX_NESTING:
        raise ValueError("the config is nested too deeply")
    if isinstance(value, Mapping):
        return {key: _without_notes(each, depth + 1) for key, each in value.items() if key not in ABOUT_FILES}
    return [_without_notes(each, depth + 1) for each in value] if isinstance(value, list | tuple) else value


def _values(value: Any, key: str = "", is_listed: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """Each value at any depth, the key that it is of, and whether a list has it."""
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
    """The largest number of what the words name; 1 if there is none."""
    return max((each for key, each, _ in values if _counts(key, words) and isinstance(each, int)), default=1)


def _counts(key: str, words: Sequence[str]) -> bool:
    """Whether a number of this key is how many there are of what the words name, and not how large one is."""
    return any(word in key for word in words) and not any(size in key for size in SIZES)


def _kind(table: Any, kinds: Sequence[str]) -> str | None:
    """The name in a table, or in what was made of it, if it is of `kinds`; the default's where there is none."""
    name = table.get("name", "llama") if isinstance(table, Mapping) else getattr(table, "name", "llama")
    return name if name in kinds else None


KINDS = ("llama", "hf", "custom", "flow", "router")
FROM_SEED = ("llama", "flow", "router")  # whose first weights a manifest's seed gives
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
