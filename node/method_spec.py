"""A manifest's `[method]`: by what rule a run trains, and its settings.

The name alone is enough: what is left out is what suits that method. Some settings belong to one method only; with
another one they are refused, as nothing would come of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from shoal.node.spec import Beta, Count, Spec

MethodName = Literal["ddp", "diloco", "diloco-delayed", "diloco-eager", "co2", "streaming-diloco", "sparseloco"]

Single = Annotated[float, Field(ge=1e-12, le=1e12)]  # neither 0 nor infinite in fp32

SUITING: Mapping[str, Mapping[str, Any]] = {  # in place of the defaults below
    "ddp": {"inner_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0},
    "co2": {"outer_lr": 1.0, "outer_momentum": 0.2},
    "streaming-diloco": {"strides": 2, "delay": 1, "alpha": 0.5},
    "sparseloco": {"outer_lr": 1.0, "outer_momentum": 0.0, "error_decay": 0.95},
}
FIXED: Mapping[str, tuple[str, ...]] = {
    "ddp": ("inner_steps", "outer_lr", "outer_momentum"),
    "sparseloco": ("outer_momentum",),
}
OWN: Mapping[str, str] = {  # settings, and the only method that has them
    "strides": "streaming-diloco",
    "delay": "streaming-diloco",
    "alpha": "streaming-diloco",
    "outer_clip": "co2",
    "typical_change": "co2",
    "error_decay": "sparseloco",
}


class MethodSpec(Spec):
    """Inner AdamW or Muon with warm-up, stable, decay; and what is made of what it has done. See docs/methods.md."""

    name: MethodName = "diloco"
    inner_steps: Annotated[int, Field(ge=1, le=100_000)] = 20
    batch: Annotated[int, Field(ge=1, le=65_536)] = 16
    optimizer: Literal["adamw", "muon"] = "adamw"  # inner; see trainer/optimizers.py
    inner_lr: Annotated[float, Field(gt=0, le=10)] = 2e-3
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.1
    clip: Annotated[float, Field(gt=0)] = 1.0
    warmup_steps: Count = 20
    decay_share: Annotated[float, Field(ge=0, le=1)] = 0.3  # of the run, where it has a last round
    outer_lr: Annotated[float, Field(gt=0, le=10)] = 0.7
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    strides: Annotated[int, Field(ge=1, le=512)] | None = None  # into how many fragments the layers are dealt
    delay: Annotated[int, Field(ge=0, le=100_000)] | None = None  # inner steps until a fragment's mean is mixed in
    alpha: Annotated[float, Field(ge=0, le=1)] | None = None  # our own share of the mixture
    outer_clip: Single | None = None  # of each element of the outer momentum; None: no bound
    typical_change: Single | None = None  # of a weight in a round; None: no staleness penalty
    error_decay: Annotated[float, Field(ge=0, le=1)] | None = None  # of what was not sent

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, table: Any) -> Any:
        if not isinstance(table, dict) or not isinstance(name := table.get("name", "diloco"), str):
            return table
        return {**SUITING.get(name, {}), **table}

    @model_validator(mode="after")
    def _has_its_own(self) -> MethodSpec:
        for key, owner in OWN.items():
            if self.name != owner and getattr(self, key) is not None:
                raise ValueError(f"`{key}` is a setting of {owner}, and nothing to {self.name}")
        for key in FIXED.get(self.name, ()):
            if getattr(self, key) != SUITING[self.name][key]:
                raise ValueError(f"with {self.name} `{key}` is always {SUITING[self.name][key]:g}: leave it out")
        return self

    @model_validator(mode="after")
    def _steps_by_its_optimizer(self) -> MethodSpec:
        if self.name == "ddp" and self.optimizer != "adamw":
            raise ValueError(f'ddp steps by AdamW on what all agree on: leave `optimizer = "{self.optimizer}"` out')
        return self

    @model_validator(mode="after")
    def _fragments_fit(self) -> MethodSpec:
        if self.name != "streaming-diloco":
            return self
        if self.strides is None or self.delay is None or self.alpha is None:
            raise ValueError("streaming-diloco needs strides, delay and alpha")
        apart = self.inner_steps // self.fragments
        most = min(apart, self.inner_steps - 1)  # a fragment's answer is due before it is sent again
        if not apart or self.delay > most:
            raise ValueError(
                f"{self.fragments} fragments in {self.inner_steps} inner steps are sent {apart} steps apart, and delay "
                f"must be at most {most}: have more inner steps, fewer strides or less delay"
            )
        return self

    @property
    def fragments(self) -> int:
        """How many fragments there are: what is in no layer is one of its own."""
        return 1 if self.strides in (None, 1) else (self.strides or 0) + 1

    @property
    def state(self) -> str:
        """What committed states are of: methods that say the same can go on from each other's."""
        return "outer Nesterov" if "diloco" in self.name else self.name

    def canonical(self, table: dict[str, Any]) -> dict[str, Any]:
        """`table`, which is this as JSON, without settings that it does not have."""
        absent = {key for key in OWN if table[key] is None} | ({"optimizer"} if self.optimizer == "adamw" else set())
        return {key: value for key, value in table.items() if key not in absent}
