"""Reads ensemble.json, which says what experts a folder holds (node/experts/ensemble.py writes it), and checks files.

Rules:
- Files are named without a path, and used only if their bytes have the hash that the table gives.
- The table's other entries (cards, losses) are for people, and are ignored here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal.node.base.explain import explain
from shoal.node.base.textfile import read_text
from shoal.node.manifest.base import RequiredDigest
from shoal.node.manifest.model import AnyModel, PictureSpec
from shoal.protocol.base.errors import LocalError

ENSEMBLE = "ensemble.json"
MAX_TABLE = 64 << 20
FETCH = "fetch the experts again"

Prior = Annotated[float, Field(ge=0)]


class Entry(BaseModel):
    """One expert."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,100}\.safetensors$")]
    blake3: RequiredDigest
    prior: Prior = 1.0  # relative to the other experts': they need not sum to 1
    tokens: Annotated[int, Field(ge=0, le=2**62)] = 0  # it was trained on
    model: AnyModel

    @property
    def key(self) -> str:
        """Identifies the name, the weights and the model together."""
        return f"{self.name} {self.blake3} {self.model.model_dump_json()}"


class Tokens(BaseModel):
    """The experts' vocabulary: bytes, or a tokenizer."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    kind: Literal["bytes", "tokenizer"]
    file: Literal["tokenizer.json"] = "tokenizer.json"
    blake3: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""  # empty: it was not available to be fetched
    end_of_text: Annotated[str, Field(max_length=64)] = ""  # the token that ends a text; empty: none does


class Table(BaseModel):
    """The content of ensemble.json."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    format: Literal[1]
    name: Annotated[str, Field(min_length=1, max_length=100)]
    tokens: Tokens | None = None  # None: an older version of Shoal wrote the table
    experts: tuple[Entry, ...]


def read_table(folder: Path) -> Table:
    """The folder's table; LocalError if there is none, or it cannot be served."""
    path = folder / ENSEMBLE
    try:
        table = Table.model_validate_json(read_text(path, limit=MAX_TABLE))
    except ValidationError as error:
        raise LocalError(f"{path} is no table of experts: {explain(error, Table)}", code="experts-wrong") from error
    if not table.experts:
        raise LocalError(f"{path} names no experts: {FETCH} once one has been published", code="experts-wrong")
    names = [each.name for each in table.experts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise LocalError(f"{path} names the expert {twice[0]} twice", code="experts-wrong")
    if not sum(each.prior for each in table.experts) > 0:
        raise LocalError(f"{path} gives no expert a prior above zero", code="experts-wrong")
    return table


def is_of_pictures(folder: Path) -> bool:
    """Whether a folder holds experts on pictures; LocalError if its table cannot be read."""
    if not os.path.exists(folder / ENSEMBLE):  # unlike Path's, False for a name that no file could have
        return False
    return isinstance(read_table(folder).experts[0].model, PictureSpec)


def vocab_of(table: Table) -> int:
    """The vocabulary size of all experts; LocalError if they differ."""
    first = table.experts[0]
    for each in table.experts[1:]:
        if each.model.vocab != first.model.vocab:
            raise LocalError(
                f"the expert {each.name} knows {each.model.vocab:,} tokens, and {first.name} {first.model.vocab:,}: "
                f"experts can be mixed only if their tokens are the same",
                code="experts-differ",
            )
    return first.model.vocab


def checked(folder: Path, entry: Entry) -> Path:
    """The path of an expert's file; LocalError if it is missing, empty or does not have its hash."""
    path = folder / entry.file
    try:
        if not os.path.getsize(path):
            raise LocalError(f"the file of the expert {entry.name} is empty, {path}: {FETCH}", code="expert-damaged")
        found = blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
    except OSError as error:
        raise LocalError(
            f"cannot read the file of the expert {entry.name}, {path}: {error.strerror}", code="unreadable"
        ) from error
    if found != entry.blake3:
        raise LocalError(
            f"{path} is not the expert {entry.name}: its hash is {found[:8]}, not {entry.blake3[:8]}: {FETCH}",
            code="expert-damaged",
        )
    return path
