"""How the model calls its layers: as they are written, compiled, keeping their activations or making them again.

Layers are compiled one by one, which is to say once, as they are all alike: the rest of this model is not worth the
time that compiling the whole takes.
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
    """The layer as it is written."""
    out: Tensor = layer(x, rope)
    return out


def layer_call(options: TrainerOptions) -> CallLayer:
    """The call that `options` ask for."""
    call: CallLayer = torch.compile(call_layer, dynamic=False) if options.compiled else call_layer
    return _recomputing(call) if options.recompute else call


def _recomputing(call: CallLayer) -> CallLayer:
    """Activation checkpointing (Chen et al., arXiv 1604.06174): of a layer only its input is kept."""

    def recomputed(layer: nn.Module, x: Tensor, rope: Rope) -> Tensor:
        # No layer draws random numbers; and their state cannot be read while a step is being recorded.
        out: Tensor = checkpoint(call, layer, x, rope, use_reentrant=False, preserve_rng_state=False)
        return out

    return recomputed
