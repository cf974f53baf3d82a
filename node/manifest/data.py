"""A manifest's `[data]`: which text a run learns from, and what its tokens are.

- `stdlib`: the running Python's standard library.
- `files`: text that its founder names, see node/training/data/: a member that lacks it downloads it from others.
- `stream`: a dataset of Hugging Face's hub, read while it is trained on.
- `digits`: scikit-learn's pictures of digits (node/diffusion/pictures.py), for models of pictures.
- `own`: the data of members' scripts, which are not known here; with models of kind custom.
- A token is a byte, unless there is a `tokenizer`: the name of a file among the data, or `hub:owner/name@revision`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from shoal.node.manifest.base import HexDigest, Spec
from shoal.node.manifest.partition import ClusterSpec


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of tables are read; without `text`, a table is a file like any other."""

    text: str = ""
    domain: str = ""  # says where a row belongs, as a word or number; empty: nothing does

    def __bool__(self) -> bool:
        return bool(self.text)

    @property
    def wanted(self) -> list[str]:
        """The names of all."""
        return [self.text, self.domain] if self.domain else [self.text]

    @property
    def words(self) -> str:
        """Their names, in a sentence."""
        return " and ".join(f"a column {column!r}" for column in self.wanted)


NO_COLUMNS = Columns()


HUB: Final = "hub:"
REVISION = r"[0-9a-f]{40}"  # a commit: a branch's name would mean other text tomorrow
PART = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"
DATASET = f"{PART}/{PART}"  # with an owner: a bare name would be one of the library's readers of local files
REPOSITORY = f"{PART}(/{PART})?"
PLAIN = ("tokenizer", "end_of_text", "column", "domain", "stream", "only", "cluster")  # written where they are given
MAX_PATTERNS = 64
Pattern = Annotated[str, Field(min_length=1, max_length=256)]
TOKENIZER = rf"^(hub:{REPOSITORY}@{REVISION}|[A-Za-z0-9][A-Za-z0-9_.-]{{0,95}})?$"


class StreamSpec(Spec):
    """A dataset of the hub, at one commit."""

    dataset: Annotated[str, Field(pattern=rf"^{DATASET}$")]
    revision: Annotated[str, Field(pattern=rf"^{REVISION}$")]
    subset: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,96}$")] = ""
    split: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,96}$")] = "train"


class DataSpec(Spec):
    """Which text, and which tokens."""

    name: Literal["stdlib", "files", "stream", "digits", "own"] = "stdlib"
    digest: HexDigest = ""  # of `files`: what every member must have
    pieces: HexDigest = ""  # the root of the tree of its pieces' hashes; empty: only who has the text can be a member
    size: Annotated[int, Field(ge=0, le=2**42)] = 0  # bytes of all its pieces; more, and the tree would be higher
    tokenizer: Annotated[str, Field(pattern=TOKENIZER)] = ""  # empty: bytes
    end_of_text: Annotated[str, Field(max_length=64)] = ""  # the token after each text; empty: none
    column: Annotated[str, Field(max_length=64)] = (
        ""  # of tables (JSON, CSV, parquet): each row is a text; empty: none are
    )
    domain: Annotated[str, Field(max_length=64)] = ""  # of tables: comes first in a row's name; empty: nothing does
    stream: StreamSpec | None = None
    only: Annotated[tuple[Pattern, ...], Field(max_length=MAX_PATTERNS)] = ()  # texts by relative path; empty: all
    cluster: ClusterSpec | None = None  # of what `only` leaves: one group of like texts; None: all

    @model_validator(mode="after")
    def _pieces_are_of_something(self) -> DataSpec:
        if self.pieces and (self.name != "files" or not self.digest or not self.size):
            raise ValueError("pieces are those of `files`, and come with digest and size")
        if self.size and not self.pieces:
            raise ValueError("size comes with pieces")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> DataSpec:
        if (self.name == "stream") != (self.stream is not None):
            raise ValueError('a table [data.stream] comes with name = "stream"')
        if self.name == "stream" and not self.column:
            raise ValueError("a stream needs a column, whose text is read")
        if self.domain and (self.name != "files" or not self.column):
            raise ValueError("domain is a column of tables, beside the column whose text is read")
        if self.only and self.name not in ("stdlib", "files"):
            raise ValueError(f"`only` picks texts by their paths, and {self.name} has none")
        if self.cluster and self.name not in ("stdlib", "files", "digits"):
            raise ValueError(f"`cluster` picks texts or pictures, and {self.name} has none")
        if self.name == "digits" and (self.tokenizer or self.column):
            raise ValueError("digits are pictures, and have neither tokenizer nor column")
        if self.end_of_text and not self.tokenizer:
            raise ValueError("end_of_text is a token of a tokenizer; without one, a byte 0 ends each text")
        if self.tokenizer and not self.is_from_hub and self.name != "files":
            raise ValueError("a tokenizer that is a file is one of `files`; others are named hub:owner/name@revision")
        return self

    @property
    def columns(self) -> Columns:
        """Of tables, which are read."""
        return Columns(self.column, self.domain)

    def takes(self, name: str) -> bool:
        """Whether a text of this relative path is learned from: `*` in a pattern stands for slashes, too."""
        return not self.only or any(fnmatchcase(name, pattern) for pattern in self.only)

    @property
    def is_from_hub(self) -> bool:
        """Whether its tokenizer is the hub's."""
        return self.tokenizer.startswith(HUB)

    def canonical(self, table: dict[str, Any]) -> dict[str, Any]:
        """`table`, which is this as JSON, without what it does not have."""
        absent = {key for key in PLAIN if not getattr(self, key)} | (set() if self.pieces else {"pieces", "size"})
        return {key: value for key, value in table.items() if key not in absent}
