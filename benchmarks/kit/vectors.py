"""Random vectors that every process can reproduce, and the error of a mean against fp64.

Values are uniform in [-1, 1). Vectors are made block by block, so that no process holds those of all peers at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

BLOCK = 1 << 20  # elements
# The largest relative RMS error of each codec, for contributions and means together.
TOLERANCE = {"fp32": 1e-6, "fp16": 1e-3, "bf16": 5e-3, "int8": 2e-2, "fp4": 0.4}


def vector(seed: int, round: int, peer: int, elements: int) -> Floats:
    """Peer `peer`'s contribution to a round, of shape (elements,)."""
    whole = np.empty(elements, np.float32)
    for block, part in _blocks(elements):
        whole[part] = _random(seed, round, peer, block, part)
    return whole


def mean_error(mean: Floats, seed: int, round: int, peers: int) -> float:
    """Root of the mean squared error of `mean`, relative to the true mean in fp64; infinite if it is not finite."""
    wrong = true = 0.0
    for block, part in _blocks(len(mean)):
        exact = sum(_random(seed, round, peer, block, part).astype(np.float64) for peer in range(peers)) / peers
        wrong += float(np.square(mean[part] - exact).sum())
        true += float(np.square(exact).sum())
    error = float(np.sqrt(wrong / true))
    return error if np.isfinite(error) else float("inf")


def _blocks(elements: int) -> Iterator[tuple[int, slice]]:
    for block, start in enumerate(range(0, elements, BLOCK)):
        yield block, slice(start, min(start + BLOCK, elements))


def _random(seed: int, round: int, peer: int, block: int, part: slice) -> Floats:
    generator = np.random.default_rng([seed, round, peer, block])
    values: Floats = generator.random(part.stop - part.start, np.float32)
    values *= 2
    values -= 1
    return values
