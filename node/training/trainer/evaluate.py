"""Evaluating a trained model: its validation loss, and a sample of text.

The loss is the mean cross-entropy over the validation text, in nats per token, or the mean loss of pictures. The text
is cut into adjacent windows, so every token but the first is predicted exactly once, given at most `context` tokens; of
a long text evenly spaced windows are enough, if the caller says so. It is deterministic: the same parameters give the
same loss. `sample_loss` measures a few sequences in the middle of training, which goes on as if nothing had happened.

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

AT_MOST = 1 << 18  # tokens that `shoal up` measures: a few seconds of one core, where a megabyte takes half a minute
BATCH_ROWS = 512  # of pictures
BATCH_TOKENS = 2048  # activations of a small model's batch stay in the cache; larger batches were slower


class ValidationLoss(NamedTuple):
    """What came of measuring held-out data."""

    loss: float
    tokens: int  # that were predicted; of pictures: how many there were


def validation_loss(
    model: TrainedModel,
    text: Tensor,
    context: int,
    at_most: int | None = None,
    tell: Callable[[float], None] = lambda share: None,
) -> ValidationLoss:
    """The loss of `model` on `text`, a vector of tokens, or on rows of pictures (node/diffusion/pictures.py).

    Of a text with more than `at_most` tokens to predict, as many windows of `context` are measured as that allows, but
    one at least, evenly spaced from its beginning to its end: always the same ones. `tell` is called before each batch
    and at the end, with the share that is done. LocalError if the text is empty.
    """
    if text.ndim == 2:
        batches, whole = iter(torch.split(text, BATCH_ROWS)), len(text)
    elif len(text) < 2:
        raise LocalError("the validation text is empty", code="data-empty")
    else:
        batches = (batch.long() for batch in windows(text, context, at_most))
        count, rest = _measured(len(text) - 1, context, at_most)
        whole = count * context + rest

    def weighted() -> Iterator[tuple[Tensor, int]]:
        done = 0
        for batch in batches:
            tell(done / whole)
            weight = len(batch) if text.ndim == 2 else batch[:, 1:].numel()
            yield batch, weight
            done += weight

    total, done = _losses(model, weighted())
    tell(1.0)
    return ValidationLoss(total / done, done)


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


def windows(text: Tensor, context: int, at_most: int | None = None) -> Iterator[Tensor]:
    """Batches (B, context + 1) of a text, see `validation_loss`; each row begins with the last token before it."""
    predicted = len(text) - 1
    whole = predicted // context
    count, rest = _measured(predicted, context, at_most)
    if count:
        rows = text[: whole * context + 1].unfold(0, context + 1, context)  # (whole, context + 1)
        for numbers in torch.split(torch.arange(count) * whole // count, max(1, BATCH_TOKENS // context)):
            yield rows[numbers]
    if rest:
        yield text[-rest - 1 :][None]  # (1, rest + 1)


def _measured(predicted: int, context: int, at_most: int | None) -> tuple[int, int]:
    """How many whole windows to measure of a text with so many tokens to predict, and how many tokens after them."""
    whole, rest = divmod(predicted, context)
    if at_most is None or predicted <= at_most or not whole:
        return whole, rest
    return max(1, at_most // context), 0


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
