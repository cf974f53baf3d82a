"""Evaluating a trained model: its validation loss, and a sample of text.

The loss is the mean cross-entropy over the validation text, in nats per token, or the mean loss of pictures. The text
is cut into adjacent windows, so every token but the first is predicted exactly once, given at most `context` tokens. It
is deterministic: the same parameters give the same loss.

`generate` samples bytes one after the other, reproducibly for a seed. It has no key-value cache, so it computes the
whole context again for each byte: simple, and slow for long texts, but a few hundred bytes cost less than the
validation before them. (shoal.node.inference serves models.)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.node.training.models.kind import TrainedModel
from shoal.protocol.base.errors import LocalError

BATCH_ROWS = 512  # of pictures
BATCH_TOKENS = 2048  # activations of a small model's batch stay in the cache; larger batches were slower


def validation_loss(model: TrainedModel, text: Tensor, context: int) -> float:
    """The loss of `model` on `text`, a vector of tokens, or on rows of pictures (node/diffusion/pictures.py).

    Raises LocalError if the text is empty.
    """
    if text.ndim == 2:
        return _rows_loss(model, text)
    if len(text) < 2:
        raise LocalError("the validation text is empty")
    device = next(model.parameters()).device
    total, was_training = 0.0, model.training
    model.eval()  # models of transformers may have dropout
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
    """Batches (B, context + 1) of a text; each row begins with the last token of the one before."""
    whole = (len(text) - 1) // context
    if whole:
        rows = text[: whole * context + 1].unfold(0, context + 1, context)  # (whole, context + 1)
        yield from torch.split(rows, max(1, BATCH_TOKENS // context))
    if whole * context < len(text) - 1:
        yield text[whole * context :][None]  # (1, rest + 1)


END_OF_TEXT = 0  # as in the corpus: before the first byte of a text, and after its last
BYTES = 256


def generate(
    model: TrainedModel, prompt: bytes, count: int, *, context: int, temperature: float = 0.8, seed: int = 0
) -> bytes:
    """Up to `count` bytes that continue `prompt`, which must not be empty; fewer if the model ends its text."""
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    text = list(prompt)
    model.eval()
    with torch.inference_mode():
        for _ in range(count):
            logits = model(torch.tensor([text[-context:]], device=device))[0, -1, :BYTES]  # (V)
            shares = torch.softmax(logits.float().cpu() / temperature, dim=-1)
            drawn = int(torch.multinomial(shares, 1, generator=generator))
            if drawn == END_OF_TEXT:
                break
            text.append(drawn)
    return bytes(text[len(prompt) :])
