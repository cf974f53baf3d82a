"""The base class and the field types that all tables of a manifest share, and of the files kept beside it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from shoal.node.base.keys import Form

Beta = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=0, le=2**53)]
HexDigest = Annotated[  # may be empty: the founder has not filled it in
    str, Field(pattern=r"^([0-9a-f]{64})?$"), Form("64 hexadecimal digits, or empty")
]
RequiredDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$"), Form("64 hexadecimal digits")]
MODEL_FILE = "model.safetensors"  # the file with a model's tensors, under the name that transformers uses


class Spec(BaseModel):
    """A table: frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class FileFacts(Spec):
    """The size and the hash of a whole file."""

    bytes: Count
    blake3: RequiredDigest
