"""Balanced k-means: groups of like samples, none much larger than another, so that experts have as much to learn.

Each iteration of Lloyd's algorithm assigns every sample to the nearest centre that has room left, those first that
would lose most by the second best; a centre has room as long as it has less than its even share (as in c-BTM, arXiv
2303.14177). Samples may have weights, such as bytes of text, which are balanced then. A new sample goes to the nearest
centre, handicaps included: `level` finds handicaps with which that gives even groups, too.

Deterministic: the first centres are drawn by k-means++ from the seed; ties go to the lower index; all in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]
TURNS = 30
LEVELLING, LEVELLED = 400, 20  # turns; the first step is by 1 / LEVELLED of the costs' spread


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """Centres (k, d), and which of them each sample was given to, (n,)."""

    centres: Points
    labels: Labels
    turns: int  # until nothing changed any more, or TURNS

    @property
    def sizes(self) -> list[int]:
        """How many samples each has."""
        return [int(size) for size in np.bincount(self.labels, minlength=len(self.centres))]


def cluster(points: Points, k: int, seed: int, balanced: bool = True, weights: Weights | None = None) -> Clusters:
    """Groups of the samples (n, d), of weights (n,); ValueError where there are fewer than k different ones."""
    if k < 1 or len(np.unique(points, axis=0)) < k:
        raise ValueError(f"{len(points)} samples, not all different, cannot make {k} groups")
    centres = _first_centres(points, k, np.random.default_rng(seed))
    weights = np.ones(len(points)) if weights is None else weights
    room = float(weights.sum()) / (k if balanced else 1)
    labels = np.full(len(points), -1)
    for turn in range(1, TURNS + 1):
        given = assign(distances(points, centres), room, weights)
        if np.array_equal(given, labels):
            return Clusters(centres, labels, turn)
        labels = given
        centres = np.stack([points[labels == each].mean(0) for each in range(k)])
    return Clusters(centres, labels, TURNS)


def nearest(points: Points, centres: Points) -> Labels:
    """The group of each sample (n, d), whatever room there is: (n,)."""
    labels: Labels = distances(points, centres).argmin(1)
    return labels


def distances(points: Points, centres: Points) -> Points:
    """Squares of the distances, (n, k)."""
    between = points @ centres.T
    squares = (points * points).sum(1)[:, None] + (centres * centres).sum(1)[None] - 2 * between
    positive: Points = np.maximum(squares, 0.0)
    return positive


def level(cost: Points, weights: Weights) -> Weights:
    """Handicaps (k,) with which the samples' cheapest groups, by costs (n, k), have the most even weights.

    By subgradient steps on the dual of the balanced assignment: who has too much becomes dearer. The best of all turns
    counts.
    """
    k = cost.shape[1]
    even, scale = weights.sum() / k, float(cost.std())
    handicaps = best = np.zeros(k)
    least = np.inf
    for turn in range(LEVELLING):
        sizes = np.bincount((cost + handicaps).argmin(1), weights, minlength=k)
        excess = sizes / even - 1
        if np.abs(excess).max() < least:
            best, least = handicaps, np.abs(excess).max()
        handicaps = handicaps + scale * excess / (LEVELLED + turn)
    found: Weights = best - best.min()
    return found


def assign(cost: Points, room: float, weights: Weights | None = None) -> Labels:
    """A group for each sample by its costs (n, k), to none that has `room` or more already; no group is left empty."""
    n, k = cost.shape
    order = np.argsort(cost, axis=1, kind="stable")
    ranked = np.take_along_axis(cost, order, axis=1)
    regret = ranked[:, 1] - ranked[:, 0] if k > 1 else np.zeros(n)
    labels, left = np.empty(n, np.int64), [room] * k
    for sample in np.argsort(-regret, kind="stable"):
        choice = next((each for each in order[sample] if left[each] > 0), order[sample, 0])  # sums are rounded
        labels[sample] = choice
        left[choice] -= 1 if weights is None else weights[sample]
    return _without_gaps(labels, cost)


def _without_gaps(labels: Labels, cost: Points) -> Labels:
    """An empty group takes the sample that is nearest to it, of those that are not alone in theirs."""
    for empty in np.flatnonzero(np.bincount(labels, minlength=cost.shape[1]) == 0):
        sizes = np.bincount(labels, minlength=cost.shape[1])
        labels[np.where(sizes[labels] > 1, cost[:, empty], np.inf).argmin()] = empty
    return labels


def _first_centres(points: Points, k: int, rng: np.random.Generator) -> Points:
    """k-means++: each next one is drawn by its distance to those that there are, squared."""
    chosen = [points[rng.integers(len(points))]]
    while len(chosen) < k:
        far = distances(points, np.stack(chosen)).min(1)
        chosen.append(points[rng.choice(len(points), p=far / far.sum())])
    return np.stack(chosen)
