"""A manifest's `[method]`: the rule by which a run trains, and its settings.

The name alone is enough: settings that are left out get defaults that suit the method. Some settings belong to certain
methods only; with others they are refused, as they would have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from shoal.node.base.keys import Help
from shoal.node.manifest.base import Beta, Count, Spec


def gamma_limit(alpha: float, group: int = 2) -> float:
    """The gamma from which on replicas of NoLoCo (arXiv 2506.10911) drift apart; ValueError unless 0 <= alpha < 1."""
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha, the momentum, is {alpha}; it must be at least 0 and less than 1")
    if group < 2:
        raise ValueError(f"a group of {group} has nobody to exchange with; it needs at least 2")
    return 2 * (1 - alpha * alpha) / (1 - alpha * (1 - 2 / group))


def check_stability(alpha: float, gamma: float, group: int = 2) -> None:
    """ValueError if replicas with this momentum and this pull would drift apart."""
    limit = gamma_limit(alpha, group)
    if not 0 < gamma < limit:
        raise ValueError(
            f"gamma, the pull, is {gamma}; with alpha = {alpha} and groups of {group} "
            f"replicas stay together only if it is more than 0 and less than {limit:.4g}"
        )


MethodName = Literal[
    "ddp",
    "diloco",
    "diloco-delayed",
    "diloco-eager",
    "co2",
    "streaming-diloco",
    "sparseloco",
    "noloco",
    "gossip",
    "experts",
]

INNER_STEPS = 20
PositiveFp32 = Annotated[float, Field(ge=1e-12, le=1e12)]  # becomes neither 0 nor infinite in fp32

METHOD_DEFAULTS: Mapping[str, Mapping[str, Any]] = {  # where they differ from those of MethodSpec
    "ddp": {"inner_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0},
    # no momentum: with it, a step by a mean that is a round old overshoots; small models diverged (docs/methods.md)
    "diloco-delayed": {"outer_lr": 0.5, "outer_momentum": 0.0},
    "diloco-eager": {"outer_lr": 0.8, "outer_momentum": 0.0},
    "co2": {"outer_lr": 1.0, "outer_momentum": 0.2},
    "streaming-diloco": {"strides": 2, "delay": 1, "alpha": 0.5},
    "sparseloco": {"outer_lr": 1.0, "outer_momentum": 0.0, "error_decay": 0.95},
    "noloco": {"outer_lr": 1.0, "outer_momentum": 0.0, "alpha": 0.5, "beta": 0.7, "gamma": 0.7},
    "gossip": {"outer_lr": 1.0, "outer_momentum": 0.0},
    "experts": {"outer_lr": 1.0, "outer_momentum": 0.0},
}
REPLICA_METHODS = ("noloco", "gossip")  # each member has its own parameters; no state is agreed
OWN_WEIGHTS_METHODS = ("diloco-eager", "streaming-diloco")  # a state is agreed, but each worker trains its own weights
FIXED_SETTINGS: Mapping[str, tuple[str, ...]] = {  # always the method's default
    "ddp": ("inner_steps", "outer_lr", "outer_momentum"),
    "sparseloco": ("outer_momentum",),
    "noloco": ("outer_lr", "outer_momentum"),
    "gossip": ("outer_lr", "outer_momentum"),
    "experts": ("outer_lr", "outer_momentum"),
}
SPECIAL_SETTINGS: Mapping[str, tuple[str, ...]] = {  # the only methods that have this setting
    "strides": ("streaming-diloco",),
    "delay": ("streaming-diloco", *REPLICA_METHODS),
    "alpha": ("streaming-diloco", "noloco"),
    "beta": ("noloco",),
    "gamma": ("noloco",),
    "outer_clip": ("co2",),
    "typical_change": ("co2",),
    "error_decay": ("sparseloco",),
}
DEFAULT_SCATTER = {"sparseloco": "topk", "streaming-diloco": "fp4"}  # codec of contributions, in place of fp32
NESTEROV = ("diloco", "diloco-delayed", "diloco-eager", "streaming-diloco")  # can go on from each other's states
LAB_SETTINGS = ("mixing_steps", "neighbours")  # of gossip, only in node/lab, whose graphs have any degree


class MethodSpec(Spec):
    """How a run trains: the method, the members' own steps between two exchanges, and the step after each."""

    name: Annotated[
        MethodName,
        Help("The training method. Alone it is enough: the others of this table have defaults that suit it."),
    ] = "diloco"
    inner_steps: Annotated[
        int,
        Field(ge=1, le=100_000),
        Help(
            "How many steps each member trains by itself between two exchanges.",
            unit="steps",
            larger="less traffic, and members move further apart before they average",
            smaller="more traffic, and closer to training together",
        ),
    ] = INNER_STEPS
    batch: Annotated[
        int,
        Field(ge=1, le=65_536),
        Help(
            "How many samples one step of one member learns from.",
            unit="samples",
            larger="steps are slower and less noisy; a machine that lacks the memory takes it in parts",
            smaller="steps are faster and noisier",
        ),
    ] = 16
    optimizer: Annotated[
        Literal["adamw", "muon"],
        Help(
            'The optimizer of a member\'s own steps. "adamw": for all weights; "muon": for the matrices within the '
            "layers, and AdamW for the rest."
        ),
    ] = "adamw"
    inner_lr: Annotated[
        float,
        Field(gt=0, le=10),
        Help(
            "The learning rate of a member's own steps, after the warm-up.",
            larger="learns faster, until the loss rises or becomes NaN",
            smaller="learns more slowly, and more surely",
        ),
    ] = 2e-3
    betas: Annotated[
        tuple[Beta, Beta],
        Help(
            "AdamW's two rates of forgetting: of the mean gradient, and of its square.",
            larger="steps follow the gradients of more of the steps before",
            smaller="steps follow the last gradients",
        ),
    ] = (0.9, 0.95)
    weight_decay: Annotated[
        float,
        Field(ge=0, le=1),
        Help(
            "How strongly each step pulls the weights towards zero.",
            larger="weights stay smaller, which helps against learning a small text by heart",
            smaller="weights are free to grow",
        ),
    ] = 0.1
    clip: Annotated[
        float,
        Field(gt=0),
        Help(
            "The greatest norm of a gradient; a longer one is shortened to it.",
            larger="rare large gradients move the weights further",
            smaller="more gradients are shortened, which is steadier and slower",
        ),
    ] = 1.0
    warmup_steps: Annotated[
        Count,
        Help(
            "Over how many of the first steps the learning rate rises from 0 to inner_lr.",
            unit="steps",
            larger="a gentler start, which large models and rates need",
            smaller="the full rate is reached sooner",
        ),
    ] = 20
    decay_share: Annotated[
        float,
        Field(ge=0, le=1),
        Help(
            "The last share of the run in which the learning rate falls to 0; without rounds.last it never falls.",
            larger="the rate falls earlier and more slowly",
            smaller="the full rate is kept for longer",
        ),
    ] = 0.3
    outer_lr: Annotated[
        float,
        Field(gt=0, le=10),
        Help(
            "How much of the members' mean change is applied; 1 without momentum is plain averaging.",
            larger="the run goes further with each average, until it overshoots",
            smaller="the run follows its members more slowly",
        ),
    ] = 0.7
    outer_momentum: Annotated[
        float,
        Field(ge=0, lt=1),
        Help(
            "Which share of its last direction an average keeps (Nesterov).",
            larger="a slower start, and faster progress in a long run, until it overshoots",
            smaller="each average counts for itself, which suits short runs",
        ),
    ] = 0.9
    strides: Annotated[
        Annotated[int, Field(ge=1, le=512)] | None,
        Help(
            "Into how many fragments the layers are dealt, each exchanged at its own time.",
            unit="fragments",
            larger="smaller exchanges, one after the other, which even out the traffic",
            smaller="fewer and larger exchanges",
        ),
    ] = None
    delay: Annotated[
        Annotated[int, Field(ge=0, le=100_000)] | None,
        Help(
            "How many steps a member trains on while an exchange is under way, before it takes the result.",
            unit="steps",
            larger="more time for the network, and results that are older when they are applied",
            smaller="fresher results, for which training may have to wait",
        ),
    ] = None
    alpha: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None,
        Help(
            "The share of a member's own weights when a result is mixed in; with noloco the momentum.",
            larger="more of the own weights; with noloco more of the last direction, and less room for gamma",
            smaller="more of what was agreed; with noloco each exchange counts for itself",
        ),
    ] = None
    beta: Annotated[
        Annotated[float, Field(gt=0, le=10)] | None,
        Help(
            "How much of the mean change of a pair is applied.",
            larger="replicas go further with each exchange, until they overshoot",
            smaller="replicas follow their training more slowly",
        ),
    ] = None
    gamma: Annotated[
        Annotated[float, Field(gt=0, le=2)] | None,
        Help(
            "How strongly the two of a pair pull each other closer; less than 2 (1 - alpha^2).",
            larger="replicas stay closer together",
            smaller="replicas differ more",
        ),
    ] = None
    outer_clip: Annotated[
        PositiveFp32 | None,
        Help(
            "The bound of each element of the outer momentum; without it there is none.",
            larger="late averages may move the weights further",
            smaller="late averages move the weights less",
        ),
    ] = None
    typical_change: Annotated[
        PositiveFp32 | None,
        Help(
            "How far a weight usually moves in a round: a late average corrects a weight the less the further it has "
            "moved meanwhile; without it all are corrected fully.",
            larger="less caution about late averages",
            smaller="more caution about late averages",
        ),
    ] = None
    error_decay: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None,
        Help(
            "Which share of what was not sent is kept for the next round.",
            larger="changes that wait long are sent in the end",
            smaller="old changes, which others may have made meanwhile, are forgotten sooner",
        ),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, table: Any) -> Any:
        if not isinstance(table, dict) or not isinstance(name := table.get("name", "diloco"), str):
            return table
        if given := [key for key in LAB_SETTINGS if key in table]:
            raise ValueError(
                f"`{given[0]}` is for the laboratory: in a run a round is one exchange of two; leave it out, and for "
                "more mixing make `inner_steps` smaller"
            )
        filled = {**METHOD_DEFAULTS.get(name, {}), **table}
        steps = filled.get("inner_steps", INNER_STEPS)
        if name in REPLICA_METHODS and filled.get("delay") is None and isinstance(steps, int):
            filled["delay"] = steps // 2  # so the network has half of the round, and training does not pause
        return filled

    @model_validator(mode="after")
    def _settings_fit_the_method(self) -> MethodSpec:
        for key, owners in SPECIAL_SETTINGS.items():
            if self.name not in owners and getattr(self, key) is not None:
                raise ValueError(f"`{key}` is a setting of {' and '.join(owners)}, and nothing to {self.name}")
        for key in FIXED_SETTINGS.get(self.name, ()):
            if getattr(self, key) != (always := METHOD_DEFAULTS[self.name][key]):
                raise ValueError(f"with {self.name} `{key}` is always {always:g}: leave it out")
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

    @model_validator(mode="after")
    def _replicas_stay_together(self) -> MethodSpec:
        if self.name not in REPLICA_METHODS:
            return self
        if self.delay is None or self.delay >= self.inner_steps:
            raise ValueError(f"with {self.inner_steps} inner steps delay must be at most {self.inner_steps - 1}")
        if self.name == "noloco":
            if self.alpha is None or self.beta is None or self.gamma is None:
                raise ValueError("noloco needs alpha, beta and gamma")
            check_stability(self.alpha, self.gamma)
        return self

    @property
    def has_replicas(self) -> bool:
        """Whether each member has its own parameters, and no state is agreed."""
        return self.name in REPLICA_METHODS

    @property
    def has_own_weights(self) -> bool:
        """Whether each worker trains its own weights although all agree on a state."""
        return self.name in OWN_WEIGHTS_METHODS

    @property
    def fragments(self) -> int:
        """How many fragments there are; tensors outside of the layers are one more."""
        return 1 if self.strides in (None, 1) else (self.strides or 0) + 1

    @property
    def state(self) -> str:
        """The kind of its committed states: methods of the same kind can go on from each other's."""
        return "outer Nesterov" if self.name in NESTEROV else self.name

    def canonical(self, table: dict[str, Any]) -> dict[str, Any]:
        """`table`, which is this spec as JSON, without settings that the method does not have."""
        absent = {key for key in SPECIAL_SETTINGS if table[key] is None}
        if self.optimizer == "adamw":
            absent.add("optimizer")
        return {key: value for key, value in table.items() if key not in absent}
