"""The run manifest: everything that the members of a run must agree on, and nothing else.

A person writes TOML; on the wire it is canonical msgpack (keys sorted, no defaults left out), whose SHA-256 is
the run id. Node-private settings (device, threads, paths, caps) never enter it. It only names things: models,
data and methods come from registries, so that joining a run executes no code from the network.
"""

from __future__ import annotations

import difflib
import hashlib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgpack
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shoal.protocol.errors import LocalError, RemoteError
from shoal.protocol.ids import RunId

PROTOCOL = 1
MAX_MANIFEST = 64 << 10


class Spec(BaseModel):
    """Base of the manifest's tables: frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class ModelSpec(Spec):
    """A Llama-shaped decoder over `vocab` tokens."""

    name: Literal["llama"] = "llama"
    vocab: Annotated[int, Field(ge=2, le=1_000_000)] = 256
    dim: Annotated[int, Field(ge=8, le=65_536)] = 128
    layers: Annotated[int, Field(ge=1, le=512)] = 4
    heads: Annotated[int, Field(ge=1, le=512)] = 4
    kv_heads: Annotated[int, Field(ge=1, le=512)] = 2
    hidden: Annotated[int, Field(ge=8, le=262_144)] = 384
    context: Annotated[int, Field(ge=8, le=131_072)] = 128
    rope_theta: Annotated[float, Field(gt=1)] = 10_000.0
    tied: bool = True

    @model_validator(mode="after")
    def _heads_fit(self) -> ModelSpec:
        if self.dim % self.heads or self.heads % self.kv_heads or (self.dim // self.heads) % 2:
            raise ValueError("dim must be a multiple of 2 * heads, and heads a multiple of kv_heads")
        return self


class DataSpec(Spec):
    """Which text: `stdlib` is the running Python's standard library; `files` is named by its digest."""

    name: Literal["stdlib", "files"] = "stdlib"
    digest: str = ""  # of `files`: what every member must have


class MethodSpec(Spec):
    """DiLoCo (arXiv 2311.08105): inner AdamW with warm-up, stable, decay; outer Nesterov SGD."""

    name: Literal["diloco"] = "diloco"
    inner_steps: Annotated[int, Field(ge=1, le=100_000)] = 20
    batch: Annotated[int, Field(ge=1, le=65_536)] = 16
    inner_lr: Annotated[float, Field(gt=0, le=10)] = 2e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.1
    clip: Annotated[float, Field(gt=0)] = 1.0
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    decay_share: Annotated[float, Field(ge=0, le=1)] = 0.3  # of the run, where it has a last round
    outer_lr: Annotated[float, Field(gt=0, le=10)] = 0.7
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9


class RoundSpec(Spec):
    """When a round starts, who may be in it, and when the run ends."""

    min_members: Annotated[int, Field(ge=1, le=10_000)] = 2
    start_members: Annotated[int, Field(ge=1, le=10_000)] = 2  # for round 1
    last: Annotated[int, Field(ge=1)] | None = None  # None: the run has no last round
    max_group: Annotated[int, Field(ge=1, le=1_000)] = 64  # owners, not members
    max_weight: Annotated[int, Field(ge=1, le=2**40)] = 1 << 30  # tokens that one member may claim for a round
    chunk_bytes: Annotated[int, Field(ge=4096, le=8 << 20)] = 1 << 20  # of fp32


class CodecSpec(Spec):
    """How chunks are encoded on their way to the owner (scatter) and back (gather)."""

    scatter: Literal["fp32", "int8"] = "fp32"
    gather: Literal["fp32", "int8"] = "fp32"


class GoalSpec(Spec):
    """What `shoal up` holds the run to."""

    loss_ratio: Annotated[float, Field(gt=0)] = 0.6  # final / initial validation loss, at most


class Manifest(Spec):
    """A whole run manifest."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    protocol: Literal[1] = PROTOCOL
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    model: ModelSpec = ModelSpec()
    data: DataSpec = DataSpec()
    method: MethodSpec = MethodSpec()
    rounds: RoundSpec = RoundSpec()
    codec: CodecSpec = CodecSpec()
    goal: GoalSpec = GoalSpec()

    def canonical(self) -> bytes:
        """The bytes that are hashed, signed and sent."""
        packed: bytes = msgpack.packb(_sorted(self.model_dump(mode="json")))
        return packed

    @property
    def run_id(self) -> RunId:
        """SHA-256 of the canonical bytes."""
        return RunId(hashlib.sha256(self.canonical()).digest())


def load_manifest(path: Path) -> Manifest:
    """The manifest in a TOML file; LocalError says which key is wrong and what was meant."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(f"cannot read the manifest {path}: {error}") from error
    return parse_manifest(text, str(path))


def parse_manifest(text: str, origin: str = "manifest") -> Manifest:
    """The manifest in a TOML text."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LocalError(f"{origin} is not TOML: {error}") from error
    try:
        return Manifest.model_validate(_tuples(table))
    except ValidationError as error:
        raise LocalError(f"{origin}: {_explain(error)}") from error


def decode_manifest(data: bytes, run: RunId) -> Manifest:
    """The manifest in canonical bytes from a peer; RemoteError unless it is the one that `run` names."""
    if len(data) > MAX_MANIFEST or hashlib.sha256(data).digest() != run:
        raise RemoteError("the manifest it sent is not the one that the run id names")
    try:
        manifest = Manifest.model_validate(_tuples(msgpack.unpackb(data, strict_map_key=True)))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteError(f"the run's manifest is not one that this version understands: {error}") from error
    if manifest.canonical() != data:
        raise RemoteError("the manifest it sent is not in canonical form")
    return manifest


def _sorted(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _sorted(item[key]) for key in sorted(item)}
    return [_sorted(each) for each in item] if isinstance(item, list) else item


def _tuples(item: Any) -> Any:
    """TOML and msgpack have lists only; the strict schema wants tuples."""
    if isinstance(item, dict):
        return {key: _tuples(each) for key, each in item.items()}
    return tuple(_tuples(each) for each in item) if isinstance(item, list) else item


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown key '{where}'{_nearest(first['loc'])}"
    return f"'{where}': {first['msg']}" if where else first["msg"]


def _nearest(location: tuple[int | str, ...]) -> str:
    spec: type[BaseModel] = Manifest
    for part in location[:-1]:
        annotation = spec.model_fields[str(part)].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        spec = annotation
    close = difflib.get_close_matches(str(location[-1]), spec.model_fields, n=1, cutoff=0.0)
    return f"; the nearest known key is '{close[0]}'" if close else ""
