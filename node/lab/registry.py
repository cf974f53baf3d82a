"""The laboratory's methods by name, with their settings, which are given as key=value.

A setting has the type of its default: a whole number, a number or a name. Defaults are a starting point; none was
tuned. Methods like DiLoCo have DiLoCo's, which are high for methods with delayed answers: there a lower `lr` was
better.

Runs make the same classes from a manifest (methods/registry.py). The laboratory has its own registry because it has
settings that no run has (`neighbours`), its schedules end with the training instead of a last round, and stored results
use these names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from shoal.node.lab.codecs import CODECS
from shoal.node.lab.network import FP32
from shoal.node.lab.virtual_workers import EPSILON, VirtualWorkers
from shoal.node.training.methods.ddp import DDP
from shoal.node.training.methods.diloco import DiLoCo
from shoal.node.training.methods.gossip import Gossip
from shoal.node.training.methods.late import CO2, DelayedDiLoCo, EagerDiLoCo
from shoal.node.training.methods.method import Method
from shoal.node.training.methods.noloco import NoLoCo
from shoal.node.training.methods.sparseloco import SparseLoCo
from shoal.node.training.methods.streaming import Streaming
from shoal.protocol.tensors.compression import Codec

Settings = Mapping[str, Any]  # each an int, a float or a str
OUTER = {"lr": 0.7, "momentum": 0.9}  # DiLoCo's


class WrongSetting(ValueError):
    """An unknown method, or an invalid setting; the message says what is valid."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A method, and the settings of the network for it."""

    method: Method
    values: Codec = FP32  # of contributions
    degree: float = 0.0  # average number of a worker's neighbours in a graph


@dataclass(frozen=True, slots=True)
class Entry:
    """A method's settings with their defaults, and its constructor from (workers, inner steps, settings)."""

    defaults: Settings
    make: Callable[[VirtualWorkers, int, Settings], Setup]


def set_up(name: str, given: Sequence[str], workers: VirtualWorkers, inner_steps: int) -> Setup:
    """The method `name` with the settings `given`, each "key=value"; WrongSetting if the method refuses them."""
    settings = parse(name, given)
    try:
        return METHODS[name].make(workers, inner_steps, settings)
    except ValueError as error:
        raise WrongSetting(f"{name}: {error}") from error


def parse(name: str, given: Sequence[str]) -> Settings:
    """The settings of method `name`, those `given` in place of their defaults."""
    if name not in METHODS:
        raise WrongSetting(f"unknown method '{name}'; known are {', '.join(METHODS)}")
    settings = dict(METHODS[name].defaults)
    for each in given:
        key, equals, text = each.partition("=")
        if not equals:
            raise WrongSetting(f"'{each}' is no setting; settings are written key=value")
        if key not in settings:
            known = f"its settings are {', '.join(settings)}" if settings else "it has no settings"
            raise WrongSetting(f"{name} knows no '{key}'; {known}")
        settings[key] = _value(key, text, type(settings[key]))
    return settings


def _value(key: str, text: str, kind: type) -> int | float | str:
    if kind is str:
        return text
    try:
        value: int | float = kind(text)
    except ValueError:
        value = float("nan")
    if isnan(value):
        raise WrongSetting(f"{key}={text}: {key} is a {'whole number' if kind is int else 'number'}")
    return value


def _ddp(workers: VirtualWorkers, inner_steps: int, settings: Settings) -> Setup:
    spec = workers.manifest.method
    return Setup(DDP(workers.rate, spec.betas, EPSILON, spec.weight_decay, spec.clip, workers.layout.undecayed))


def _co2(workers: VirtualWorkers, inner_steps: int, settings: Settings) -> Setup:
    typical = settings["typical_change"] or None
    return Setup(CO2(inner_steps, settings["lr"], settings["momentum"], settings["clip"], typical))


def _sparseloco(workers: VirtualWorkers, inner_steps: int, settings: Settings) -> Setup:
    if settings["codec"] not in CODECS:
        raise WrongSetting(f"codec={settings['codec']}: known are {', '.join(CODECS)}")
    values = CODECS[settings["codec"]]
    return Setup(SparseLoCo(inner_steps, settings["lr"], settings["decay"], values), values)


def _gossip(workers: VirtualWorkers, inner_steps: int, settings: Settings) -> Setup:
    for key in ("mixing_steps", "neighbours"):
        if not settings[key] > 0:
            raise WrongSetting(f"{key}={settings[key]}: {key} must be more than 0")
    return Setup(Gossip(inner_steps, settings["mixing_steps"], settings["delay"]), degree=settings["neighbours"])


METHODS: Mapping[str, Entry] = {
    "ddp": Entry({}, _ddp),
    "diloco": Entry(OUTER, lambda _, steps, settings: Setup(DiLoCo(steps, **settings))),
    "diloco-delayed": Entry(
        {"lr": 0.5, "momentum": 0.0}, lambda _, steps, settings: Setup(DelayedDiLoCo(steps, **settings))
    ),
    "diloco-eager": Entry(
        {"lr": 0.8, "momentum": 0.0}, lambda _, steps, settings: Setup(EagerDiLoCo(steps, **settings))
    ),
    "co2": Entry({"lr": 1.0, "momentum": 0.2, "clip": float("inf"), "typical_change": 0.0}, _co2),
    "streaming-diloco": Entry(
        {"strides": 2, "delay": 1, "alpha": 0.5, **OUTER},
        lambda workers, steps, settings: Setup(Streaming(workers.layout, inner_steps=steps, **settings)),
    ),
    "sparseloco": Entry({"lr": 1.0, "decay": 0.95, "codec": "topk"}, _sparseloco),
    "noloco": Entry(
        {"alpha": 0.5, "beta": 0.7, "gamma": 0.7, "delay": 0},
        lambda _, steps, settings: Setup(NoLoCo(steps, **settings)),
    ),
    "gossip": Entry({"mixing_steps": 1, "neighbours": 2.0, "delay": 0}, _gossip),
}
"""`codec` is any of a run's or of node/lab/codecs; for fedzip the largest possible payload is counted.
In `co2` a typical change of 0 means no staleness penalty; `neighbours` is a worker's average number in `gossip`."""
