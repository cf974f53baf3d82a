"""What a trained model is worth: its validation loss, and a text that it writes.

The loss is the mean cross-entropy over the held-out text, in nats per byte; or the mean loss of pictures. The text is
cut into windows side by side, so every byte but the first is predicted exactly once, given at most `context` bytes
before it. No randomness and no sampling: the same parameters give the same loss.

`generate` draws bytes one after the other, reproducibly for a seed. There is no cache of keys and values: the whole
context is computed again for each byte. That is simple, and slow for long texts; a few hundred bytes cost less than the
validation that comes before them. (shoal.node.inference serves models.)
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


END_OF_TEXT = 0  # as in the corpus: before the first byte of a text, and after its last
BYTES = 256


def generate(
    model: TrainedModel, prompt: bytes, count: int, *, context: int, temperature: float = 0.8, seed: int = 0
) -> bytes:
    """Up to `count` bytes after `prompt`, which must not be empty; fewer where the model ends its text."""
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
