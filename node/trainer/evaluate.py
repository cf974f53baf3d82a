"""Validation loss: the mean cross-entropy over the held-out text, in nats per byte; or the mean loss of pictures.

The text is cut into windows side by side, so every byte but the first is predicted exactly once, given at most
`context` bytes before it. No randomness and no sampling: the same parameters give the same loss.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.node.models.kind import TrainedModel
from shoal.protocol.errors import LocalError

BATCH_ROWS = 512  # of pictures
BATCH_TOKENS = 2048  # activations of a small model's batch stay in the cache; larger batches were slower


def validation_loss(model: TrainedModel, text: Tensor, context: int) -> float:
    """The loss of `model` on `text`, a vector of tokens; or on rows of pictures, see diffusion/pictures.py."""
    if text.ndim == 2:
        return _rows_loss(model, text)
    if len(text) < 2:
        raise LocalError("the validation text is empty")
    device = next(model.parameters()).device
    total, was_training = 0.0, model.training
    model.eval()  # a library's model may have dropout
    with torch.inference_mode():
        for batch in windows(text, context):
            total += model.loss(batch.long().to(device)).item() * batch[:, 1:].numel()
    model.train(was_training)
    return total / (len(text) - 1)


def _rows_loss(model: TrainedModel, rows: Tensor) -> float:
    device = next(model.parameters()).device
    with torch.inference_mode():
        losses = [model.loss(part.to(device)).item() * len(part) for part in torch.split(rows, BATCH_ROWS)]
    return sum(losses) / len(rows)


def windows(text: Tensor, context: int) -> Iterator[Tensor]:
    """Batches (B, context + 1), each row beginning with the byte that ends the one before; the last is shorter."""
    whole = (len(text) - 1) // context
    if whole:
        rows = text[: whole * context + 1].unfold(0, context + 1, context)  # (whole, context + 1)
        yield from torch.split(rows, max(1, BATCH_TOKENS // context))
    if whole * context < len(text) - 1:
        yield text[whole * context :][None]  # (1, rest + 1)
