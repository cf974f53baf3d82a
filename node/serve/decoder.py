"""Shoal's own decoder (node/trainer/model.py) with a cache of keys and values, called for new tokens only.

Training needs none of this, so it stands apart: `forward` walks the model's own modules. Shapes are those of model.py,
and S is the length of the longest sequence in a call, G = N / K the query heads that share a key-value head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.node.trainer.layers import Rope
from shoal.node.trainer.model import Attention, Layer, Llama, rotate, rotations_at

Rows = slice | Tensor  # of the cache


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
