"""Scorers on this machine's device: Shoal's own decoder with a cache of keys and values, and any model without a cache.

Each chunk of a prompt is computed by itself; all sequences that get a single token are computed together, whatever
their lengths. Training needs no cache, so the forward pass with one is written here, over the modules of
node/training/models/decoder.py. Shapes are named as in that file; S is the length of the longest sequence in a call,
and G = N / K is the number of query heads that share a key-value head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.node.inference.scorer import Piece, Predictions, Scorer
from shoal.node.training.models.decoder import Attention, Layer, Llama, rotate, rotations_at
from shoal.node.training.models.layers import Rope

ROOM = 64  # tokens that the cache has room for at first; it doubles each time it grows


@dataclass(slots=True, eq=False)
class Cache:
    """Keys and values of each layer, (slots, K, room, H), with room for the longest sequence so far."""

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(cls, model: Llama, slots: int) -> Cache:
        """A cache without room for any token."""
        first = first_attention(model)
        weight = first.k_proj.weight
        shape = (slots, weight.shape[0] // first.head_size, 0, first.head_size)
        layers = len(model.model.layers)
        return cls(*([weight.new_empty(shape) for _ in range(layers)] for _ in range(2)))

    @property
    def room(self) -> int:
        """Tokens that every layer has room for; if memory ran out while it grew, some layers have more."""
        return min(tensor.shape[2] for tensor in (*self.keys, *self.values))

    def grow(self, room: int) -> None:
        """Make room for `room` tokens in each slot, and keep what is there."""
        for tensors in (self.keys, self.values):
            for number, tensor in enumerate(tensors):
                tensors[number] = F.pad(tensor, (0, 0, 0, room - tensor.shape[2]))


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """Where the tokens (B, T) of a call are in the cache and in their sequences, and which keys each attends to."""

    rows: slice | Tensor  # the slots of the cache to read
    places: tuple[Tensor, Tensor]  # (B, 1) and (B, T): slot and position to write each token's key and value to
    length: int  # S
    rope: Rope  # (B, 1, T, H) each
    mask: Tensor  # (B, 1, G * T, S)


def first_attention(model: Llama) -> Attention:
    """The first layer's attention; those of the other layers have the same sizes."""
    layer = model.model.layers[0]
    assert isinstance(layer, Layer)
    return layer.self_attn


def forward(
    model: Llama, cache: Cache, tokens: Tensor, slots: list[int], starts: list[int], *, only_last: bool
) -> Tensor:
    """Logits after each of `tokens` (B, T), which follow the `starts` tokens that the `slots` hold: (B, T, V).

    With `only_last` only those after the last token: (B, 1, V). Slots are in rising order. The keys and values of the
    tokens are added to the cache, which must have room for them.
    """
    decoder = model.model
    states = _states(model, cache, tokens, slots, starts)
    weight = decoder.embed_tokens.weight if model.lm_head is None else model.lm_head.weight
    logits: Tensor = F.linear(decoder.norm(states[:, -1:] if only_last else states), weight)
    return logits


def _states(model: Llama, cache: Cache, tokens: Tensor, slots: list[int], starts: list[int]) -> Tensor:
    """The last layer's output for `tokens`, (B, T, D)."""
    decoder = model.model
    at = _positions(model, tokens, slots, starts)
    x: Tensor = decoder.embed_tokens(tokens)  # (B, T, D)
    for layer, keys, values in zip(decoder.layers, cache.keys, cache.values, strict=True):
        assert isinstance(layer, Layer)
        x = x + _attend(layer.self_attn, layer.input_layernorm(x), at, keys, values)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return x


def _positions(model: Llama, tokens: Tensor, slots: list[int], starts: list[int]) -> Positions:
    decoder, device = model.model, tokens.device
    attention = first_attention(model)
    index = torch.tensor(slots, device=device)
    is_dense = slots[-1] - slots[0] == len(slots) - 1  # then reading the cache copies nothing
    length = max(starts) + tokens.shape[1]
    steps = torch.arange(length, device=device)
    places = torch.tensor(starts, device=device)[:, None] + steps[: tokens.shape[1]]  # (B, T)
    cos, sin = (each[:, None] for each in rotations_at(places, decoder.head_size, decoder.rope_theta))
    mask = steps <= places.repeat(1, attention.groups)[:, None, :, None]
    rows = slice(slots[0], slots[-1] + 1) if is_dense else index
    return Positions(rows, (index[:, None], places), length, (cos, sin), mask)


def _attend(attention: Attention, x: Tensor, at: Positions, keys: Tensor, values: Tensor) -> Tensor:
    """Attention.forward over the keys and values of the cache, to which the new ones are added first."""
    batch, steps = x.shape[:2]
    heads = (batch, steps, -1, attention.head_size)
    q = rotate(attention.q_proj(x).view(heads).transpose(1, 2), at.rope)  # (B, N, T, H)
    k = rotate(attention.k_proj(x).view(heads).transpose(1, 2), at.rope)  # (B, K, T, H)
    row, column = at.places
    keys[row, :, column] = k.transpose(1, 2)  # (B, T, K, H), as indexing puts it
    values[row, :, column] = attention.v_proj(x).view(heads)
    k, v = (each[at.rows, :, : at.length] for each in (keys, values))  # (B, K, S, H)
    q = q.reshape(batch, k.shape[1], -1, attention.head_size)  # (B, K, G * T, H): keys are not repeated for a group
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=at.mask)
    out: Tensor = attention.o_proj(y.reshape(batch, -1, steps, attention.head_size).transpose(1, 2).flatten(2))
    return out  # (B, T, D)


class LlamaScorer(Scorer):
    """Shoal's own decoder; see Scorer."""

    def __init__(
        self, model: Llama, *, vocab: int, limit: int, slots: int, version: str, cache: Cache | None = None
    ) -> None:
        """`cache` may be shared with a scorer of as many slots; each slot is used by one of the two at a time."""
        self.vocab, self.limit, self.slots, self.version = vocab, limit, slots, version
        self._model = model.eval().requires_grad_(False)
        self._device = model.model.embed_tokens.weight.device
        self._cache = Cache.empty(model, slots) if cache is None else cache
        self._held = [0] * slots  # tokens

    def renewed(self, model: Llama, version: str) -> LlamaScorer:
        """A scorer with other weights of the same shapes, and the same cache: a sequence must stay with one scorer."""
        sizes = {"vocab": self.vocab, "limit": self.limit, "slots": self.slots}
        return LlamaScorer(model, **sizes, version=version, cache=self._cache)

    def extend(self, pieces: Sequence[Piece], within: bool = False) -> Predictions:
        """See Scorer."""
        self._make_room(max(self._held[piece.slot] + len(piece.tokens) for piece in pieces))
        return predict(pieces, lambda group: self._logits(group, only_last=not within), within)

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._held[slot] = 0

    def _logits(self, pieces: Sequence[Piece], *, only_last: bool) -> Tensor:
        """Logits (B, T, V), or (B, 1, V), of pieces of one length."""
        slots = [piece.slot for piece in pieces]
        tokens = torch.tensor([piece.tokens for piece in pieces], device=self._device)
        starts = [self._held[slot] for slot in slots]
        logits = forward(self._model, self._cache, tokens, slots, starts, only_last=only_last)
        for slot in slots:
            self._held[slot] += tokens.shape[1]
        return logits

    def _make_room(self, needed: int) -> None:
        room = self._cache.room or min(ROOM, self.limit)
        while room < needed:
            room = min(2 * room, self.limit)
        if room > self._cache.room:
            with torch.inference_mode():
                self._cache.grow(room)


class PlainScorer(Scorer):
    """Any model without a cache: it computes the whole sequence for each piece. Right for all models, and slow."""

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        device: torch.device,
        *,
        vocab: int,
        limit: int,
        slots: int,
        version: str,
    ) -> None:
        """`model` gives logits (B, T, V) for tokens (B, T)."""
        self.vocab, self.limit, self.slots, self.version = vocab, limit, slots, version
        self._model, self._device = model, device
        self._held: dict[int, list[int]] = {}

    def extend(self, pieces: Sequence[Piece], within: bool = False) -> Predictions:
        """See Scorer."""
        return predict(pieces, self._logits, within)

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._held.pop(slot, None)

    def _logits(self, pieces: Sequence[Piece]) -> Tensor:
        """Logits (B, T, V) of pieces of one length."""
        rows = []
        for piece in pieces:
            held = self._held.setdefault(piece.slot, [])
            held += piece.tokens
            rows.append(self._model(torch.tensor([held], device=self._device))[0, -len(piece.tokens) :])
        return torch.stack(rows)


def predict(pieces: Sequence[Piece], logits_of: Callable[[Sequence[Piece]], Tensor], within: bool) -> Predictions:
    """Predictions from the logits that `logits_of` gives for pieces of one length, in rising order of their slots.

    The logits are (B, T, V); without `within` those after the last tokens are enough, (B, 1, V).
    """
    order: list[int] = []
    parts: list[Tensor] = []
    worth = np.zeros(len(pieces))
    with torch.inference_mode():
        for group in _groups(pieces):
            logits = logits_of([pieces[number] for number in group])
            tokens = pieces[group[0]].tokens
            if within and len(tokens) > 1:
                worth[group[0]] = _log_prob_of_next(logits[0], tokens)
            order += group
            parts.append(logits[:, -1])
        scores = torch.log_softmax(torch.cat(parts).float(), dim=-1).cpu()
        rows = torch.empty_like(scores)
        rows[torch.tensor(order)] = scores
    return Predictions(rows.numpy(), worth)


def _log_prob_of_next(logits: Tensor, tokens: Sequence[int]) -> float:
    """The sum of log p of all `tokens` (T,) except the first, by the logits (T, V) after each."""
    log_probs = torch.log_softmax(logits[:-1].float(), dim=-1)
    targets = torch.tensor(tokens[1:], device=logits.device)
    return float(log_probs.gather(-1, targets[:, None]).double().sum())


def _groups(pieces: Sequence[Piece]) -> Iterator[list[int]]:
    """Numbers of the pieces that are computed together: all of one token, and each longer piece by itself."""
    numbers = sorted(range(len(pieces)), key=lambda number: pieces[number].slot)
    if single := [number for number in numbers if len(pieces[number].tokens) == 1]:
        yield single
    yield from ([number] for number in numbers if len(pieces[number].tokens) > 1)
