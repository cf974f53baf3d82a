"""How a manifest says that the data are cut into groups of like samples, and which of the groups a run is about."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from shoal.node.manifest.base import Count, HexDigest, Spec

MAX_GROUPS = 32  # as many as a family may have parts
LEARNED = ("words", "pixels")  # features of which a partition's file knows the centres (training/data/partition.py)


class ClustersSpec(Spec):
    """The groups of a family's data, in place of patterns for each part.

    `words`: by balanced k-means over tf-idf. `pixels`: over the pixels of pictures. `random`: by a hash of the sample's
    name, to be compared with.
    """

    count: Annotated[int, Field(ge=2, le=MAX_GROUPS)]
    by: Literal["words", "pixels", "random"] = "words"
    seed: Count = 0
    file: HexDigest = ""  # of the partition, filled in by the founder: BLAKE3

    @model_validator(mode="after")
    def _has_its_file(self) -> ClustersSpec:
        if self.file and not self.is_learned:
            raise ValueError(f'groups by = "{self.by}" need no file: leave it out')
        return self

    @property
    def is_learned(self) -> bool:
        """Whether groups follow from the data, so that there is a file that says where they lie."""
        return self.by in LEARNED

    @property
    def names(self) -> tuple[str, ...]:
        """The parts' names."""
        return tuple(f"cluster-{number}" for number in range(self.count))


class ClusterSpec(Spec):
    """One group of them; or all, each sample known by its group, as a router needs it."""

    groups: ClustersSpec
    number: Annotated[int, Field(ge=0, lt=MAX_GROUPS)] | None

    @model_validator(mode="after")
    def _is_one_of_them(self) -> ClusterSpec:
        if self.number is not None and self.number >= self.groups.count:
            raise ValueError(f"there is no group {self.number} of {self.groups.count}")
        return self
