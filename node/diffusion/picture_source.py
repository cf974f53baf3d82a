"""A folder of experts on pictures (`shoal experts fetch`) that can be served, and read again on request.

A panel is the set of experts in the folder at one time. A batch keeps the panel with which it began.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.node.diffusion.mixture import Mixture
from shoal.node.diffusion.network import PictureModel, Router, Velocity, skeleton
from shoal.node.experts.files import read_parameters
from shoal.node.inference.ensemble.panel import changes, version_of
from shoal.node.inference.ensemble.table import ENSEMBLE, Entry, Table, checked, read_table
from shoal.node.inference.models import use_threads
from shoal.node.inference.served import Mix, ServeOptions, parse_mix
from shoal.node.manifest.model import FlowSpec, PictureSpec, RouterSpec
from shoal.node.training.models.layout import Layout
from shoal.node.training.trainer.device import choose_device
from shoal.protocol.base.errors import LocalError

CLUSTER = re.compile(r"cluster-(\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class PicturePanel:
    """The experts and the router that were in the folder at one time."""

    mixture: Mixture
    spec: FlowSpec  # of the experts: the size of pictures, and the number of classes
    experts: tuple[str, ...]  # names
    names: Mapping[str, str]  # of the experts and the router, by key
    models: Mapping[str, PictureModel]  # by key

    @property
    def version(self) -> str:
        """An alphanumeric hash of the experts and the mix."""
        return version_of([*self.names, str(self.mixture.top)])


def load_panel(
    folder: Path, table: Table, mix: Mix, device: str, known: Mapping[str, PictureModel] | None = None
) -> PicturePanel:
    """The experts that the folder's table names; LocalError, with the reason, if they cannot be mixed.

    `known` are models, by key, that need not be loaded again.
    """
    velocities = [each for each in table.experts if isinstance(each.model, FlowSpec)]
    routers = [each for each in table.experts if isinstance(each.model, RouterSpec)]
    if not velocities or len(velocities) + len(routers) < len(table.experts):
        raise LocalError(
            f"{folder / ENSEMBLE} names experts on text and on pictures, or a router alone", code="experts-wrong"
        )
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
    """For each expert its column in the router's output; LocalError if the experts do not fit the router."""
    models = [each.model for each in (*experts, *routers) if isinstance(each.model, PictureSpec)]
    if any((model.side, model.classes) != (spec.side, spec.classes) for model in models):
        raise LocalError(
            f"the experts in {folder} are on pictures of several sizes or classes: they cannot be mixed",
            code="experts-differ",
        )
    if not routers and len(experts) == 1:
        return [0]
    if len(routers) != 1:
        raise LocalError(
            f"{folder} has {len(routers)} routers, and experts need one: fetch the experts again", code="experts-wrong"
        )
    router = routers[0].model
    assert isinstance(router, RouterSpec)
    found = [CLUSTER.fullmatch(each.name) for each in experts]
    places = [int(each[1]) if each is not None else router.experts for each in found]
    if any(place >= router.experts for place in places):
        raise LocalError(
            f"{folder} has experts that its router does not know: these are cluster-0 and so on", code="experts-wrong"
        )
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


class PictureSource:
    """The served experts. The size and the classes of pictures stay those of the first reading."""

    def __init__(self, folder: Path, choices: ServeOptions, name: str = "") -> None:
        """LocalError if the experts cannot be mixed, or an option does not apply to pictures.

        `name` is the model's name in the API; by default the one in the folder's table.
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
        """Reads the folder again, from a thread; the changes, in words. After a LocalError the old experts stay."""
        before = self.panel
        after = load_panel(self._folder, read_table(self._folder), self._mix, self._device, before.models)
        if (after.spec.side, after.spec.classes) != (before.spec.side, before.spec.classes):
            raise LocalError(
                f"the experts in {self._folder} are on pictures of another size, or of other classes, than before: "
                f"start the server anew",
                code="experts-differ",
            )
        self.panel = after
        return changes(before.names, after.names)


def _checked_mix(folder: Path, choices: ServeOptions) -> Mix:
    choices.check_no_peers(f"the folder {folder}")
    if choices.prior or choices.base or choices.tokenizer:
        raise LocalError("--prior, --base and --tokenizer are for experts on text, and these paint", code="bad-flags")
    mix = parse_mix(choices.mix)
    if mix.is_merge:
        raise LocalError(
            f"--mix {mix.name} is for experts on text: these are mixed by full, top-1, top-2 and so on",
            code="bad-flags",
        )
    return mix
