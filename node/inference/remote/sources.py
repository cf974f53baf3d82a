"""What the node says of a family's experts, read: for processes that ask them, and those that answer."""

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
from shoal.protocol.base.ids import Digest, PeerId, RunId


class File(BaseModel):
    """Of an expert, at some round."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    file: RequiredDigest
    round: int
    finished: bool
    path: str | None
    peers: tuple[str, ...]

    @property
    def digest(self) -> Digest:
        """Its name."""
        return Digest(bytes.fromhex(self.file))


class Part(BaseModel):
    """An expert, and its files, the furthest first."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    part: Annotated[str, Field(max_length=64)]
    model: AnyModel
    files: tuple[File, ...]


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    family: RequiredDigest
    name: str
    me: str
    socket: str
    manifest: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Sources:
    """Of one family, as this machine's node knows it."""

    manifest: Manifest
    me: PeerId
    socket: str  # of its proxy
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """This machine's, and the family that is asked about."""

    home: Home
    family: str

    def sources(self) -> Sources:
        """LocalError if there is no node, or if it is in no such family; TransportError if it does not answer."""
        answer = Client(self.home).expert_sources(self.family)
        try:
            told = _Told.model_validate(answer)
        except ValidationError as error:
            raise LocalError(f"the node says of its experts what cannot be: {explain(error, _Told)}") from error
        manifest = decode_manifest(bytes.fromhex(told.manifest), RunId(bytes.fromhex(told.family)))
        return Sources(manifest, PeerId(told.me), told.socket, told.parts)

    def socket(self) -> str:
        """The proxy's."""
        return self.sources().socket


def path_of(file: File) -> Path:
    """Where a file lies that is here."""
    assert file.path is not None
    return Path(file.path)
