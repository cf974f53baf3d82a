"""The run manifest: everything that the members of a run must agree on, and nothing else.

- People write TOML. On the wire it is canonical msgpack, whose SHA-256 is its digest: keys are sorted, and defaults are
  written out, except those of keys that were added later, so that digests stay the same.
- Settings of a single node (device, threads, paths, limits) are never part of it.
- It only names things: models, data and methods come from registries, so joining a run executes no code from the
  network.
- Every field is bounded, so a manifest that somebody else signed is either refused or small.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgpack
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from shoal.node.base.explain import explain, key_of
from shoal.node.base.keys import Form, Help
from shoal.node.base.textfile import MARK, read_text, shown
from shoal.node.base.toml import line_of
from shoal.node.manifest.base import Count, RequiredDigest, Spec
from shoal.node.manifest.codec import CODECS, RESEARCH_CODECS, SPARSELOCO_CODECS, WEIGHT_CODECS, RunCodec
from shoal.node.manifest.data import DataSpec as DataSpec
from shoal.node.manifest.experts import ExpertsSpec, check_router
from shoal.node.manifest.inlining import with_config
from shoal.node.manifest.method import DEFAULT_SCATTER, MethodSpec
from shoal.node.manifest.model import DIGITS, FROM_SEED, PICTURES, AnyModel, PictureSpec
from shoal.node.manifest.model import ModelSpec as ModelSpec
from shoal.node.manifest.trust import TrustSpec
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import Digest, PeerId, RunId
from shoal.protocol.base.signing import Signer
from shoal.protocol.log.register import MAX_SEATS
from shoal.protocol.messages.anchor import Anchor
from shoal.protocol.messages.genesis import Genesis, check_genesis, manifest_digest

PROTOCOL: Final = 2
MAX_MANIFEST = 64 << 10
MAX_DEPTH = 8
LARGEST_STATE_CHUNK = 1 << 20  # bytes: ten seconds on a line of 1 Mbit/s


def _refuse_research_codec(name: Any) -> Any:
    if name in RESEARCH_CODECS:
        raise ValueError(
            f"{name} is a codec for research (those are {', '.join(RESEARCH_CODECS)}), which only the laboratory has: "
            f"python -m shoal.node.lab; a run has one of {', '.join(CODECS)}"
        )
    return name


CodecName = Annotated[RunCodec, BeforeValidator(_refuse_research_codec)]


class NewerProtocol(LocalError):
    """The run uses a later protocol than this program supports; only an upgrade helps."""

    code = "other-protocol"


class RoundSpec(Spec):
    """When a round starts, who may be in it, and when the run ends."""

    min_members: Annotated[
        int,
        Field(ge=1, le=MAX_SEATS),
        Help(
            f"How many members must be ready before a round is made, which has {MAX_SEATS} at most.",
            unit="members",
            larger="the run waits while fewer are there",
            smaller="the run goes on with few; with 1 also alone",
        ),
    ] = 2
    start_members: Annotated[  # else the first two to arrive would start alone
        int,
        Field(ge=1, le=MAX_SEATS),
        Help(
            "How many members must be ready before the first round is made.",
            unit="members",
            larger="the run begins later, with more members",
            smaller="the run begins sooner; whoever comes later joins it",
        ),
    ] = 2
    last: Annotated[
        Annotated[int, Field(ge=1, le=2**53)] | None,
        Help(
            "The number of the last round, after which the run has ended; without it the run goes on until all leave.",
            unit="rounds",
            larger="longer training",
            smaller="shorter training",
        ),
    ] = None
    pace: Annotated[
        Literal["deadline", "steps"],
        Help(
            'Whether slow members are waited for. "deadline": they hand in what they have when the others are done; '
            '"steps": all do all their steps, so that a run without accidents has the same bits each time.'
        ),
    ] = "deadline"
    max_group: Annotated[
        int,
        Field(ge=1, le=1_000),
        Help(
            "How many members at most add up contributions for all.",
            unit="members",
            larger="the work is shared by more, and each member sends to more",
            smaller="fewer connections, and more work for each of the few",
        ),
    ] = 64
    max_weight: Annotated[
        int,
        Field(ge=1, le=2**40),
        Help(
            "For how much work one member's contribution to a round counts at most.",
            unit="tokens",
            larger="a fast member, or one that lies, may count for more",
            smaller="fast members count for less than they have done",
        ),
    ] = 1 << 30
    chunk_bytes: Annotated[
        Annotated[int, Field(ge=4096, le=8 << 20)] | None,
        Help(
            "How long the pieces are in which a vector is averaged, in fp32; without it that follows from its size.",
            unit="bytes",
            larger="fewer messages, and more is done again when a member dies",
            smaller="more members share the work of a small model, with more messages",
        ),
    ] = None

    @property
    def state_chunk_bytes(self) -> int:
        """Bytes of the chunks in which a committed state is hashed and handed to joiners: no more, for slow lines."""
        return min(self.chunk_bytes or LARGEST_STATE_CHUNK, LARGEST_STATE_CHUNK)


class CodecSpec(Spec):
    """How numbers are written on their way (docs/codecs.md): fewer bits are less traffic and more rounding."""

    scatter: Annotated[
        CodecName,
        Help(
            "Of contributions, on the way to the member that averages them. With sparseloco topk, and with "
            "streaming-diloco fp4, unless this says otherwise."
        ),
    ] = "fp32"
    gather: Annotated[
        CodecName, Help("Of averages, on the way back to all members; each rounding here reaches all of them.")
    ] = "fp32"


class GoalSpec(Spec):
    """What a run must reach for `shoal up` to report success; nothing else depends on it."""

    loss_ratio: Annotated[
        float,
        Field(gt=0),
        Help(
            "The final validation loss over the one at the beginning, at most.",
            larger="easier to reach",
            smaller="harder to reach",
        ),
    ] = 0.6


class OriginSpec(Spec):
    """The state that a run goes on from: the state of another run after a round, which the founder had.

    The first round is `round + 1`. The history digest goes on too, so the order of members and their lanes are those
    that the other run would have had.
    """

    run: Annotated[RequiredDigest, Help("The id of the other run.", is_filled_in=True)]
    round: Annotated[
        int,
        Field(ge=0, le=2**53),
        Help("Its round; 0: weights that the founder has made.", unit="rounds", is_filled_in=True),
    ]
    history: Annotated[RequiredDigest, Help("The history digest of that round.", is_filled_in=True)]
    root: Annotated[
        RequiredDigest,
        Help("The hash of the state, against which a joiner checks its download.", is_filled_in=True),
    ]
    samples: Annotated[Count, Help("On how much the state was trained.", unit="tokens", is_filled_in=True)]


class Manifest(Spec):
    """A whole run manifest."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"),
        Form("1 to 64 letters, digits and any of . _ -, of which the first is a letter or digit"),
        Help("The run's name, by which people speak of it; what tells it from others is its id."),
    ]
    protocol: Annotated[
        Literal[2], Help("The version of what members say to each other; a node of another version refuses the run.")
    ] = PROTOCOL
    seed: Annotated[
        int,
        Field(ge=0, lt=2**63),
        Help("The number from which first weights and the order of the data follow; another number gives others."),
    ] = 0
    model: Annotated[AnyModel, Help("The model that is trained; its `name` says of which kind it is.")] = ModelSpec()
    data: DataSpec = DataSpec()
    method: MethodSpec = MethodSpec()
    rounds: RoundSpec = RoundSpec()
    codec: CodecSpec = CodecSpec()
    goal: GoalSpec = GoalSpec()
    trust: TrustSpec = TrustSpec()
    origin: Annotated[
        OriginSpec | None, Help("The state that the run goes on from (`shoal run create --from`).", is_filled_in=True)
    ] = None
    experts: ExpertsSpec | None = None
    public: Annotated[  # by its members, as the founder's node may be gone
        bool, Help("Whether its members announce the run to everybody: `shoal run discover` lists it.")
    ] = False

    @model_validator(mode="before")
    @classmethod
    def _codec_of_the_method(cls, table: Any) -> Any:
        """Fills in the method's default codec of contributions where none is named."""
        if not isinstance(table, dict) or not isinstance(codec := table.get("codec", {}), dict):
            return table
        method = table.get("method", {})
        name = method.name if isinstance(method, MethodSpec) else method.get("name") if isinstance(method, dict) else ""
        if not isinstance(name, str) or name not in DEFAULT_SCATTER or "scatter" in codec:
            return table
        return {**table, "codec": {**codec, "scatter": DEFAULT_SCATTER[name]}}

    @model_validator(mode="after")
    def _tables_fit(self) -> Manifest:
        """Checks that model, data, method and codecs go together."""
        if (self.model.name == "custom") != (self.data.name == "own"):
            raise ValueError(
                "a model of kind custom, and only that, comes with data.name own: its scripts have the data"
            )
        if (self.model.name in PICTURES) != (self.data.name == "digits"):
            raise ValueError("a model of kind flow or router, and only that, learns from pictures: data.name digits")
        if isinstance(self.model, PictureSpec) and (self.model.side, self.model.classes) != DIGITS:
            raise ValueError(
                f"digits have {DIGITS[0]} pixels a side and {DIGITS[1]} classes, and the model has "
                f"{self.model.side} and {self.model.classes}"
            )
        if self.model.name == "custom" and self.method.name == "ddp":
            raise ValueError(
                "ddp steps by AdamW on what all agree on, and a script steps by its own optimizer: use diloco, with "
                "inner_steps = 1, outer_lr = 1.0 and outer_momentum = 0.0 for an exchange after each step"
            )
        if self.model.is_complete and (self.method.strides or 0) > self.model.layers:
            raise ValueError(f"method.strides is {self.method.strides}, but the model has {self.model.layers} layers")
        if self.method.name == "sparseloco" and self.codec.scatter not in SPARSELOCO_CODECS:
            raise ValueError(f"codec.scatter of sparseloco must be one of {', '.join(SPARSELOCO_CODECS)}")
        if self.method.name == "sparseloco" and self.codec.gather == "topk":
            raise ValueError("codec.gather of sparseloco must not be topk: what it leaves out of a mean is lost")
        if self.method.name == "gossip" and self.codec.scatter not in WEIGHT_CODECS:
            raise ValueError(f"codec.scatter of gossip, which sends weights, must be one of {', '.join(WEIGHT_CODECS)}")
        return self

    @field_validator("protocol", mode="before")
    @classmethod
    def _same_protocol(cls, value: object) -> object:
        if type(value) is int and value != PROTOCOL:
            raise ValueError(f"this version speaks protocol {PROTOCOL}, the run {value}: upgrade the older one")
        return value

    def canonical(self) -> bytes:
        """The bytes that are hashed, signed and sent."""
        table = self.model_dump(mode="json")
        table["method"] = self.method.canonical(table["method"])
        absent = {"origin": self.origin is None, "experts": self.experts is None, "public": not self.public}
        for key in (key for key, is_absent in absent.items() if is_absent):
            del table[key]
        if self.experts is not None:
            table["experts"] = self.experts.canonical(table["experts"])
        if self.rounds.pace == "deadline":
            del table["rounds"]["pace"]
        table["data"] = self.data.canonical(table["data"])
        packed: bytes = msgpack.packb(_sorted(table))
        return packed

    def completes(self, draft: Manifest) -> bool:
        """Whether this is `draft` with what the founder's node fills in: digests of data, the model's rest, origin."""
        added: dict[str, Any] = {"data": self.data}
        if self.data.name != draft.data.name or draft.data.digest not in ("", self.data.digest):
            return False
        if not draft.model.is_complete and self.model.completes(draft.model):
            added |= {"model": self.model, "origin": self.origin}
        if self.experts is not None and draft.experts is not None and self.experts.completes(draft.experts):
            added["experts"] = self.experts
        return draft.data.pieces in ("", self.data.pieces) and self == draft.model_copy(update=added)

    @property
    def lacks_weights(self) -> bool:
        """Whether its first weights are undefined: they follow neither from the seed number nor from an origin."""
        return self.model.name not in FROM_SEED and (self.origin is None or not self.model.is_complete)

    @property
    def first_round(self) -> int:
        """The number of the run's first round."""
        return self.origin.round + 1 if self.origin else 1

    @model_validator(mode="after")
    def _experts_fit(self) -> Manifest:
        if (self.method.name == "experts") != (self.experts is not None):
            raise ValueError('a table [experts] comes with method.name = "experts", and with that only')
        if self.experts is not None:
            self.experts.check(self.name, self.data, self.method.inner_steps, self.rounds.last)
            check_router(self.model, self.experts)
        return self

    @model_validator(mode="after")
    def _is_decided_by_a_log(self) -> Manifest:
        if self.trust != TrustSpec() and self.experts is not None:
            raise ValueError("a family of experts decides nothing by votes, so [trust] means nothing: leave it out")
        return self

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Manifest:
        if self.rounds.last is not None and self.rounds.last < self.first_round:
            raise ValueError(f"rounds.last is {self.rounds.last}, but the run begins with round {self.first_round}")
        return self

    @property
    def digest(self) -> Digest:
        """SHA-256 of the canonical bytes. Runs of one manifest have it in common; their ids differ."""
        return manifest_digest(self.canonical())


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a newcomer is told about a run: its checked genesis, and some members with their addresses.

    The first member is the peer that answered. `present`, `round` and `pace` are its unchecked claims about the run's
    progress, and are only shown to people.
    """

    manifest: Manifest
    genesis: Genesis
    members: dict[PeerId, tuple[str, ...]]
    present: int = 0
    round: int = 0
    pace: float = 0.0
    anchor: Anchor | None = None  # an entry of its log, which whoever gave us its link knew

    @property
    def run(self) -> RunId:
        """The run's id."""
        return self.genesis.run


Sign = Callable[[Manifest], Introduction]
"""Founds a run of a complete manifest, so far on paper: with this node's signature and a nonce, and without members."""


def load_manifest(path: Path) -> Manifest:
    """Reads the manifest in a TOML file; LocalError says in which line, which key is wrong, and what it may be."""
    return parse_manifest(manifest_text(path), shown(path))


def manifest_text(path: Path) -> str:
    """The text of a TOML file with the config.json in it whose path it names; LocalError if they cannot be read."""
    return with_config(read_text(path, "the manifest", MAX_MANIFEST), path.parent)


def parse_manifest(text: str, origin: str = "manifest") -> Manifest:
    """Parses the manifest in a TOML text; `origin` names it in the LocalError that is raised if it is invalid."""
    if len(text) > MAX_MANIFEST:
        raise LocalError(f"{origin} is larger than {MAX_MANIFEST >> 10} KiB", code="manifest-wrong")
    text = text.removeprefix(MARK)
    try:
        table = _tuples(tomllib.loads(text))
        _check_protocol(table, f"{origin}: ")
        return Manifest.model_validate(table)
    except tomllib.TOMLDecodeError as error:
        raise LocalError(f"{origin} is not TOML: {error}{_remedy(str(error))}", code="manifest-wrong") from error
    except ValidationError as error:
        line = line_of(text, key_of(error, Manifest).split("."))
        where = f"{origin}, line {line}" if line is not None else origin
        raise LocalError(f"{where}: {explain(error, Manifest)}", code="manifest-wrong") from error
    except (ValueError, RecursionError) as error:
        raise LocalError(f"{origin}: nested too deeply, or a number too long", code="manifest-wrong") from error


def _remedy(error: str) -> str:
    """What to do about a mistake in TOML that is often made; empty if the error says enough."""
    if error.startswith("Invalid value"):
        return "; a text stands in quotes, and true and false are written in small letters"
    return "; a line is a [table], or key = value" if error.startswith("Expected '='") else ""


def decode_manifest(data: bytes, sender: PeerId | None = None) -> Manifest:
    """Decodes a manifest in canonical bytes.

    Raises RemoteError unless it is valid, and NewerProtocol if it is for a later version of Shoal.
    """
    if len(data) > MAX_MANIFEST:
        raise RemoteError(f"the manifest it sent has {len(data)} bytes", sender)
    try:
        table = _tuples(msgpack.unpackb(data, strict_map_key=True))
        _check_protocol(table)
        manifest = Manifest.model_validate(table)
    except ValidationError as error:
        reason = explain(error, Manifest)
        raise RemoteError(f"this version does not understand the run's manifest: {reason}", sender) from error
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteError(f"the run's manifest is malformed: {error}", sender) from error
    if manifest.canonical() != data:
        raise RemoteError("the manifest it sent is not in canonical form", sender)
    return manifest


def _check_protocol(table: Any, where: str = "") -> None:
    """Comes before validation, which would take keys of a later version for mistakes."""
    protocol = table.get("protocol") if isinstance(table, dict) else None
    if type(protocol) is int and protocol > PROTOCOL:
        raise NewerProtocol(
            f"{where}the run speaks protocol {protocol}, and this version of Shoal {PROTOCOL}: upgrade Shoal on this "
            "machine"
        )


def check_manifest(genesis: Genesis, signer: Signer, shown_by: PeerId | None = None) -> Manifest:
    """The manifest in a genesis; RemoteError, which names `shown_by`, if that is invalid, or not signed by its author.

    `signer` verifies in the context of the run.
    """
    check_genesis(genesis, signer, shown_by)
    manifest = decode_manifest(genesis.manifest, shown_by or genesis.author)
    if manifest.lacks_weights:
        raise RemoteError(
            "the manifest names a model but not its first weights: nobody could begin", shown_by or genesis.author
        )
    return manifest


def _sorted(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _sorted(item[key]) for key in sorted(item)}
    return [_sorted(each) for each in item] if isinstance(item, list) else item


def _tuples(item: Any, depth: int = 0) -> Any:
    """Turns lists into tuples, which the strict schema requires; ValueError if nested too deeply."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if isinstance(item, dict):
        return {key: _tuples(each, depth + 1) for key, each in item.items()}
    return tuple(_tuples(each, depth + 1) for each in item) if isinstance(item, list) else item
