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

from shoal.node.base.keys import Form, Help
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
    """A dataset of Hugging Face's hub, at one commit, that each member reads while it trains."""

    dataset: Annotated[
        str,
        Field(pattern=rf"^{DATASET}$"),
        Form('a name on the hub, as "owner/name"'),
        Help("The dataset's name on the hub. Only public datasets with an owner can be read."),
    ]
    revision: Annotated[
        str,
        Field(pattern=rf"^{REVISION}$"),
        Form("a commit, as 40 hexadecimal digits"),
        Help("The commit of the dataset, so that all members read the same one."),
    ]
    subset: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9_.-]{0,96}$"),
        Form("at most 96 letters, digits and any of _ . -"),
        Help("Which subset (configuration) of the dataset is read; empty: its only one."),
    ] = ""
    split: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9_.-]{1,96}$"),
        Form("1 to 96 letters, digits and any of _ . -"),
        Help("Which split of the dataset is read."),
    ] = "train"


class ClustersSpec(Spec):
    """How a family's data are cut into groups of like samples, in place of patterns for each part."""

    count: Annotated[
        int,
        Field(ge=2, le=MAX_GROUPS),
        Help(
            "How many groups there are, and so experts: the parts cluster-0, cluster-1 and so on.",
            unit="groups",
            larger="more experts, each with less data, that can train on more machines at once",
            smaller="fewer experts, each with more data",
        ),
    ]
    by: Annotated[
        Literal["words", "pixels", "random"],
        Help(
            'How samples are grouped. "words": texts with like words (balanced k-means over tf-idf); "pixels": '
            'pictures that look alike (balanced k-means); "random": by a hash of names, to compare with.'
        ),
    ] = "words"
    seed: Annotated[Count, Help("From which random numbers the groups follow; another number gives other groups.")] = 0
    file: Annotated[
        HexDigest, Help("The BLAKE3 hash of the file with the groups' centres, which members get.", is_filled_in=True)
    ] = ""

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
    """One of the groups; or all of them, each sample labelled with its group, to train a router."""

    groups: ClustersSpec
    number: Annotated[
        Annotated[int, Field(ge=0, lt=MAX_GROUPS)] | None,
        Help("Which of the groups it is, counted from 0.", is_filled_in=True),
    ]

    @model_validator(mode="after")
    def _is_one_of_them(self) -> ClusterSpec:
        if self.number is not None and self.number >= self.groups.count:
            raise ValueError(f"there is no group {self.number} of {self.groups.count}")
        return self


class DataSpec(Spec):
    """The data that a run learns from, and what its tokens are."""

    name: Annotated[
        Literal["stdlib", "files", "stream", "digits", "own"],
        Help(
            'Where the data come from. "stdlib": the sources of Python\'s standard library; "files": texts that the '
            'founder\'s node has (`--data`), and that members get from each other; "stream": a dataset of Hugging '
            'Face\'s hub, read while training; "digits": pictures of digits, for models of kind flow and router; '
            '"own": data that only the members\' scripts have, for models of kind custom.'
        ),
    ] = "stdlib"
    digest: Annotated[
        HexDigest, Help("Of `files`: the hash of the whole text, which every member must have.", is_filled_in=True)
    ] = ""
    pieces: Annotated[
        HexDigest,
        Help(
            "Of `files`: the root of the hashes of its pieces; without it only nodes that have the text can join.",
            is_filled_in=True,
        ),
    ] = ""
    size: Annotated[  # the limit bounds the height of the tree
        int, Field(ge=0, le=2**42), Help("Of `files`: the size of all pieces.", unit="bytes", is_filled_in=True)
    ] = 0
    tokenizer: Annotated[
        str,
        Field(pattern=TOKENIZER),
        Form("the name of a file among the data, or hub:owner/name@commit with the 40 digits of a commit"),
        Help("What makes tokens of texts: a tokenizer.json among the data, by name, or one of the hub; empty: bytes."),
    ] = ""
    end_of_text: Annotated[
        str,
        Field(max_length=64),
        Help("The tokenizer's token that stands after each text; empty: texts are joined as they are."),
    ] = ""
    column: Annotated[
        str,
        Field(max_length=64),
        Help(
            "Of tables (JSON, CSV, parquet) and streams: the column whose rows are texts; empty: tables are read as "
            "plain text."
        ),
    ] = ""
    domain: Annotated[
        str,
        Field(max_length=64),
        Help("Of tables: the column that says where a row belongs; its value begins the row's name; empty: none."),
    ] = ""
    stream: StreamSpec | None = None
    only: Annotated[
        tuple[Pattern, ...],
        Field(max_length=MAX_PATTERNS),
        Help("Patterns of relative paths, as docs/*: only texts that match one are read; * stands for slashes, too."),
    ] = ()
    cluster: Annotated[
        ClusterSpec | None,
        Help("Of the run of a family's part: which group of the data it has, after `only`.", is_filled_in=True),
    ] = None

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
