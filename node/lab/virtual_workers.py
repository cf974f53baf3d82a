"""Many virtual workers that train at once: their weights are the rows of one matrix.

All make the same inner step, each on its own batch: gradients by one batched pass, then AdamW, also in one call. Rows
are independent, except in steps that all make together.

The batched pass is that of decoder.py, with weights of its own for each worker's tokens. A small model's step is mostly
the overhead of calling operations, so M workers that share each call are faster than M in a row. In attention only the
projections have weights: elsewhere workers are just more sequences.

Shapes: M workers, d parameters, B sequences of T + 1 tokens, n = B T; D, V, N, K, H as in decoder.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import ModelSpec
from shoal.node.training.data.lanes import lane_batch
from shoal.node.training.methods.schedule import lr_factor
from shoal.node.training.models.decoder import NORM_EPSILON, Llama, build, rotate, rotations
from shoal.node.training.models.layout import Layout
from shoal.protocol.base.errors import LocalError

EPSILON = 1e-8  # AdamW's

Weights = Mapping[str, Tensor]  # by the names of decoder.py's parameters, each (M, *its shape)


class VirtualWorkers:
    """The weights of all workers, (M, d), and each one's AdamW."""

    def __init__(
        self,
        manifest: Manifest,
        text: Tensor,
        count: int,
        steps: int,
        *,
        lanes: int = 1,
        device: str = "cpu",
    ) -> None:
        """`count` workers with equal weights. `text` is a uint8 vector; `steps` is the whole run's, for the schedule.

        Each worker joins the batches of `lanes` lanes to one.
        """
        self.manifest, self.count, self.device = manifest, count, torch.device(device)
        self._text, self._total, self._lanes = text, steps, lanes
        self._spec = own_decoder(manifest)
        self._model: Llama = build(self._spec, manifest.seed)
        self.layout = Layout.of(self._model)
        self.weights = self.layout.read(self._model).to(self.device).repeat(count, 1)
        self._model.to(self.device)
        self._first, self._second = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self._decayed = decayed(self.layout).to(self.device)
        self._made = 0

    def model_of(self, weights: Tensor) -> Llama:
        """The model with these weights, (d,); the same object each time."""
        self.layout.load(weights, self._model)
        return self._model

    def gradients(self, step: int) -> tuple[Tensor, Tensor]:
        """Each worker's gradient, (M, d), at its weights on its batch of inner step `step` (from 1); its loss, (M,)."""
        tokens = torch.stack([self._batch(worker, step) for worker in range(self.count)])
        return batched_gradients(self._spec, self.layout, self.weights, tokens.to(self.device))

    def step(self, step: int, *, together: bool = False) -> Tensor:
        """One inner step of all workers; their losses, (M,), before it.

        `together`: all use the mean of their gradients, each clipped, as in data-parallel training.
        """
        gradients, losses = self.gradients(step)
        norms = gradients.norm(dim=1, keepdim=True)
        clipped = gradients * (self.manifest.method.clip / (norms + 1e-6)).clamp(max=1.0)
        self._update(clipped.mean(0).expand_as(clipped) if together else clipped, step)
        return losses

    def rate(self, step: int) -> float:
        """The learning rate of inner step `step` (from 1)."""
        spec = self.manifest.method
        factor = lr_factor(step - 1, warmup=spec.warmup_steps, total=self._total, decay_share=spec.decay_share)
        return spec.inner_lr * factor

    def _update(self, gradients: Tensor, step: int) -> None:
        """AdamW on each row (Loshchilov and Hutter, arXiv 1711.05101), as torch.optim.AdamW does it."""
        self._made += 1
        spec, rate, made = self.manifest.method, self.rate(step), self._made
        one, two = spec.betas
        self.weights.mul_(1 - rate * spec.weight_decay * self._decayed)
        self._first.lerp_(gradients, 1 - one)
        self._second.mul_(two).addcmul_(gradients, gradients, value=1 - two)
        spread = self._second.sqrt().div_((1 - two**made) ** 0.5).add_(EPSILON)
        self.weights.addcdiv_(self._first, spread, value=-rate / (1 - one**made))

    def _batch(self, worker: int, step: int) -> Tensor:
        """A worker's tokens, (B, T + 1), of all its lanes."""
        own = range(worker * self._lanes, (worker + 1) * self._lanes)
        spec, seed, context = self.manifest.method, self.manifest.seed, self.manifest.model.context
        return torch.cat([lane_batch(self._text, seed, lane, 0, step, spec.batch, context) for lane in own])


def own_decoder(manifest: Manifest) -> ModelSpec:
    """The manifest's model, if it is one that many workers can train in one pass; LocalError if not."""
    if not isinstance(manifest.model, ModelSpec):
        raise LocalError(
            f"the laboratory trains Shoal's own decoder, and no model of kind {manifest.model.name}",
            code="manifest-wrong",
        )
    return manifest.model


def decayed(layout: Layout) -> Tensor:
    """A mask, (d,): 1 where weights decay, 0 for the norms' gains."""
    mask = torch.ones(layout.size)
    for start, stop in layout.undecayed:
        mask[start:stop] = 0
    return mask


# -- the batched model -----------------------------------------------------------------------------------------------


def batched_gradients(spec: ModelSpec, layout: Layout, weights: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Each worker's gradient, (M, d), at its row of `weights`, (M, d), on its tokens, (M, B, T + 1); its loss, (M,)."""
    rows, leaves = len(weights), {}
    for place in layout:
        leaf = weights[:, place.start : place.stop].view(rows, *place.shape)
        leaves[place.name] = leaf.detach().requires_grad_()
    losses = batched_losses(spec, leaves, tokens)
    parts = torch.autograd.grad(losses.sum(), list(leaves.values()))  # no loss depends on another's weights
    return torch.cat([part.flatten(1) for part in parts], dim=1), losses.detach()


def batched_losses(spec: ModelSpec, weights: Weights, tokens: Tensor) -> Tensor:
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
