"""The kind of model `hf`: causal language models of transformers (hf.py), with LoRA adapters (lora.py) or without."""

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
    digest_of,
    in_training,
    in_words,
    network_of,
    quietly,
    seeded,
    skeleton,
    untrained,
)
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.lora import adapted, adapted_skeleton, write_adapters
from shoal.protocol.base.errors import LocalError


class HfKind:
    """See Kind. A run begins with its founder's weights, which are its origin (node/run/first_weights.py)."""

    def shapes(self, spec: HfSpec) -> Shapes:
        """The shapes in the manifest; neither a model nor an installed library is needed."""
        return dict(expand(spec.tensors))

    def build(self, spec: HfSpec, seed: int, weights: Sequence[Path] = ()) -> HfModel:
        """The model with the run's frozen weights and buffers; of the trained weights only adapters follow the seed.

        Raises LocalError if the installed transformers makes other tensors from the config.
        """
        if spec.lora is None:
            return HfModel(in_training(self._whole(spec)))
        if spec.is_complete:
            self._check(spec, without_weights(spec))
        return fresh(spec, seed, weights)

    def _whole(self, spec: HfSpec) -> nn.Module:
        """The model as transformers builds it, with the run's frozen weights and buffers."""
        if spec.is_complete:
            self._check(spec, without_weights(spec))
        network = seeded(spec, CONFIG_SEED)
        if spec.base and digest_of(untrained(network)) != spec.base:
            raise LocalError(
                "this machine's torch or transformers makes other frozen numbers of the run's config than its "
                "founder's: install the founder's versions",
                code="other-model",
            )
        return network

    def _check(self, spec: HfSpec, model: HfModel) -> None:
        """LocalError unless the model has the manifest's tensors and limits; comes before memory is allocated."""
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
                f"{difference}. Install the version that the founder has",
                code="other-model",
            )

    def flops_per_token(self, spec: HfSpec) -> int:
        """6 per trained and 4 per frozen weight, which needs no gradient of its own; attention is left out.

        Embeddings count as if they were multiplied, as a config does not say which matrices are embeddings.
        """
        return 6 * spec.parameters + 4 * spec.frozen

    def write(self, spec: HfSpec, parameters: Tensor, folder: Path) -> None:
        """Writes what `save_pretrained` of transformers, or of peft for adapters, writes for these parameters."""
        if spec.lora is not None:
            write_adapters(spec, Layout(self.shapes(spec)).views(parameters), folder)
            return
        model = HfModel(self._whole(spec))
        Layout.of(model).load(parameters, model)
        with quietly(), in_words("cannot save the run's model"):
            model.network.save_pretrained(folder)


def fresh(spec: HfSpec, seed: int, weights: Sequence[Path] = ()) -> HfModel:
    """The model as transformers initialises it from `seed`; its bits may differ between machines."""
    if spec.lora is not None:
        return adapted(spec, seed, weights)
    return HfModel(network_of(spec, seed))


def without_weights(spec: HfSpec) -> HfModel:
    """The model of `fresh` on the meta device: names and shapes, but no weights."""
    if spec.lora is not None:
        return adapted_skeleton(spec)
    return HfModel(skeleton(spec))
