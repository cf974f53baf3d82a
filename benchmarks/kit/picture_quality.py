"""Who judges sampled pictures: a small classifier of real ones, and what its answers say.

It is trained on the pictures that experts are trained on, and on no other; how often it is right about held-out real
ones bounds what its judgement is worth. Its last hidden layer gives the features of the distance of Fréchet between
normal distributions:

    |m_1 - m_2|^2 + tr(C_1 + C_2 - 2 (C_1^1/2 C_2 C_1^1/2)^1/2)

FID (arXiv 1706.08500) takes features of a network trained on ImageNet; here they are those of a classifier of the very
data. Only distances by the same features, and of as many pictures, can be compared: few pictures look further away.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.node.diffusion.pictures import Pictures

HIDDEN, FEATURES = 128, 32
STEPS, BATCH, RATE, DECAY = 600, 128, 2e-3, 0.5
JITTER = 0.6  # of noise on what it learns from: without, its features of these differ from those of other real ones


class Judge(nn.Module):
    """A classifier of pictures (n, P)."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(pixels, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, FEATURES)
        )
        self.head = nn.Linear(FEATURES, classes)

    def features(self, pictures: Tensor) -> Tensor:
        """(n, FEATURES)."""
        out: Tensor = F.silu(self.body(pictures))
        return out

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits (n, classes)."""
        out: Tensor = self.head(self.features(pictures))
        return out


@dataclass(frozen=True, slots=True)
class Quality:
    """What a set of pictures is worth; for the distance and the entropy of single pictures, less is better."""

    frechet: float  # to real pictures that nobody has trained on
    accuracy: float  # the share that is taken for the class that was asked for
    score: float  # exp of the mean divergence of p(class | picture) from p(class): 1 to the number of classes
    copied: float  # the share that is nearer to a training picture than real pictures usually are


def train_judge(pictures: Pictures, seed: int = 0) -> Judge:
    """The same for the same pictures and seed, on one machine."""
    pixels, classes = torch.from_numpy(pictures.pixels), torch.from_numpy(pictures.classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        judge = Judge(pixels.shape[1], pictures.count)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(judge.parameters(), lr=RATE, weight_decay=DECAY)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        which = torch.randint(len(pixels), (BATCH,), generator=generator)
        noisy = pixels[which] + JITTER * torch.randn(BATCH, pixels.shape[1], generator=generator)
        loss = F.cross_entropy(judge(noisy), classes[which])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return judge.eval().requires_grad_(False)


def accuracy(judge: Judge, pictures: Tensor, classes: Tensor) -> float:
    """The share of pictures (n, P) that it takes for their classes (n,)."""
    return float((judge(pictures).argmax(-1) == classes).float().mean())


def quality(judge: Judge, pictures: Tensor, classes: Tensor, real: Tensor, trained: Tensor) -> Quality:
    """Of sampled pictures (n, P) of the classes (n,) that were asked for; `real` (m, P) are held out, `trained` not."""
    shares = torch.softmax(judge(pictures), dim=-1)
    mean = shares.mean(0)
    divergence = (shares * (shares.clamp(min=1e-12).log() - mean.clamp(min=1e-12).log())).sum(-1).mean()
    usual = torch.cdist(real, trained).min(-1).values.quantile(0.05)
    return Quality(
        frechet=frechet_distance(judge.features(pictures), judge.features(real)),
        accuracy=accuracy(judge, pictures, classes),
        score=float(divergence.exp()),
        copied=float((torch.cdist(pictures, trained).min(-1).values < usual).float().mean()),
    )


def frechet_distance(one: Tensor, other: Tensor) -> float:
    """Of features (n, d) and (m, d), n and m over 1."""
    (mean, spread), (other_mean, other_spread) = _normal(one), _normal(other)
    root = _root(spread)
    overlap = torch.linalg.eigvalsh(root @ other_spread @ root).clamp(min=0).sqrt().sum()
    apart = (mean - other_mean).square().sum()
    return float((apart + spread.trace() + other_spread.trace() - 2 * overlap).clamp(min=0))


def _normal(features: Tensor) -> tuple[Tensor, Tensor]:
    if len(features) < 2:
        raise ValueError(f"{len(features)} pictures have no spread")
    features = features.double()
    return features.mean(0), torch.cov(features.T).reshape(features.shape[1], -1)


def _root(matrix: Tensor) -> Tensor:
    """The square root of a symmetric matrix without negative eigenvalues, but for errors of rounding."""
    values, vectors = torch.linalg.eigh(matrix)
    root: Tensor = vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T
    return root
