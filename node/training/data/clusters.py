"""Balanced k-means: groups of like samples of about the same size, so that all experts have as much to learn from.

Each iteration of Lloyd's algorithm assigns every sample to the nearest centre that has room left; a centre has room as
long as it has less than its even share (as in c-BTM, arXiv 2303.14177). Samples to which the second-best centre is much
worse go first. If samples have weights, such as bytes of text, the weights are balanced. A new sample goes to the
nearest centre after handicaps; `balancing_handicaps` finds handicaps with which this gives even groups, too.

Deterministic: the first centres are drawn by k-means++ from the seed; ties go to the lower index; all in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]
MAX_ITERATIONS = 30
HANDICAP_ITERATIONS = 400
HANDICAP_DAMPING = 20  # iteration i moves handicaps by 1 / (HANDICAP_DAMPING + i) of the costs' spread


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """Centres (k, d), and the group of each sample (n,)."""

    centres: Points
    labels: Labels
    iterations: int  # until nothing changed any more, or MAX_ITERATIONS

    @property
    def sizes(self) -> list[int]:
        """How many samples each group has."""
        return [int(size) for size in np.bincount(self.labels, minlength=len(self.centres))]


def cluster(points: Points, k: int, seed: int, balanced: bool = True, weights: Weights | None = None) -> Clusters:
    """Clusters samples (n, d) with weights (n,) into k groups; ValueError if fewer than k samples are different."""
    if k < 1 or len(np.unique(points, axis=0)) < k:
        raise ValueError(f"{len(points)} samples, not all different, cannot make {k} groups")
    centres = _first_centres(points, k, np.random.default_rng(seed))
    weights = np.ones(len(points)) if weights is None else weights
    room = float(weights.sum()) / (k if balanced else 1)
    labels = np.full(len(points), -1)
    for iteration in range(1, MAX_ITERATIONS + 1):
        assigned = assign(distances(points, centres), room, weights)
        if np.array_equal(assigned, labels):
            return Clusters(centres, labels, iteration)
        labels = assigned
        centres = np.stack([points[labels == each].mean(0) for each in range(k)])
    return Clusters(centres, labels, MAX_ITERATIONS)


def nearest(points: Points, centres: Points) -> Labels:
    """The group (n,) with the nearest centre for each sample (n, d), without balancing."""
    labels: Labels = distances(points, centres).argmin(1)
    return labels


def distances(points: Points, centres: Points) -> Points:
    """Squared distances (n, k) of points (n, d) to centres (k, d)."""
    between = points @ centres.T
    squares = (points * points).sum(1)[:, None] + (centres * centres).sum(1)[None] - 2 * between
    positive: Points = np.maximum(squares, 0.0)
    return positive


def balancing_handicaps(cost: Points, weights: Weights) -> Weights:
    """Handicaps (k,) with which groups are most even in weight if each sample takes the lowest cost (n, k) + handicap.

    These are subgradient steps on the dual of the balanced assignment: the handicap of a group with too much weight
    grows. The best iteration's handicaps are returned.
    """
    k = cost.shape[1]
    even, scale = weights.sum() / k, float(cost.std())
    handicaps = best = np.zeros(k)
    least = np.inf
    for iteration in range(HANDICAP_ITERATIONS):
        sizes = np.bincount((cost + handicaps).argmin(1), weights, minlength=k)
        excess = sizes / even - 1
        if np.abs(excess).max() < least:
            best, least = handicaps, np.abs(excess).max()
        handicaps = handicaps + scale * excess / (HANDICAP_DAMPING + iteration)
    found: Weights = best - best.min()
    return found


def assign(cost: Points, room: float, weights: Weights | None = None) -> Labels:
    """A group (n,) for each sample by its costs (n, k); a group with `room` or more is full, and none is left empty."""
    n, k = cost.shape
    order = np.argsort(cost, axis=1, kind="stable")
    ranked = np.take_along_axis(cost, order, axis=1)
    regret = ranked[:, 1] - ranked[:, 0] if k > 1 else np.zeros(n)
    labels, left = np.empty(n, np.int64), [room] * k
    for sample in np.argsort(-regret, kind="stable"):
        choice = next((each for each in order[sample] if left[each] > 0), order[sample, 0])  # all full, by rounding
        labels[sample] = choice
        left[choice] -= 1 if weights is None else weights[sample]
    return _without_gaps(labels, cost)


def _without_gaps(labels: Labels, cost: Points) -> Labels:
    """Gives each empty group the sample nearest to it whose own group has others."""
    for empty in np.flatnonzero(np.bincount(labels, minlength=cost.shape[1]) == 0):
        sizes = np.bincount(labels, minlength=cost.shape[1])
        labels[np.where(sizes[labels] > 1, cost[:, empty], np.inf).argmin()] = empty
    return labels


def _first_centres(points: Points, k: int, rng: np.random.Generator) -> Points:
    """k-means++: draws each next centre with probability proportional to the squared distance to the nearest so far."""
    chosen = [points[rng.integers(len(points))]]
    while len(chosen) < k:
        far = distances(points, np.stack(chosen)).min(1)
        chosen.append(points[rng.choice(len(points), p=far / far.sum())])
    return np.stack(chosen)
