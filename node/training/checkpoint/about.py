"""checkpoint.json: the run, round and members of a checkpoint, and the hash of every file beside it.

The file ends with a seal, the BLAKE3 of all the rest, so damage is detected. The seal is not a signature: it does not
prove who made the checkpoint.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from blake3 import blake3
from pydantic import Field, ValidationError

from shoal.node.base.explain import explain
from shoal.node.manifest.base import MODEL_FILE, Count, FileFacts, RequiredDigest, Spec
from shoal.node.manifest.manifest import Manifest, decode_manifest
from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import PeerId

ABOUT = "checkpoint.json"
MODEL, INNER, OUTER, PRIVATE = MODEL_FILE, "inner.safetensors", "outer.safetensors", "private.safetensors"
FileName = Annotated[str, Field(pattern=r"^[a-z_]{1,32}\.safetensors$")]
MAX_ABOUT = 4 << 20
SEAL = "seal"


def file_of(vector: str) -> str:
    """The file of a vector of the committed state, by its name in methods/method.py (not imported: it needs torch)."""
    return {"parameters": MODEL, "momentum": OUTER}.get(vector, f"{vector}.safetensors")


class About(Spec):
    """The contents of checkpoint.json; digests are hex."""

    format: Literal[1] = 1
    run: RequiredDigest
    name: str
    round: Count
    history: RequiredDigest
    root: RequiredDigest  # of the state
    samples: Count  # tokens that the state was trained on
    members: tuple[str, ...]  # of this round, in the order that gives them their lanes in the next
    peer: str  # the peer that wrote this, and whose moments these are
    inner_steps: Count  # steps that the inner optimizer has made; 0: its state is not here
    manifest: str  # canonical, in hex
    saved_at: float  # Unix time by that machine's clock
    files: dict[FileName, FileFacts] = Field(default_factory=dict)

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        run: bytes,
        base: Base,
        members: tuple[PeerId, ...],
        *,
        samples: int,
        peer: PeerId,
        inner_steps: int,
    ) -> About:
        """The description of the state `base`, made by these members, as `peer` holds it; without its files yet.

        `run` is the run's id; of a state that a run is yet to begin with, the digest of the manifest.
        """
        return cls(
            run=run.hex(),
            name=manifest.name,
            round=base.round,
            history=base.history.hex(),
            root=base.root.hex(),
            samples=samples,
            members=members,
            peer=peer,
            inner_steps=inner_steps,
            manifest=manifest.canonical().hex(),
            saved_at=time.time(),
        )

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(each.bytes for each in self.files.values())

    def sealed(self) -> str:
        """The text of the file, with its seal."""
        table = self.model_dump(mode="json")
        return json.dumps({**table, SEAL: _seal(table)}, indent=1)

    def decoded_manifest(self) -> Manifest:
        """The run's manifest; LocalError if it is invalid."""
        try:
            return decode_manifest(bytes.fromhex(self.manifest))
        except (RemoteError, ValueError) as error:
            raise LocalError(
                f"the manifest in the checkpoint cannot be used: {error}", code="checkpoint-damaged"
            ) from error


def read_about(folder: Path) -> About:
    """Reads a checkpoint's description; LocalError if it is damaged, or a file is missing or has another size."""
    about = _parse(folder / ABOUT)
    for name, facts in about.files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            raise LocalError(f"{folder / name} cannot be read: {error.strerror}", code="unreadable") from error
        if size != facts.bytes:
            raise LocalError(f"{folder / name} has {size} bytes instead of {facts.bytes}", code="checkpoint-damaged")
    if MODEL not in about.files or (INNER in about.files) != bool(about.inner_steps):
        raise LocalError(f"{folder / ABOUT} does not name all files of a checkpoint", code="checkpoint-damaged")
    return about


def _parse(path: Path) -> About:
    try:
        with path.open("rb") as file:
            table: Any = json.loads(file.read(MAX_ABOUT + 1))
        if table.pop(SEAL) != _seal(table):
            raise LocalError(f"{path} is damaged: its seal is broken", code="checkpoint-damaged")
        return About.model_validate_json(json.dumps(table))
    except OSError as error:
        raise LocalError(f"{path} cannot be read: {error.strerror}", code="unreadable") from error
    except ValidationError as error:
        raise LocalError(
            f"{path} is not of this version: {explain(error, About)}", code="checkpoint-version"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LocalError(f"{path} is not the description of a checkpoint", code="checkpoint-damaged") from error


def _seal(table: dict[str, Any]) -> str:
    return blake3(json.dumps(table, sort_keys=True).encode()).hexdigest()
