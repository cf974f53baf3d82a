"""How a model calls its layers: directly or compiled, and with activations kept or recomputed.

Only the layer is compiled, once for all layers, as they are alike. Compiling the whole model would take longer, for
little gain.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shoal.node.base.step_options import TrainerOptions

Rope = tuple[Tensor, Tensor]  # cosines and sines, see node/training/models/decoder.py
CallLayer = Callable[[nn.Module, Tensor, Rope], Tensor]


def call_layer(layer: nn.Module, x: Tensor, rope: Rope) -> Tensor:
    """Calls the layer directly."""
    out: Tensor = layer(x, rope)
    return out


def layer_call(options: TrainerOptions) -> CallLayer:
    """The call that `options` ask for."""
    call: CallLayer = torch.compile(call_layer, dynamic=False) if options.compiled else call_layer
    return _recomputing(call) if options.recompute else call


def _recomputing(call: CallLayer) -> CallLayer:
    """Activation checkpointing (Chen et al., arXiv 1604.06174): only the inputs of layers are kept."""

    def recomputed(layer: nn.Module, x: Tensor, rope: Rope) -> Tensor:
        # Layers draw no random numbers, and the generator's state cannot be read while a step is being recorded.
        out: Tensor = checkpoint(call, layer, x, rope, use_reentrant=False, preserve_rng_state=False)
        return out

    return recomputed
