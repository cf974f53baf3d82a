"""Evaluating a trained model: its validation loss, and a sample of text.

The loss is the mean cross-entropy over the validation text, in nats per token, or the mean loss of pictures. The text
is cut into adjacent windows, so every token but the first is predicted exactly once, given at most `context` tokens. It
is deterministic: the same parameters give the same loss. `sample_loss` measures a few sequences in the middle of
training, which goes on as if nothing had happened.

`generate` samples bytes one after the other, reproducibly for a seed. It has no key-value cache, so it computes the
whole context again for each byte: simple, and slow for long texts, but a few hundred bytes cost less than the
validation before them. (shoal.node.inference serves models.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shoal.node.training.models.kind import TrainedModel
from shoal.protocol.base.errors import LocalError

BATCH_ROWS = 512  # of pictures
BATCH_TOKENS = 2048  # activations of a small model's batch stay in the cache; larger batches were slower


def validation_loss(model: TrainedModel, text: Tensor, context: int) -> float:
    """The loss of `model` on `text`, a vector of tokens, or on rows of pictures (node/diffusion/pictures.py).

    Raises LocalError if the text is empty.
    """
    if text.ndim == 2:
        total, weight = _losses(model, ((part, len(part)) for part in torch.split(text, BATCH_ROWS)))
        return total / weight
    if len(text) < 2:
        raise LocalError("the validation text is empty", code="data-empty")
    total, weight = _losses(model, ((batch.long(), batch[:, 1:].numel()) for batch in windows(text, context)))
    return total / weight


class SampleLoss(NamedTuple):
    """What came of measuring a sample."""

    loss: float | None  # None: it was broken off, or there is no sample
    sequences: int  # that were measured


def sample_loss(model: TrainedModel, rows: Tensor, at_once: int, go_on: Callable[[], bool]) -> SampleLoss:
    """The mean loss of `rows` of tokens, (n, T + 1), or of samples that are not text, in batches of `at_once`.

    It is broken off if `go_on`, which is called before each batch, returns False.
    """
    if not len(rows):
        return SampleLoss(None, 0)
    batches = (part if part.is_floating_point() else part.long() for part in torch.split(rows, at_once))
    total, done = _losses(model, ((batch, len(batch)) for batch in batches), go_on)
    return SampleLoss(total / done if done == len(rows) else None, done)


def _losses(
    model: TrainedModel, batches: Iterable[tuple[Tensor, int]], go_on: Callable[[], bool] = lambda: True
) -> tuple[float, int]:
    """The sum of the batches' losses, each times its weight, and the sum of the weights, until `go_on` is False."""
    device = next(model.parameters()).device
    total, done = 0.0, 0
    with evaluating(model):
        for batch, weight in batches:
            if not go_on():
                break
            total, done = total + model.loss(batch.to(device)).item() * weight, done + weight
    return total, done


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """No gradients, and no dropout; afterwards each part of the model is in the mode that it was in.

    This is not torch's inference mode: what a model keeps of a forward pass in that could not be used in training.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, was_training in modes:
            module.training = was_training


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
