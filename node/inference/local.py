"""Scorers on this machine's device: Shoal's own decoder with a cache of keys and values, and any other model without.

A prompt's chunk is a call of its own; all sequences that get one token are one call, whatever their lengths. Training
needs no cache, so `forward` stands here, and walks the modules of node/training/models/decoder.py. Shapes are those of
that file, and S is the length of the longest sequence in a call, G = N / K the query heads that share a key-value head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.node.inference.scorer import LogProbs, Piece, Weighed
from shoal.node.training.models.decoder import Attention, Layer, Llama, rotate, rotations_at
from shoal.node.training.models.layers import Rope

Rows = slice | Tensor  # of the cache
ROOM = 64  # tokens that the cache has room for at first; then twice as many, each time


@dataclass(slots=True, eq=False)
class Cache:
    """Keys and values of each layer, (slots, K, room, H), for as long as the longest sequence so far."""

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(cls, model: Llama, slots: int) -> Cache:
        """Without room for any token."""
        first = first_attention(model)
        weight = first.k_proj.weight
        shape = (slots, weight.shape[0] // first.head_size, 0, first.head_size)
        layers = len(model.model.layers)
        return cls(*([weight.new_empty(shape) for _ in range(layers)] for _ in range(2)))

    @property
    def room(self) -> int:
        """Tokens that a slot has room for; where memory ran out as it grew, some layers have more."""
        return min(tensor.shape[2] for tensor in (*self.keys, *self.values))

    def grow(self, room: int) -> None:
        """Make room for as many, and keep what is there."""
        for tensors in (self.keys, self.values):
            for number, tensor in enumerate(tensors):
                tensors[number] = F.pad(tensor, (0, 0, 0, room - tensor.shape[2]))


@dataclass(frozen=True, slots=True, eq=False)
class Where:
    """Of the tokens (B, T) in a call: their places in the cache and in their sequences, and what each may look at."""

    rows: Rows
    places: tuple[Tensor, Tensor]  # (B, 1) and (B, T), to write to
    length: int  # S
    rope: Rope  # (B, 1, T, H) each
    mask: Tensor  # (B, 1, G * T, S)


def first_attention(model: Llama) -> Attention:
    """That of the first layer; those of the others have the same sizes."""
    layer = model.model.layers[0]
    assert isinstance(layer, Layer)
    return layer.self_attn


def forward(model: Llama, cache: Cache, tokens: Tensor, slots: list[int], starts: list[int]) -> Tensor:
    """Logits (B, V) after the last of `tokens` (B, T), which follow `starts` tokens that the `slots` hold.

    Slots are in rising order. Their keys and values are added to the cache, which has room for them.
    """
    return _head(model, _states(model, cache, tokens, slots, starts)[:, -1])


def forward_every(model: Llama, cache: Cache, tokens: Tensor, slots: list[int], starts: list[int]) -> Tensor:
    """The same after each of `tokens`: (B, T, V)."""
    return _head(model, _states(model, cache, tokens, slots, starts))


def _head(model: Llama, states: Tensor) -> Tensor:
    """Logits (..., V) of states (..., D)."""
    decoder = model.model
    weight = decoder.embed_tokens.weight if model.lm_head is None else model.lm_head.weight
    logits: Tensor = F.linear(decoder.norm(states), weight)
    return logits


def _states(model: Llama, cache: Cache, tokens: Tensor, slots: list[int], starts: list[int]) -> Tensor:
    """What the last layer makes of `tokens`, (B, T, D)."""
    decoder = model.model
    where = _where(model, tokens, slots, starts)
    x: Tensor = decoder.embed_tokens(tokens)  # (B, T, D)
    for layer, keys, values in zip(decoder.layers, cache.keys, cache.values, strict=True):
        assert isinstance(layer, Layer)
        x = x + _attend(layer.self_attn, layer.input_layernorm(x), where, keys, values)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return x


def _where(model: Llama, tokens: Tensor, slots: list[int], starts: list[int]) -> Where:
    decoder, device = model.model, tokens.device
    attention = first_attention(model)
    index = torch.tensor(slots, device=device)
    is_dense = slots[-1] - slots[0] == len(slots) - 1  # then rows are a view, and nothing is copied
    length = max(starts) + tokens.shape[1]
    steps = torch.arange(length, device=device)
    at = torch.tensor(starts, device=device)[:, None] + steps[: tokens.shape[1]]  # (B, T)
    cos, sin = (each[:, None] for each in rotations_at(at, decoder.head_size, decoder.rope_theta))
    mask = steps <= at.repeat(1, attention.groups)[:, None, :, None]
    return Where(slice(slots[0], slots[-1] + 1) if is_dense else index, (index[:, None], at), length, (cos, sin), mask)


def _attend(attention: Attention, x: Tensor, where: Where, keys: Tensor, values: Tensor) -> Tensor:
    """As Attention.forward, over what the cache holds; the new keys and values are put there first."""
    batch, steps = x.shape[:2]
    heads = (batch, steps, -1, attention.head_size)
    q = rotate(attention.q_proj(x).view(heads).transpose(1, 2), where.rope)  # (B, N, T, H)
    k = rotate(attention.k_proj(x).view(heads).transpose(1, 2), where.rope)  # (B, K, T, H)
    row, column = where.places
    keys[row, :, column] = k.transpose(1, 2)  # (B, T, K, H), as indexing puts it
    values[row, :, column] = attention.v_proj(x).view(heads)
    k, v = (each[where.rows, :, : where.length] for each in (keys, values))  # (B, K, S, H)
    q = q.reshape(batch, k.shape[1], -1, attention.head_size)  # (B, K, G * T, H): nothing is repeated for a group
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=where.mask)
    out: Tensor = attention.o_proj(y.reshape(batch, -1, steps, attention.head_size).transpose(1, 2).flatten(2))
    return out  # (B, T, D)


class LlamaScorer:
    """See Scorer, and Expert."""

    def __init__(
        self, model: Llama, *, vocab: int, limit: int, slots: int, version: str, cache: Cache | None = None
    ) -> None:
        """`cache` is one with as many slots, of a scorer that holds nothing in the slots that this one is asked for."""
        self.vocab, self.limit, self.slots, self.version = vocab, limit, slots, version
        self._model = model.eval().requires_grad_(False)
        self._device = model.model.embed_tokens.weight.device
        self._cache = Cache.empty(model, slots) if cache is None else cache
        self._held = [0] * slots  # tokens

    def renewed(self, model: Llama, version: str) -> LlamaScorer:
        """A scorer with other weights of the same shapes. Each slot is either's, from its first token to its end."""
        sizes = {"vocab": self.vocab, "limit": self.limit, "slots": self.slots}
        return LlamaScorer(model, **sizes, version=version, cache=self._cache)

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        """See Scorer."""
        self._make_room(max(self._held[piece.slot] + len(piece.tokens) for piece in pieces))
        return in_groups(pieces, lambda group: self._call(group, forward))

    def weigh(self, pieces: Sequence[Piece]) -> Weighed:
        """See Expert."""
        self._make_room(max(self._held[piece.slot] + len(piece.tokens) for piece in pieces))
        return weighed(pieces, lambda group: self._call(group, forward_every))

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._held[slot] = 0

    def _call(self, pieces: Sequence[Piece], way: Callable[..., Tensor]) -> Tensor:
        """What `way`, one of the decoder's, gives for pieces of one length."""
        slots = [piece.slot for piece in pieces]
        tokens = torch.tensor([piece.tokens for piece in pieces], device=self._device)
        logits = way(self._model, self._cache, tokens, slots, [self._held[slot] for slot in slots])
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


class PlainScorer:
    """See Scorer, and Expert: any model; it computes a sequence anew for each piece. Right for all, and slow."""

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

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        """See Scorer."""
        return in_groups(pieces, lambda group: self._call(group)[:, -1])

    def weigh(self, pieces: Sequence[Piece]) -> Weighed:
        """See Expert."""
        return weighed(pieces, self._call)

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._held.pop(slot, None)

    def _call(self, pieces: Sequence[Piece]) -> Tensor:
        """Logits (B, T, V) of pieces of one length."""
        rows = []
        for piece in pieces:
            held = self._held.setdefault(piece.slot, [])
            held += piece.tokens
            rows.append(self._model(torch.tensor([held], device=self._device))[0, -len(piece.tokens) :])
        return torch.stack(rows)


def in_groups(pieces: Sequence[Piece], call: Callable[[Sequence[Piece]], Tensor]) -> LogProbs:
    """Log-probabilities (pieces, V) from the logits that `call` gives for pieces of one length, by rising slots."""
    order: list[int] = []
    parts: list[Tensor] = []
    with torch.inference_mode():
        for group in _groups(pieces):
            order += group
            parts.append(call([pieces[number] for number in group]))
        scores = torch.log_softmax(torch.cat(parts).float(), dim=-1).cpu()
        rows = torch.empty_like(scores)
        rows[torch.tensor(order)] = scores
    found: LogProbs = rows.numpy()
    return found


def weighed(pieces: Sequence[Piece], call: Callable[[Sequence[Piece]], Tensor]) -> Weighed:
    """The same, and what the pieces' tokens were worth, from logits (B, T, V). For single tokens it costs no more."""
    numbers = {piece.slot: number for number, piece in enumerate(pieces)}
    within = np.zeros(len(pieces))

    def last(group: Sequence[Piece]) -> Tensor:
        logits = call(group)
        if len(group[0].tokens) > 1:  # then it is the only one
            foreseen = torch.log_softmax(logits[0, :-1].float(), dim=-1)
            tokens = torch.tensor(group[0].tokens[1:], device=logits.device)
            within[numbers[group[0].slot]] = foreseen.gather(-1, tokens[:, None]).double().sum()
        return logits[:, -1]

    return Weighed(in_groups(pieces, last), within)


def _groups(pieces: Sequence[Piece]) -> Iterator[list[int]]:
    """Numbers of pieces that are called together: those of one token, and each longer one by itself."""
    numbers = sorted(range(len(pieces)), key=lambda number: pieces[number].slot)
    if single := [number for number in numbers if len(pieces[number].tokens) == 1]:
        yield single
    yield from ([number] for number in numbers if len(pieces[number].tokens) > 1)
