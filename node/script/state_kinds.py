"""Whether tensors are weights, by what they hold: all values of one label, beside the weights that they stand for.

After an optimizer's first step weights lie where they were, or on the line that the step took. Moments do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

import torch
from torch import Tensor

AHEAD = 10.0  # steps: weights of which the module's follow by a tenth, as a z, are so far ahead of them
TOLERANCE = 0.01  # of the squared step
ROUNDING = 1e-12  # of the squared weights
CLOSE = 0.5  # of the squared weights: a copy that we have not seen come into being
STRAIGHT = 0.9  # the squared cosine between the weights and a step that leads to or from zero
SAME = 1e-6  # of the squared weights: how far an average that is shown just now is from them
NEARLY_ALL = 0.99  # from here on a share is all


class Kind(Enum):
    """What the tensors of a label are."""

    OTHER = auto()
    WEIGHTS = auto()
    SHARE = auto()  # of weights: an average that began from zeros, before it is divided by how far it has come


def kind_beside(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Kind:
    """What `values` are that were not seen come into being."""
    size, share = _size(weights), share_of(values, weights)
    if 0 < share < NEARLY_ALL and _apart(values, weights, share) <= SAME * share**2 * size:
        return Kind.SHARE
    return Kind.WEIGHTS if size and _apart(values, weights) <= CLOSE * size else Kind.OTHER


def kind_after_step(values: Sequence[Tensor], begins: Sequence[Tensor], ends: Sequence[Tensor]) -> Kind | None:
    """What `values` are after a step of the weights from `begins` to `ends`; None if that tells nothing."""
    size, step = _size(begins), _size(list(map(torch.sub, ends, begins)))
    if size <= step:  # weights no larger than a step are like anything, unless they are kept to the bit
        is_same = all(torch.equal(value.to(begin), begin) for value, begin in zip(values, begins, strict=True))
        return Kind.WEIGHTS if is_same else None
    near = TOLERANCE * step + ROUNDING * size
    if _off_line(values, begins, ends) <= near:
        return Kind.WEIGHTS
    share = share_of(values, ends)
    if share > 0 and _is_aslant(begins, ends) and _off_line([each / share for each in values], begins, ends) <= near:
        return Kind.SHARE
    return Kind.OTHER


def is_ahead(values: Sequence[Tensor], begins: Sequence[Tensor], ends: Sequence[Tensor]) -> bool:
    """Whether some are beyond where the step led, as are weights that the module's follow slowly, and large steps."""
    return max(_on_line(*each)[1] for each in zip(values, begins, ends, strict=True)) > 1.0 + TOLERANCE


def goes_along(moves: Sequence[Tensor], steps: Sequence[Tensor]) -> bool:
    """Whether something moves where the weights step."""
    return sum(map(_dot, steps, moves)) >= 0


def share_of(values: Sequence[Tensor], weights: Sequence[Tensor]) -> float:
    """How much of the weights they are, if they are a share of them."""
    size = _size(weights)
    return sum(map(_dot, weights, values)) / size if size else 1.0


def _is_aslant(begins: Sequence[Tensor], ends: Sequence[Tensor]) -> bool:
    """Whether a step leads aside. Else all of its kind, as moments, are a share of the weights."""
    steps = list(map(torch.sub, ends, begins))
    return sum(map(_dot, steps, begins)) ** 2 < STRAIGHT * _size(steps) * _size(begins)


def _apart(values: Sequence[Tensor], weights: Sequence[Tensor], share: float = 1.0) -> float:
    """How far they are from so much of the weights, squared."""
    pairs = zip(values, weights, strict=True)
    return sum(_square(value.to(weight.device) - share * weight) for value, weight in pairs)


def _off_line(values: Sequence[Tensor], begins: Sequence[Tensor], ends: Sequence[Tensor]) -> float:
    """How far they are from the lines that the step took, squared."""
    return sum(_on_line(*each)[0] for each in zip(values, begins, ends, strict=True))


def _on_line(value: Tensor, begin: Tensor, end: Tensor) -> tuple[float, float]:
    """How far `value` is from the line that goes from `begin` through `end`, squared, and where on it, 1 at `end`."""
    step, off = end - begin, value.to(begin.device) - begin
    length = _square(step)
    at = min(max(float((off * step).sum()) / length, 0.0), AHEAD) if length else 0.0
    return _square(off - at * step), at


def _size(tensors: Sequence[Tensor]) -> float:
    return sum(map(_square, tensors))


def _dot(one: Tensor, other: Tensor) -> float:
    return float((one.double() * other.to(one.device)).sum())


def _square(tensor: Tensor) -> float:
    return float(tensor.double().square().sum())
