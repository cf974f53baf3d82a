"""LoRA adapters on a model of transformers, through peft: the base is frozen, and only adapters are exchanged.

The base comes from a folder of safetensors on each machine (`shoal node start --weights FOLDER`), or follows from
the manifest's seed. Either way the manifest has the hash of its weights, so all members adapt the same base.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoal.node.base import extra
from shoal.node.manifest.model import HfSpec, LoraSpec
from shoal.node.training.models.hf import (
    HfModel,
    digest_of,
    in_words,
    network_from,
    network_of,
    quietly,
    saved_buffers,
    skeleton,
)
from shoal.protocol.base.errors import LocalError

ADAPTER = re.compile(r"(\.lora_\w+)\.default\b")  # peft's name of the set of adapters, in modules but not in files


class LoraModel(HfModel):
    """A base with adapters; parameters have their names in peft's files."""

    def __init__(self, network: nn.Module, base: str) -> None:
        super().__init__(network)
        self.base = base  # the digest of the base

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters under their names in peft's files."""
        for name, weight in super().named_parameters(prefix, recurse, remove_duplicate):
            yield _in_files(name), weight


def adapted(spec: HfSpec, seed: int, weights: Sequence[Path] = ()) -> LoraModel:
    """The base with new adapters; LocalError if this machine does not have the base that the manifest names."""
    assert spec.lora is not None
    base, digest = _base(spec, spec.lora, seed, weights)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return _with_adapters(spec.lora, base, digest)


def adapted_skeleton(spec: HfSpec) -> LoraModel:
    """The model of `adapted` without weights."""
    assert spec.lora is not None
    with torch.random.fork_rng(devices=()), torch.device("meta"):
        return _with_adapters(spec.lora, skeleton(spec), "")


def _with_adapters(lora: LoraSpec, base: nn.Module, digest: str) -> LoraModel:
    with quietly():
        try:
            return LoraModel(extra.peft().get_peft_model(base, _settings(lora)), digest)
        except ValueError as error:
            reason = " ".join(str(error).split())[:300]  # it may print whole modules
            raise LocalError(
                f"no adapters for the targets {', '.join(lora.targets)}: {reason}", code="model-unsupported"
            ) from error


def base_digest(network: nn.Module) -> str:
    """The hash, in hex, of all parameters and saved buffers of a base."""
    return digest_of({**dict(network.named_parameters()), **saved_buffers(network)})


def write_adapters(spec: HfSpec, adapters: Mapping[str, Tensor], folder: Path) -> None:
    """Writes the adapters to `folder` as peft does: its files, names and settings. The base is not needed.

    For adapters on embeddings, peft would also save the base's embeddings, which are left out.
    """
    network: Any = adapted_skeleton(spec).network
    names = [name for name, weight in network.named_parameters() if weight.requires_grad]
    network.load_state_dict({name: adapters[_in_files(name)].clone() for name in names}, strict=False, assign=True)
    with quietly(), in_words("cannot save the run's adapters"):
        network.save_pretrained(folder, save_embedding_layers=False)


def _in_files(name: str) -> str:
    """The name of a module's parameter in peft's files."""
    return ADAPTER.sub(r"\1", name)


def _base(spec: HfSpec, lora: LoraSpec, seed: int, weights: Sequence[Path]) -> tuple[nn.Module, str]:
    """The base and its digest; LocalError if it is not the manifest's."""
    if lora.base == "seed":
        network = network_of(spec, seed)
        if spec.base not in ("", found := base_digest(network)):
            raise LocalError(
                "this machine's torch or transformers makes other weights of the run's seed than its founder's: "
                "install the founder's versions",
                code="other-model",
            )
        return network, found
    obstacles = []
    for folder in weights:
        try:
            network = network_from(spec, folder)
        except LocalError as error:
            obstacles.append(str(error))
            continue
        if spec.base in ("", found := base_digest(network)):
            return network, found
        obstacles.append(f"{folder} holds other weights")
    named = f" {spec.base[:8]}" if spec.base else ""
    reason = f" ({'; '.join(obstacles)})" if obstacles else ""
    raise LocalError(
        f"the run's adapters are for base weights{named} that are not here{reason}: start the node with --weights and "
        "the folder of their safetensors",
        code="weights-missing",
    )


def _settings(lora: LoraSpec) -> Any:
    return extra.peft().LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets),
        lora_dropout=0.0,
        bias="none",
    )
