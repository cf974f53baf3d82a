"""The experts on pictures that a folder has at one time, as a mixture. A call keeps the panel that it began with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.node.diffusion.mixture import Mixture
from shoal.node.diffusion.network import PictureModel, Router, Velocity, skeleton
from shoal.node.experts.files import read_parameters
from shoal.node.serve.ensemble.mix import Mix
from shoal.node.serve.ensemble.panel import version_of
from shoal.node.serve.ensemble.table import ENSEMBLE, Entry, Table, checked
from shoal.node.spec.flow import FlowSpec, PictureSpec, RouterSpec
from shoal.node.state.layout import Layout
from shoal.protocol.errors import LocalError

CLUSTER = re.compile(r"cluster-(\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class PicturePanel:
    """What paints."""

    mixture: Mixture
    spec: FlowSpec  # of the experts: how large pictures are, and of how many classes
    experts: tuple[str, ...]
    names: Mapping[str, str]  # the experts' and the router's, by keys
    models: Mapping[str, PictureModel]  # by the same keys

    @property
    def version(self) -> str:
        """In letters and digits; another for other experts, or another mix."""
        return version_of([*self.names, str(self.mixture.top)])


def load_panel(
    folder: Path, table: Table, mix: Mix, device: str, known: Mapping[str, PictureModel] | None = None
) -> PicturePanel:
    """The experts that the folder's table names; LocalError, which says what is wrong, if they cannot paint together.

    `known` are models, by keys, that need not be loaded again.
    """
    velocities = [each for each in table.experts if isinstance(each.model, FlowSpec)]
    routers = [each for each in table.experts if isinstance(each.model, RouterSpec)]
    if not velocities or len(velocities) + len(routers) < len(table.experts):
        raise LocalError(f"{folder / ENSEMBLE} names experts on text and on pictures, or a router alone")
    spec = velocities[0].model
    assert isinstance(spec, FlowSpec)
    places = _places(folder, velocities, routers, spec)
    held = known or {}
    models = {each.key: held.get(each.key) or _model(folder, each, device) for each in table.experts}
    experts = [models[each.key] for each in velocities]
    router = models[routers[0].key] if routers else None
    return PicturePanel(
        mixture=Mixture([_velocity(each) for each in experts], places, _router(router), mix.k),
        spec=spec,
        experts=tuple(each.name for each in velocities),
        names={each.key: each.name for each in table.experts},
        models=models,
    )


def _places(folder: Path, experts: list[Entry], routers: list[Entry], spec: FlowSpec) -> list[int]:
    """The experts' columns of the router's answer."""
    models = [each.model for each in (*experts, *routers) if isinstance(each.model, PictureSpec)]
    if any((model.side, model.classes) != (spec.side, spec.classes) for model in models):
        raise LocalError(f"the experts in {folder} are on pictures of several sizes or classes: they cannot be mixed")
    if not routers and len(experts) == 1:
        return [0]
    if len(routers) != 1:
        raise LocalError(f"{folder} has {len(routers)} routers, and experts need one: fetch the experts again")
    router = routers[0].model
    assert isinstance(router, RouterSpec)
    found = [CLUSTER.fullmatch(each.name) for each in experts]
    places = [int(each[1]) if each is not None else router.experts for each in found]
    if any(place >= router.experts for place in places):
        raise LocalError(f"{folder} has experts that its router does not know: these are cluster-0 and so on")
    return places


def _velocity(model: PictureModel) -> Velocity:
    assert isinstance(model, Velocity)
    return model


def _router(model: PictureModel | None) -> Router | None:
    assert model is None or isinstance(model, Router)
    return model


def _model(folder: Path, entry: Entry, device: str) -> PictureModel:
    assert isinstance(entry.model, FlowSpec | RouterSpec)
    weights = read_parameters(checked(folder, entry), entry.model)
    model = skeleton(entry.model).to_empty(device="cpu")
    Layout.of(model).load(weights, model)
    return model.eval().requires_grad_(False).to(device)
