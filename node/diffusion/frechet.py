"""How far two sets of pictures are apart: the distance of Fréchet between normal distributions of their features.

    |m_1 - m_2|^2 + tr(C_1 + C_2 - 2 (C_1^1/2 C_2 C_1^1/2)^1/2)

FID (arXiv 1706.08500) takes features of a network trained on ImageNet; here they are those of a classifier of the very
data. Only distances by the same features, and of as many pictures, can be compared: few pictures look further away.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
