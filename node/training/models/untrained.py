"""What of a model is not trained, and is saved with it: frozen parameters, and buffers.

Nobody exchanges these: each member has them from the config, or from a folder of weights, and the manifest names their
hash. So all members train the very same model, and an exported one is whole.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from blake3 import blake3
from torch import Tensor, nn


def saved_buffers(network: nn.Module) -> dict[str, Tensor]:
    """Its persistent buffers by name: those that are in its files."""
    saved = network.state_dict().keys()
    return {name: buffer for name, buffer in network.named_buffers() if name in saved}


def untrained(network: nn.Module) -> dict[str, Tensor]:
    """By name, all of it that is saved and not trained."""
    frozen = {name: weight for name, weight in network.named_parameters() if not weight.requires_grad}
    return {**frozen, **saved_buffers(network)}


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Their hash, in hex: of weights as fp32, which is what is computed with, whatever files they came in."""
    hasher = blake3(derive_key_context="shoal v1 frozen weights", max_threads=blake3.AUTO)
    for name, tensor in sorted(tensors.items()):
        head = f"{name} {list(tensor.shape)}".encode()
        hasher.update(len(head).to_bytes(4, "little") + head)
        numbers = tensor.detach().float() if tensor.is_floating_point() else tensor.detach()
        hasher.update(numbers.contiguous().reshape(-1).view(torch.uint8).numpy().data.cast("B"))
    return str(hasher.hexdigest())
