"""Many models of one shape at once: the forward pass of model.py with weights of its own for each worker's tokens.

A small model's step is mostly the overhead of calling operations, so M workers that share each call are faster than M
in a row. In attention only the projections have weights: elsewhere workers are just more sequences.

Shapes: M workers, B sequences of T + 1 tokens each; D, V, N, K, H as in model.py; n = B T.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.node.manifest.manifest import ModelSpec
from shoal.node.training.models.decoder import NORM_EPSILON, rotate, rotations
from shoal.node.training.models.layout import Layout

Weights = Mapping[str, Tensor]  # by the names of model.py, each (M, *its shape)


def gradients(spec: ModelSpec, layout: Layout, weights: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Each worker's gradient, (M, d), at its row of `weights`, (M, d), on its tokens, (M, B, T + 1); its loss, (M,)."""
    rows, leaves = len(weights), {}
    for place in layout:
        leaf = weights[:, place.start : place.stop].view(rows, *place.shape)
        leaves[place.name] = leaf.detach().requires_grad_()
    found = losses(spec, leaves, tokens)
    parts = torch.autograd.grad(found.sum(), list(leaves.values()))  # no loss depends on another's weights
    return torch.cat([part.flatten(1) for part in parts], dim=1), found.detach()


def losses(spec: ModelSpec, weights: Weights, tokens: Tensor) -> Tensor:
    """Each worker's mean cross-entropy, (M,), in nats of each token but the first, given those before it."""
    rows, batch, length = tokens.shape[0], tokens.shape[1], tokens.shape[2] - 1
    embedding = weights["model.embed_tokens.weight"]  # (M, V, D)
    own = torch.arange(rows, device=tokens.device)[:, None, None] * spec.vocab
    x = F.embedding(tokens[..., :-1] + own, embedding.flatten(0, 1)).flatten(1, 2)  # (M, n, D)
    rope = rotations(length, spec.dim // spec.heads, spec.rope_theta, tokens.device)
    for layer in range(spec.layers):
        x = _layer(spec, weights, f"model.layers.{layer}.", x, batch, rope)
    x = _norm(x, weights["model.norm.weight"])
    logits = _linear(x, embedding if spec.tied else weights["lm_head.weight"])  # (M, n, V)
    each = F.cross_entropy(logits.flatten(0, 1), tokens[..., 1:].flatten(), reduction="none")
    return each.view(rows, -1).mean(1)


def _layer(spec: ModelSpec, weights: Weights, name: str, x: Tensor, batch: int, rope: tuple[Tensor, Tensor]) -> Tensor:
    normed = _norm(x, weights[f"{name}input_layernorm.weight"])
    q, k, v = (
        _linear(normed, weights[f"{name}self_attn.{each}_proj.weight"])
        .view(len(x) * batch, -1, heads, spec.dim // spec.heads)
        .transpose(1, 2)  # (M B, N or K, T, H)
        for each, heads in (("q", spec.heads), ("k", spec.kv_heads), ("v", spec.kv_heads))
    )
    k, v = (each.repeat_interleave(spec.heads // spec.kv_heads, dim=1) for each in (rotate(k, rope), v))
    y = F.scaled_dot_product_attention(rotate(q, rope), k, v, is_causal=True)
    x = x + _linear(y.transpose(1, 2).reshape(x.shape), weights[f"{name}self_attn.o_proj.weight"])
    normed = _norm(x, weights[f"{name}post_attention_layernorm.weight"])
    gate, up = (_linear(normed, weights[f"{name}mlp.{each}_proj.weight"]) for each in ("gate", "up"))
    return x + _linear(F.silu(gate) * up, weights[f"{name}mlp.down_proj.weight"])


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """(M, n, in) by each worker's (out, in): (M, n, out)."""
    return torch.bmm(x, weight.transpose(1, 2))


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    """Each (D,) of (M, n, D) to root-mean-square 1, then by the worker's gain, of (M, D)."""
    return F.rms_norm(x, x.shape[-1:], eps=NORM_EPSILON) * gain[:, None]
