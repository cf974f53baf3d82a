"""Causal language models of transformers (hf.py), with adapters (lora.py) or without, as a kind of model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from shoal.node.base import extra
from shoal.node.manifest.model import HfSpec
from shoal.node.manifest.tensors import Shapes, expand, first_difference
from shoal.node.training.models.hf import (
    CONFIG_SEED,
    HfModel,
    check_sizes,
    in_training,
    in_words,
    network_of,
    quietly,
    seeded,
    skeleton,
)
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.lora import adapted, adapted_skeleton, write_adapters
from shoal.node.training.models.untrained import digest_of, untrained
from shoal.protocol.base.errors import LocalError


class HfKind:
    """See kind.py. The weights are the founder's, and the origin of its run: see first_weights.py."""

    def shapes(self, spec: HfSpec) -> Shapes:
        """As the manifest has them: for this, nothing is built and nothing needs to be installed."""
        return dict(expand(spec.tensors))

    def build(self, spec: HfSpec, seed: int, weights: Sequence[Path] = ()) -> HfModel:
        """All but the trained weights is as the run has it; of these only adapters are the seed's.

        LocalError if the transformers that is installed makes other tensors of the config."""
        if spec.lora is None:
            return HfModel(in_training(self._whole(spec)))
        if spec.is_complete:
            self._check(spec, without_numbers(spec))
        return fresh(spec, seed, weights)

    def _whole(self, spec: HfSpec) -> nn.Module:
        """transformers' model as it makes it, all of it the run's but for the weights that are trained."""
        if spec.is_complete:
            self._check(spec, without_numbers(spec))
        network = seeded(spec, CONFIG_SEED)
        if spec.base and digest_of(untrained(network)) != spec.base:
            raise LocalError(
                "this machine's torch or transformers makes other frozen numbers of the run's config than its "
                "founder's: install the founder's versions"
            )
        return network

    def _check(self, spec: HfSpec, model: HfModel) -> None:
        """LocalError unless the model is the manifest's, and no larger: before memory is asked for."""
        check_sizes(spec, model.network)
        ours = {place.name: place.shape for place in Layout.of(model)}
        difference = first_difference(ours, self.shapes(spec))
        frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
        if not difference and frozen != spec.frozen:
            difference = f"{frozen:,} frozen parameters, and {spec.frozen:,} in the run"
        if difference:
            version = extra.transformers().__version__
            raise LocalError(
                f"transformers {version} makes another model of the run's config than its founder's did: "
                f"{difference}. Install the version that the founder has"
            )

    def flops_per_token(self, spec: HfSpec) -> int:
        """6 N for what is trained and 4 for what is frozen, whose gradients nobody needs; attention is left out.

        Embeddings count as if they were multiplied: a config does not say which matrix is one.
        """
        return 6 * spec.parameters + 4 * spec.frozen

    def write(self, spec: HfSpec, parameters: Tensor, folder: Path) -> None:
        """What `save_pretrained` makes of the model with these parameters; of adapters, what peft's makes."""
        if spec.lora is not None:
            write_adapters(spec, Layout(self.shapes(spec)).views(parameters), folder)
            return
        model = HfModel(self._whole(spec))
        Layout.of(model).load(parameters, model)
        with quietly(), in_words("cannot save the run's model"):
            model.network.save_pretrained(folder)


def fresh(spec: HfSpec, seed: int, weights: Sequence[Path] = ()) -> HfModel:
    """The model as transformers initialises it from `seed`: to the same bits on this machine, hardly on every other."""
    if spec.lora is not None:
        return adapted(spec, seed, weights)
    return HfModel(network_of(spec, seed))


def without_numbers(spec: HfSpec) -> HfModel:
    """What `fresh` makes, on no device."""
    if spec.lora is not None:
        return adapted_skeleton(spec)
    return HfModel(skeleton(spec))
