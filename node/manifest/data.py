"""A manifest's `[data]`: which text a run learns from, and what its tokens are.

- `stdlib`: the running Python's standard library.
- `files`: text that its founder chooses (node/training/data/): a member that lacks it downloads it from others.
- `stream`: a dataset of Hugging Face's hub, read while it is trained on.
- `digits`: scikit-learn's pictures of digits (node/diffusion/pictures.py), for models of pictures.
- `own`: data that only the members' scripts know; goes with models of kind custom.

A token is a byte, unless there is a `tokenizer`: the name of a file among the data, or `hub:owner/name@revision`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from shoal.node.manifest.base import Count, HexDigest, Spec


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of tables are read; without `text`, a table is read as plain text."""

    text: str = ""
    domain: str = ""  # the column that says which domain a row belongs to, as a word or number; empty: there is none

    def __bool__(self) -> bool:
        return bool(self.text)

    @property
    def wanted(self) -> list[str]:
        """The names of all columns that are read."""
        return [self.text, self.domain] if self.domain else [self.text]

    @property
    def words(self) -> str:
        """Their names, in a sentence."""
        return " and ".join(f"a column {column!r}" for column in self.wanted)


NO_COLUMNS = Columns()


HUB: Final = "hub:"
REVISION = r"[0-9a-f]{40}"  # a commit, as a branch would mean other text tomorrow
PART = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"
DATASET = f"{PART}/{PART}"  # with an owner: for a bare name, `datasets` takes one of its readers of local files
REPOSITORY = f"{PART}(/{PART})?"
OPTIONAL_KEYS = ("tokenizer", "end_of_text", "column", "domain", "stream", "only", "cluster")  # canonical only if given
MAX_PATTERNS = 64
MAX_GROUPS = 32  # the limit of a family's parts
LEARNED = ("words", "pixels")  # features that are clustered: a file has the centres (node/training/data/partition.py)
Pattern = Annotated[str, Field(min_length=1, max_length=256)]
TOKENIZER = rf"^(hub:{REPOSITORY}@{REVISION}|[A-Za-z0-9][A-Za-z0-9_.-]{{0,95}})?$"


class StreamSpec(Spec):
    """A dataset of Hugging Face's hub, at one commit."""

    dataset: Annotated[str, Field(pattern=rf"^{DATASET}$")]
    revision: Annotated[str, Field(pattern=rf"^{REVISION}$")]
    subset: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,96}$")] = ""
    split: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,96}$")] = "train"


class ClustersSpec(Spec):
    """How a family's data are cut into groups, in place of patterns for each part.

    `words`: by balanced k-means over tf-idf. `pixels`: by balanced k-means over the pixels of pictures. `random`: by a
    hash of the sample's name, as a baseline.
    """

    count: Annotated[int, Field(ge=2, le=MAX_GROUPS)]
    by: Literal["words", "pixels", "random"] = "words"
    seed: Count = 0
    file: HexDigest = ""  # BLAKE3 of the partition's file, filled in by the founder

    @model_validator(mode="after")
    def _has_its_file(self) -> ClustersSpec:
        if self.file and not self.is_learned:
            raise ValueError(f'groups by = "{self.by}" need no file: leave it out')
        return self

    @property
    def is_learned(self) -> bool:
        """Whether groups are learned from the data, so that a file has their centres."""
        return self.by in LEARNED

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parts that the groups become."""
        return tuple(f"cluster-{number}" for number in range(self.count))


class ClusterSpec(Spec):
    """One of the groups; or all of them (number None), each sample labelled with its group, to train a router."""

    groups: ClustersSpec
    number: Annotated[int, Field(ge=0, lt=MAX_GROUPS)] | None

    @model_validator(mode="after")
    def _is_one_of_them(self) -> ClusterSpec:
        if self.number is not None and self.number >= self.groups.count:
            raise ValueError(f"there is no group {self.number} of {self.groups.count}")
        return self


class DataSpec(Spec):
    """Which text, and which tokens."""

    name: Literal["stdlib", "files", "stream", "digits", "own"] = "stdlib"
    digest: HexDigest = ""  # of `files`: the hash of the text, which every member must have
    pieces: HexDigest = ""  # root of the tree of its pieces' hashes; empty: only nodes that have the text can join
    size: Annotated[int, Field(ge=0, le=2**42)] = 0  # bytes of all pieces; the limit bounds the height of the tree
    tokenizer: Annotated[str, Field(pattern=TOKENIZER)] = ""  # empty: bytes
    end_of_text: Annotated[str, Field(max_length=64)] = ""  # the token after each text; empty: none
    column: Annotated[str, Field(max_length=64)] = (
        ""  # of tables (JSON, CSV, parquet), whose rows are texts; empty: tables are read as plain text
    )
    domain: Annotated[str, Field(max_length=64)] = ""  # column of tables whose value comes first in a row's name
    stream: StreamSpec | None = None
    only: Annotated[tuple[Pattern, ...], Field(max_length=MAX_PATTERNS)] = ()  # texts by relative path; empty: all
    cluster: ClusterSpec | None = None  # of the texts that `only` leaves, one group of like texts; None: all

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
        """The columns of tables that are read."""
        return Columns(self.column, self.domain)

    def takes(self, name: str) -> bool:
        """Whether `only` selects the text with this relative path; `*` in a pattern matches slashes, too."""
        return not self.only or any(fnmatchcase(name, pattern) for pattern in self.only)

    @property
    def is_from_hub(self) -> bool:
        """Whether its tokenizer comes from the hub."""
        return self.tokenizer.startswith(HUB)

    def canonical(self, table: dict[str, Any]) -> dict[str, Any]:
        """`table`, which is this spec as JSON, without optional keys that are not given."""
        absent = {key for key in OPTIONAL_KEYS if not getattr(self, key)}
        if not self.pieces:
            absent |= {"pieces", "size"}
        return {key: value for key, value in table.items() if key not in absent}
