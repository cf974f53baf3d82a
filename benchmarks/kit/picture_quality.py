"""Measures of sampled pictures, by a small classifier of real ones.

The classifier is trained on the pictures that experts are trained on, and on no others; its accuracy on held-out real
pictures bounds what the measures are worth. Its last hidden layer gives the features for the Fréchet distance between
normal distributions:

    |m_1 - m_2|^2 + tr(C_1 + C_2 - 2 (C_1^1/2 C_2 C_1^1/2)^1/2)

FID (arXiv 1706.08500) uses features of a network trained on ImageNet; here they are those of a classifier of the same
data. Only distances with the same features and the same number of pictures can be compared: with fewer pictures the
distance is larger.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.node.diffusion.pictures import Pictures

HIDDEN, FEATURES = 128, 32
STEPS, BATCH, RATE, DECAY = 600, 128, 2e-3, 0.5
JITTER = 0.6  # of noise on training pictures: without it, their features differ from those of other real pictures


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
    """Measures of a set of pictures; of `frechet` and `copied` lower values are better, of the others higher ones."""

    frechet: float  # distance to held-out real pictures
    accuracy: float  # the share that is classified as the requested class
    score: float  # exp of the mean divergence of p(class | picture) from p(class): 1 to the number of classes
    copied: float  # the share that is nearer to a training picture than real pictures usually are


def train_judge(pictures: Pictures, seed: int = 0) -> Judge:
    """Trains the classifier; reproducible from pictures and seed on one machine."""
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
    """The share of pictures (n, P) that are classified as their classes (n,)."""
    return float((judge(pictures).argmax(-1) == classes).float().mean())


def quality(judge: Judge, pictures: Tensor, classes: Tensor, real: Tensor, trained: Tensor) -> Quality:
    """Measures sampled pictures (n, P) of the requested classes (n,); `real` (m, P) are held out, `trained` are not."""
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
    """The Fréchet distance of features (n, d) and (m, d), with n and m over 1."""
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
    """The square root of a positive semidefinite matrix; eigenvalues that rounding made negative count as 0."""
    values, vectors = torch.linalg.eigh(matrix)
    root: Tensor = vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T
    return root
