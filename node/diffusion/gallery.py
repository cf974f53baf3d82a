"""A folder of experts on pictures (`shoal experts fetch`) as something to serve, looked at again when told so.

A call keeps the panel, which is what the folder has at one time, that it began with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.node.diffusion.mixture import Mixture
from shoal.node.diffusion.network import PictureModel, Router, Velocity, skeleton
from shoal.node.experts.files import read_parameters
from shoal.node.inference.ensemble.mix import Mix, parse_mix
from shoal.node.inference.ensemble.panel import changes, version_of
from shoal.node.inference.ensemble.table import ENSEMBLE, Entry, Table, checked, read_table
from shoal.node.inference.models import use_threads
from shoal.node.inference.served import Choices
from shoal.node.manifest.model import FlowSpec, PictureSpec, RouterSpec
from shoal.node.training.models.layout import Layout
from shoal.node.training.trainer.device import choose_device
from shoal.protocol.base.errors import LocalError

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


class Gallery:
    """What paints, and what it is. The size and the classes of pictures are those of the first look."""

    def __init__(self, folder: Path, choices: Choices, name: str = "") -> None:
        """LocalError if the experts cannot paint together, or something was chosen that means nothing for them.

        `name` is the model's in the API; empty: the folder's table's.
        """
        self._mix = _checked_mix(folder, choices)
        use_threads(choices.threads)
        table = read_table(folder)
        self._folder, self._device = folder, choose_device(choices.device)
        self.panel = load_panel(folder, table, self._mix, self._device)
        self.name, self.mix = name or table.name, self._mix.name
        self.created = int((folder / ENSEMBLE).stat().st_mtime)  # seconds since 1970
        self.sentence = f"experts on pictures of {table.name} in {folder}, mixed by {self.mix}"

    def look_again(self) -> str:
        """At the folder, from a thread: which experts there are now. LocalError leaves those that there were."""
        before = self.panel
        after = load_panel(self._folder, read_table(self._folder), self._mix, self._device, before.models)
        if (after.spec.side, after.spec.classes) != (before.spec.side, before.spec.classes):
            raise LocalError(
                f"the experts in {self._folder} are on pictures of another size, or of other classes, than before: "
                f"start the server anew"
            )
        self.panel = after
        return changes(before.names, after.names)


def _checked_mix(folder: Path, choices: Choices) -> Mix:
    choices.check_no_peers(f"the folder {folder}")
    if choices.prior or choices.base or choices.tokenizer:
        raise LocalError("--prior, --base and --tokenizer are for experts on text, and these paint")
    mix = parse_mix(choices.mix)
    if mix.is_merge:
        raise LocalError(f"--mix {mix.name} is for experts on text: these are mixed by full, top-1, top-2 and so on")
    return mix
