"""Reads what the node says of a family's experts, for processes that ask experts, and for those that answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal.node.api.client import Client
from shoal.node.base.explain import explain
from shoal.node.base.home import Home
from shoal.node.manifest.base import RequiredDigest
from shoal.node.manifest.manifest import Manifest, decode_manifest
from shoal.node.manifest.model import AnyModel
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, PeerId


class File(BaseModel):
    """A file of an expert, after some round; `peers` answer for it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    file: RequiredDigest
    round: int
    finished: bool
    path: str | None
    peers: tuple[str, ...]

    @property
    def digest(self) -> Digest:
        """The file's hash."""
        return Digest(bytes.fromhex(self.file))


class Part(BaseModel):
    """A part's expert and its files, those of later rounds first."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    part: Annotated[str, Field(max_length=64)]
    model: AnyModel
    files: tuple[File, ...]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    family: RequiredDigest
    name: str
    me: str
    socket: str
    manifest: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the experts of a family can be had, as far as this machine's node knows."""

    manifest: Manifest
    me: PeerId
    socket: str  # of the node's proxy
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """This machine's node, asked about one family."""

    home: Home
    family: str

    def sources(self) -> Sources:
        """LocalError if there is no node, or it is not in the family; TransportError if it does not answer."""
        reply = Client(self.home).expert_sources(self.family)
        try:
            answer = _Answer.model_validate(reply)
        except ValidationError as error:
            raise LocalError(
                f"the node says of its experts what cannot be: {explain(error, _Answer)}", code="other-version"
            ) from error
        manifest = decode_manifest(bytes.fromhex(answer.manifest))
        return Sources(manifest, PeerId(answer.me), answer.socket, answer.parts)

    def socket(self) -> str:
        """The path of the proxy's socket."""
        return self.sources().socket


def path_of(file: File) -> Path:
    """The path of a file that is on this machine."""
    assert file.path is not None
    return Path(file.path)
