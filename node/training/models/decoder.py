"""A Llama-architecture decoder: RMSNorm, rotary position embeddings, SwiGLU, grouped-query attention.

Names and numerics are those of Hugging Face's LlamaForCausalLM (`model.layers.0.self_attn.q_proj.weight`, the two
halves of a head rotated against each other, epsilon 1e-6), so `transformers` opens an exported folder as it is. Shapes:
B batch, T tokens, D dim, V vocab, F hidden, N heads, K key-value heads, H = D / N head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from shoal.node.base.step_options import TrainerOptions
from shoal.node.manifest.model import ModelSpec
from shoal.node.training.models.kind import TrainedModel
from shoal.node.training.models.layers import CallLayer, Rope, call_layer, layer_call


class _WithoutInitialisation(TorchFunctionMode):
    """In this context, functions of torch.nn.init do nothing.

    On the meta device they would import torch's compiler, which takes seconds and a hundred megabytes.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)


@contextmanager
def unfilled() -> Iterator[None]:
    """Modules that are built in this context have names and shapes, but no weights."""
    with torch.device("meta"), _WithoutInitialisation():
        yield


NORM_EPSILON = 1e-6
INIT_STD = 0.02


def build(spec: ModelSpec, seed: int) -> Llama:
    """The run's model on the CPU, initialised from `seed` to the same bits on every machine.

    Weights are drawn from a uniform and not from a normal distribution: a uniform draw is an integer times a power of
    two, so only the multiplication below rounds. Normal draws need logarithms and cosines, whose last bit depends on
    the processor.
    """
    model = skeleton(spec)  # the modules' own initialisation would use the global generator
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    residual = INIT_STD / math.sqrt(2 * spec.layers)  # of projections into the residual stream, as in GPT-2
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:  # a norm's gain
                weight.fill_(1.0)
                continue
            std = residual if name.endswith(("o_proj.weight", "down_proj.weight")) else INIT_STD
            unit = torch.rand(weight.shape, generator=generator) - 0.5  # exact: multiples of 2**-24
            weight.copy_(unit * (std * math.sqrt(12)))
    return model


def skeleton(spec: ModelSpec) -> Llama:
    """The model with names and shapes, but without weights."""
    with unfilled():
        return Llama(spec)


class Llama(TrainedModel):
    """Tokens in, logits over the next token out."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.model = Decoder(spec)
        self.lm_head = None if spec.tied else nn.Linear(spec.dim, spec.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, V) for `tokens` (B, T)."""
        x = self.model(tokens)  # (B, T, D)
        weight = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return F.linear(x, weight)  # (B, T, V)

    def loss(self, tokens: Tensor) -> Tensor:
        """See TrainedModel."""
        logits = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def arrange(self, options: TrainerOptions) -> None:
        """See TrainedModel."""
        self.model.call_layer = layer_call(options)


class Decoder(nn.Module):
    """The embedding, the layers and the last norm."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_size, self.rope_theta = spec.dim // spec.heads, spec.rope_theta
        self.embed_tokens = nn.Embedding(spec.vocab, spec.dim)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.layers))
        self.norm = RMSNorm(spec.dim)
        self.call_layer: CallLayer = call_layer  # until `arrange` chooses another

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)  # (B, T, D)
        rope = rotations(tokens.shape[1], self.head_size, self.rope_theta, tokens.device)
        for layer in self.layers:
            x = self.call_layer(layer, x, rope)
        normed: Tensor = self.norm(x)
        return normed


class Layer(nn.Module):
    """Attention, then the gated MLP, each applied to the normed residual stream and added to it."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.dim)
        self.self_attn = Attention(spec)
        self.post_attention_layernorm = RMSNorm(spec.dim)
        self.mlp = MLP(spec)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out  # (B, T, D)


class Attention(nn.Module):
    """Causal attention in which N / K query heads share each key-value head."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_size = spec.dim // spec.heads
        self.groups = spec.heads // spec.kv_heads
        self.q_proj = nn.Linear(spec.dim, spec.heads * self.head_size, bias=False)
        self.k_proj = nn.Linear(spec.dim, spec.kv_heads * self.head_size, bias=False)
        self.v_proj = nn.Linear(spec.dim, spec.kv_heads * self.head_size, bias=False)
        self.o_proj = nn.Linear(spec.heads * self.head_size, spec.dim, bias=False)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        heads = (*x.shape[:2], -1, self.head_size)
        q = rotate(self.q_proj(x).view(heads).transpose(1, 2), rope)  # (B, N, T, H)
        k = rotate(self.k_proj(x).view(heads).transpose(1, 2), rope)  # (B, K, T, H)
        v = self.v_proj(x).view(heads).transpose(1, 2)  # (B, K, T, H)
        k, v = (each.repeat_interleave(self.groups, dim=1) for each in (k, v))  # (B, N, T, H)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, N, T, H)
        out: Tensor = self.o_proj(y.transpose(1, 2).flatten(2))
        return out  # (B, T, D)


class MLP(nn.Module):
    """SwiGLU: one projection, gated by the SiLU of another."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.dim, spec.hidden, bias=False)
        self.up_proj = nn.Linear(spec.dim, spec.hidden, bias=False)
        self.down_proj = nn.Linear(spec.hidden, spec.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # (B, T, F) -> (B, T, D)
        return out


class RMSNorm(nn.Module):
    """Scales each vector to root-mean-square 1, then by a learned gain; no mean, no bias."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, NORM_EPSILON)


def rotations(length: int, head_size: int, theta: float, device: torch.device) -> Rope:
    """The rotations of positions 0 to T - 1, (T, H) each."""
    return rotations_at(torch.arange(length, device=device), head_size, theta)


def rotations_at(positions: Tensor, head_size: int, theta: float) -> Rope:
    """Cosines and sines (..., H) of the angles by which positions (...) rotate a head's pairs of coordinates."""
    frequency = theta ** -(torch.arange(0, head_size, 2, device=positions.device).float() / head_size)  # (H / 2)
    angle = positions.float()[..., None] * frequency  # (..., H / 2)
    angle = torch.cat((angle, angle), dim=-1)  # (..., H)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """`x` (B, N, T, H) with coordinate i of the first half rotated against coordinate i of the second half."""
    cos, sin = rope
    first, second = x.chunk(2, dim=-1)  # (B, N, T, H / 2) each
    return x * cos + torch.cat((-second, first), dim=-1) * sin
