"""A manifest's `[experts]`: into which parts the data of a family are cut, and how far each expert is trained.

- A part is named, and has the texts whose relative paths fit one of its patterns. Parts may overlap.
- Experts begin with the family's seed, which is its manifest's `[origin]`. Where there is none, or where a part has a
  model of its own, they begin with what the manifest's seed gives: so such a model is one of Shoal's own decoders.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from shoal.node.data_spec import MAX_PATTERNS, DataSpec, Pattern
from shoal.node.model_spec import ModelSpec
from shoal.node.spec import Spec

MAX_PARTS = 32  # whose records fit into one answer of the DHT, with those of their holders
MAX_NAME = 64  # characters of a run's name
Steps = Annotated[int, Field(ge=1, le=2**40)]


class PartSpec(Spec):
    """One expert."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")]
    only: Annotated[tuple[Pattern, ...], Field(max_length=MAX_PATTERNS)] = ()
    steps: Steps | None = None  # inner steps; None: as many as the family's experts make
    model: ModelSpec | None = None  # None: the family's

    @model_validator(mode="after")
    def _has_data(self) -> PartSpec:
        if not self.only:
            raise ValueError(f'the part {self.name} has no data: give it patterns, as only = ["{self.name}/*"]')
        return self


class ExpertsSpec(Spec):
    """The experts of a family, in the order in which an ensemble has them."""

    steps: Steps = 1000  # inner steps of an expert
    publish_every: Annotated[int, Field(ge=1, le=1_000_000)] = 10  # rounds between two files of an expert
    parts: Annotated[tuple[PartSpec, ...], Field(min_length=1, max_length=MAX_PARTS)]

    @model_validator(mode="after")
    def _names_differ(self) -> ExpertsSpec:
        names = [part.name.lower() for part in self.parts]  # they become files, also where case means nothing
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two parts are named {twice[0]}")
        return self

    def check(self, family: str, data: DataSpec, inner_steps: int, last: int | None) -> None:
        """ValueError unless a family of this name, data and rounds can be."""
        if data.name not in ("stdlib", "files") or data.only:
            raise ValueError("experts have parts of stdlib or files, and `only` of each part says which")
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
        """The part of that name."""
        return next((part for part in self.parts if part.name == name), None)

    def steps_of(self, part: PartSpec) -> int:
        """How many inner steps the part's expert makes."""
        return part.steps or self.steps
