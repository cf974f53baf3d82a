"""The manifests of `make experts`: of the seed's run, of the family, and of the same family with random parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shoal.node.base.explain import explain
from shoal.node.base.toml import dump
from shoal.node.experts.parts import experts_of
from shoal.node.manifest.manifest import Manifest, load_manifest
from shoal.protocol.base.errors import LocalError

AVERAGED = {"name": "diloco", "outer_lr": 1.0, "outer_momentum": 0.0}
SHORTER = 2  # the seed's rounds have 1 / SHORTER of the family's inner steps


@dataclass(frozen=True, slots=True)
class Recipe:
    """`family` as its author wrote it; its seed is trained for `seed_steps` steps, whole rounds."""

    family: Manifest
    seed_steps: int

    def check(self) -> None:
        """LocalError unless the family can be trained here and compared with one model of as many tokens."""
        experts, inner = experts_of(self.family), self.seed.method.inner_steps
        if experts.clusters is not None or any(part.model or part.steps for part in experts.parts):
            raise LocalError(
                "compared are domains by patterns, whose experts are alike: the family must have no clusters, and no "
                "part of it steps or a model of its own"
            )
        if self.family.data.name != "stdlib":
            raise LocalError(f"compared are domains of stdlib, and the family's data are {self.family.data.name}")
        if len(experts.parts) < 2:
            raise LocalError("one domain has nothing to be compared with: name two or more")
        if self.seed_steps % inner or self.seed_steps < inner:
            raise LocalError(f"--seed-steps {self.seed_steps} are no whole rounds of {inner}")

    @property
    def union(self) -> tuple[str, ...]:
        """The patterns of all parts."""
        return tuple(dict.fromkeys(only for part in experts_of(self.family).parts for only in part.only))

    @property
    def seed(self) -> Manifest:
        """Joint training by as many peers as there are parts, on the texts of all.

        DiLoCo without outer momentum, which is plain averaging: in a few dozen rounds momentum hardly gets going.
        """
        members, inner = len(experts_of(self.family).parts), max(1, self.family.method.inner_steps // SHORTER)
        rounds = {"min_members": members, "start_members": members, "last": self.seed_steps // inner, "pace": "steps"}
        return self._run("seed", AVERAGED | {"inner_steps": inner}, rounds, {})

    @property
    def by_chance(self) -> Manifest:
        """The same number of parts and steps, but texts are assigned to parts at random."""
        experts = experts_of(self.family)
        table = {
            "steps": experts.steps,
            "publish_every": experts.publish_every,
            "clusters": {"count": len(experts.parts), "by": "random", "seed": self.family.seed},
        }
        return self._run("by-chance", {"name": "experts"}, {}, {"experts": table})

    def dense(self, steps: int) -> Manifest:
        """A run like an expert's, on the texts of all parts."""
        return self._run("dense", AVERAGED, {"last": steps // self.family.method.inner_steps}, {})

    def _run(self, name: str, method: dict[str, Any], rounds: dict[str, Any], more: dict[str, Any]) -> Manifest:
        own = self.family.method
        inner = {key: getattr(own, key) for key in ("inner_steps", "batch", "inner_lr", "warmup_steps", "weight_decay")}
        return Manifest.model_validate(
            {
                "name": f"{self.family.name}.{name}",
                "seed": self.family.seed,
                "model": self.family.model.model_dump(),
                "data": self.family.data.model_dump() | {"only": self.union},
                "method": inner | {"decay_share": own.decay_share} | method,
                "rounds": rounds,
                **more,
            }
        )


def read_family(file: Path, steps: int | None = None, seed: int | None = None) -> Manifest:
    """The family in a file, with so many steps of each expert; LocalError if it is invalid."""
    family = load_manifest(file)
    if family.experts is None:
        raise LocalError(f'{file} is not the manifest of a family: its method is "{family.method.name}"')
    experts = family.experts.model_dump() | {"steps": steps or family.experts.steps}
    table = family.model_dump() | {"experts": experts, "seed": family.seed if seed is None else seed}
    try:
        return Manifest.model_validate(table)
    except ValidationError as error:
        raise LocalError(f"--steps {steps}: {explain(error, Manifest)}") from error


def text_of(manifest: Manifest) -> str:
    """The manifest as TOML."""
    return dump(manifest.model_dump(mode="json"))
