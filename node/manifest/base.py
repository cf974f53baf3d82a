"""What all tables of a manifest, and of what is kept beside it, have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Beta = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=0, le=2**53)]
HexDigest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
Named = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
MODEL_FILE = "model.safetensors"  # of a model's tensors, as transformers calls it


class Spec(BaseModel):
    """A table: frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class FileFacts(Spec):
    """What one file is, whole."""

    bytes: Count
    blake3: Named
