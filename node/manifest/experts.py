"""A manifest's `[experts]`: the parts into which the data of a family are cut, and how far each expert is trained.

- Parts are either named by the author, each with the texts whose relative paths match one of its patterns (parts may
  overlap); or they are clusters of like texts that the founder finds (partition.py). Clusters are named cluster-0,
  cluster-1 and so on, and are listed only if they have steps or a model of their own.
- A family of experts on pictures also has a router: a part whose model is of kind router, trained by any free member.
- Experts begin with the family's seed weights, which are its manifest's `[origin]`. A part with a model of its own
  begins with seed weights for that model. Without seed weights they are initialised from the manifest's seed number,
  which only Shoal's own models can be.
"""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from shoal.node.base.keys import Form, Help
from shoal.node.manifest.base import Count, RequiredDigest, Spec
from shoal.node.manifest.data import MAX_PATTERNS, ClusterSpec, ClustersSpec, DataSpec, Pattern
from shoal.node.manifest.model import AnyModel, AnySeeded, FlowSpec, PictureSpec, RouterSpec

MAX_PARTS = 32  # the records of so many, and of their holders, fit into one answer of the DHT
MAX_SEEDS = 4  # beside the family's own; every member keeps each of them
MAX_NAME = 64  # characters of a run's name
Steps = Annotated[int, Field(ge=1, le=2**40)]


class SeedSpec(Spec):
    """The file with the first weights of a part that has its own model."""

    file: Annotated[RequiredDigest, Help("Its BLAKE3 hash.", is_filled_in=True)]
    tokens: Annotated[Count, Help("On how many tokens the weights were trained.", unit="tokens", is_filled_in=True)]


class PartSpec(Spec):
    """One part of the data, and the expert that is trained on it."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$"),
        Form("1 to 32 letters, digits and any of _ -, of which the first is a letter or digit"),
        Help("The part's name, which its expert has as well; of a cluster cluster-0, cluster-1 and so on."),
    ]
    only: Annotated[
        tuple[Pattern, ...],
        Field(max_length=MAX_PATTERNS),
        Help("Patterns of relative paths, as docs/*: the part has texts that match one; * stands for slashes, too."),
    ] = ()
    steps: Annotated[
        Steps | None,
        Help(
            "How many steps its expert is trained for, whole rounds; without it as many as experts.steps says.",
            unit="steps",
            larger="its expert learns more, and is finished later",
            smaller="its expert is finished sooner",
        ),
    ] = None
    model: Annotated[AnySeeded | None, Help("A model of its own; without it the part has the family's.")] = None
    seed: Annotated[
        SeedSpec | None, Help("The first weights of a part with a model of its own.", is_filled_in=True)
    ] = None

    @property
    def is_router(self) -> bool:
        """Whether this part is the router and not an expert: a router is trained on the data of all parts."""
        return isinstance(self.model, RouterSpec)


class ExpertsSpec(Spec):
    """A family of experts: into which parts the data are cut, and how far the expert of each part is trained."""

    steps: Annotated[
        Steps,
        Help(
            "How many steps each expert is trained for; whole rounds of method.inner_steps.",
            unit="steps",
            larger="experts learn more, and are finished later",
            smaller="experts are finished sooner",
        ),
    ] = 1000
    publish_every: Annotated[
        int,
        Field(ge=1, le=1_000_000),
        Help(
            "After how many rounds an expert's file is published anew.",
            unit="rounds",
            larger="less traffic, and more work is lost if the expert's machine dies",
            smaller="more traffic, and less is lost",
        ),
    ] = 10
    clusters: ClustersSpec | None = None  # None: parts are defined by patterns
    parts: Annotated[tuple[PartSpec, ...], Field(min_length=1, max_length=MAX_PARTS)]  # an ensemble uses their order

    @model_validator(mode="before")
    @classmethod
    def _all_groups(cls, table: Any) -> Any:
        """Adds the clusters that the manifest does not list, so that all are parts, in order."""
        if not isinstance(table, dict) or not (clusters := table.get("clusters")):
            return table
        listed = table.get("parts", ())
        if not isinstance(listed, tuple) or not all(isinstance(each, dict) for each in listed):
            return table
        try:
            names = ClustersSpec.model_validate(clusters).names
        except ValidationError:
            return table  # validation of the field reports it
        groups = (tuple(each for each in listed if each.get("name") == name) or ({"name": name},) for name in names)
        rest = (each for each in listed if each.get("name") not in names)  # a manifest from a peer may hold any names
        return {**table, "parts": (*chain.from_iterable(groups), *rest)}

    @model_validator(mode="after")
    def _have_data(self) -> ExpertsSpec:
        for part in self.parts:
            if self.clusters is None and not part.only:
                raise ValueError(f'the part {part.name} has no data: give it patterns, as only = ["{part.name}/*"]')
            if self.clusters is not None:
                self._check_group(part, self.clusters.names)
        return self

    @staticmethod
    def _check_group(part: PartSpec, names: tuple[str, ...]) -> None:
        are = f"the clusters are {names[0]} to {names[-1]}"
        if part.only:
            raise ValueError(f"the part {part.name} has patterns, and {are}: give one or the other")
        if part.is_router and part.name in names:
            raise ValueError(f"the part {part.name} is a cluster's, and has a router's model: {are}")
        if not part.is_router and part.name not in names:
            raise ValueError(f"the part {part.name} is not one of clusters, and no router: {are}")

    @model_validator(mode="after")
    def _names_differ(self) -> ExpertsSpec:
        names = [part.name.lower() for part in self.parts]  # they become files, maybe on disks that ignore case
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two parts are named {twice[0]}")
        return self

    @model_validator(mode="after")
    def _seeds_fit(self) -> ExpertsSpec:
        models = dict[str, tuple[AnySeeded, SeedSpec]]()
        for part in self.parts:
            if part.seed is None:
                continue
            if part.model is None:
                raise ValueError(f"the part {part.name} has a seed but no model of its own: leave the seed out")
            if models.setdefault(part.seed.file, (part.model, part.seed)) != (part.model, part.seed):
                raise ValueError(f"the seed of the part {part.name} is that of a part with another model")
        if len(self.seeded) > MAX_SEEDS:
            raise ValueError(f"parts have {len(self.seeded)} seeds of their own, over {MAX_SEEDS}")
        return self

    def check(self, family: str, data: DataSpec, inner_steps: int, last: int | None) -> None:
        """ValueError unless a family of this name, data and rounds can be."""
        if data.name not in ("stdlib", "files", "digits") or data.cluster or (data.only and self.clusters is None):
            raise ValueError(
                "experts have parts of stdlib, files or digits, and clusters or `only` of each part says which"
            )
        if self.clusters is not None and self.clusters.by == ("words" if data.name == "digits" else "pixels"):
            raise ValueError('clusters of digits are by = "pixels", and those of texts by = "words"; or "random"')
        if last is not None:
            raise ValueError("rounds.last of an expert follows from its steps: leave it out")
        for part in self.parts:
            if self.steps_of(part) % inner_steps:
                raise ValueError(
                    f"the part {part.name} has {self.steps_of(part)} steps, which are no whole rounds of "
                    f"method.inner_steps = {inner_steps}"
                )
            if len(f"{family}.{part.name}") > MAX_NAME:
                raise ValueError(f"the name {family}.{part.name} is over {MAX_NAME} characters")

    def part(self, name: str) -> PartSpec | None:
        """The part with that name; None if there is none."""
        return next((part for part in self.parts if part.name == name), None)

    def data_of(self, part: PartSpec, data: DataSpec) -> DataSpec:
        """The `[data]` of the part's run, made from that of the family."""
        if self.clusters is None:
            return DataSpec.model_validate(data.model_dump() | {"only": part.only})
        number = None if part.is_router else self.clusters.names.index(part.name)
        cluster = ClusterSpec(groups=self.clusters, number=number)
        return DataSpec.model_validate(data.model_dump() | {"cluster": cluster.model_dump()})

    @property
    def seeded(self) -> tuple[PartSpec, ...]:
        """For each seed file that parts have of their own, the first part with it."""
        first = dict[SeedSpec, PartSpec]()
        for part in self.parts:
            if part.seed is not None:
                first.setdefault(part.seed, part)
        return tuple(first.values())

    def with_seed(self, model: AnyModel, seed: SeedSpec) -> ExpertsSpec:
        """A copy in which all parts whose own model is `model` begin with the seed file."""
        parts = (part.model_copy(update={"seed": seed}) if part.model == model else part for part in self.parts)
        return self.model_copy(update={"parts": tuple(parts)})

    def with_file(self, file: str) -> ExpertsSpec:
        """A copy that names the partition's file, by its BLAKE3."""
        assert self.clusters is not None
        return self.model_copy(update={"clusters": self.clusters.model_copy(update={"file": file})})

    def completes(self, draft: ExpertsSpec) -> bool:
        """Whether this is `draft` with the name of the partition's file filled in."""
        clusters = self.clusters
        return clusters is not None and draft.clusters is not None and draft.with_file(clusters.file) == self

    def canonical(self, table: dict[str, Any]) -> dict[str, Any]:
        """`table`, which is this spec as JSON, without optional keys that are not given."""
        parts = [{key: value for key, value in part.items() if key != "seed" or value} for part in table["parts"]]
        return {key: value for key, value in table.items() if key != "clusters" or value} | {"parts": parts}

    def steps_of(self, part: PartSpec) -> int:
        """How many inner steps the part's expert is trained for."""
        return part.steps or self.steps


def check_router(model: AnyModel, experts: ExpertsSpec) -> None:
    """Checks that a family of experts on pictures has one router, which fits them, and that no other family has one.

    Raises ValueError.
    """
    routers = [part.model for part in experts.parts if isinstance(part.model, RouterSpec)]
    if not isinstance(model, PictureSpec):
        if routers:
            raise ValueError("a router tells between experts on pictures, and these are on text: leave it out")
        return
    if not isinstance(model, FlowSpec):
        raise ValueError("the experts of a family of pictures are of kind flow; only a part of it is a router")
    if len(routers) != 1 or experts.clusters is None:
        raise ValueError(
            'experts on pictures need clusters and one router: a part with [experts.parts.model] name = "router"'
        )
    router = routers[0]
    if router.experts != experts.clusters.count:
        raise ValueError(f"the router knows {router.experts} clusters, and there are {experts.clusters.count}")
    others = [part.model for part in experts.parts if isinstance(part.model, PictureSpec)]
    if any((each.side, each.classes) != (model.side, model.classes) for each in others):
        raise ValueError("all models of a family see pictures of one size and the same classes")
