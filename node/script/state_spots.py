"""Which of the tensors that an optimizer keeps could be weights of its own, and of which of the module's.

By their sizes and places alone; what they hold says whether they are (state_kinds.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.node.script.state_tensors import Kept, kept_tensors

PADDING = 4096  # numbers at the end of a row of weights, at most

Numbers = Callable[[int], Tensor]  # like those of a weight, by its place


@dataclass(frozen=True, slots=True)
class Spot:
    """A tensor that an optimizer keeps, like a weight, or each `every`-th number of it, or several weights in a row."""

    kept: Kept
    places: Sequence[int]  # of the weights, one behind the other
    size: int  # how many numbers they stand for
    every: int = 1

    @property
    def tensor(self) -> Tensor:
        """All of it."""
        return self.kept.tensor

    @property
    def is_whole(self) -> bool:
        """Whether it has a number for each; else it is one zero in the place of all."""
        return self.tensor.numel() >= self.size and (self.every == 1 or self.tensor.dim() == 1)

    @property
    def numbers(self) -> Tensor:
        """Those of its own, flat, without padding."""
        return self.tensor.flatten()[: self.size]

    def part(self, of: Numbers) -> Tensor:
        """The numbers of tensors like the weights that it stands for, flat."""
        parts = [of(place).flatten() for place in self.places]
        return parts[0][:: self.every] if len(parts) == 1 else torch.cat([each.to(parts[0].device) for each in parts])

    def move(self, by: Numbers, share: float) -> None:
        """Go along with the weights, by so much of their way."""
        part = self.part(by).to(self.tensor.device) * share
        if self.is_whole:
            like = self._like(part)
            like.add_(part.view(like.shape))
        else:
            self.kept.holder[self.kept.key] = self.tensor + part

    def put(self, weights: Numbers, share: float) -> None:
        """Become the same, or that share of them."""
        part = self.part(weights) * share
        like = self._like(part)
        like.copy_(part.view(like.shape))

    def _like(self, part: Tensor) -> Tensor:
        tensor = self.tensor.detach()
        return tensor if tensor.numel() == part.numel() else tensor[: self.size]


class Matching:
    """Of what `optimizer` keeps with `weights`, by name, which are all that is trained of `module`."""

    def __init__(self, optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor], module: nn.Module) -> None:
        self._optimizer, self._named, self._weights = optimizer, weights, tuple(weights.values())
        parts = module.modules(), module.parameters(), module.buffers()  # an optimizer may know the module, too
        self._outside = {id(each) for kind in parts for each in kind}

    def spots(self) -> dict[str, list[Spot]]:
        """By label: of each label all tensors are like the weights that they belong to."""
        kept: dict[str, list[Kept]] = {}
        for each in kept_tensors(self._optimizer, self._named, self._outside):
            kept.setdefault(each.label, []).append(each)
        matched = ((label, self._matched(group)) for label, group in kept.items())
        return {label: group for label, group in matched if group is not None}

    def _matched(self, group: Sequence[Kept]) -> list[Spot] | None:
        """The same, as what they stand for; None if they cannot all be weights.

        Where nothing says whose they are: of all weights in order, or of rows of them, or each of the nearest one.
        """
        places = {id(weight): place for place, weight in enumerate(self._weights)}
        owned = [(each, -1 if each.owner is None else places[each.owner]) for each in group]
        if all(place >= 0 for _, place in owned):
            return self._alike(owned)
        rows = [[places[id(each)] for each in table["params"]] for table in self._optimizer.param_groups]
        in_order = [place for row in rows for place in row]
        sizes, wanted = [each.tensor.numel() for each in group], [self._weights[place].numel() for place in in_order]
        copies, rest = divmod(len(sizes), len(wanted))
        if not rest and sizes == wanted * copies:
            return self._alike(list(zip(group, in_order * copies, strict=True)))
        for cut in (rows, [in_order]):
            totals = [sum(self._weights[place].numel() for place in row) for row in cut]
            if len(cut) == len(group) and all(map(_is_row, (each.tensor for each in group), totals)):
                return [Spot(each, row, size) for each, row, size in zip(group, cut, totals, strict=True)]
        return self._alike([(each, self._nearest(each.tensor) if place < 0 else place) for each, place in owned])

    def _alike(self, group: Sequence[tuple[Kept, int]]) -> list[Spot] | None:
        """Each of one weight, at its place: all numbers of it, or each of so many."""
        fewest, most = 1, sys.maxsize
        for kept, place in group:
            if place < 0:
                return None
            tensor, size = kept.tensor, self._weights[place].numel()
            if tensor.numel() == size:
                continue
            if tensor.dim() == 1 and 0 < tensor.numel() <= size:
                fewest = max(fewest, -(-size // tensor.numel()))
                most = min(most, (size - 1) // (tensor.numel() - 1) if tensor.numel() > 1 else sys.maxsize)
            elif tensor.dim() or float(tensor) or isinstance(kept.holder, tuple):
                return None  # else it is one zero in the place of all, which the tensor that it becomes replaces there
        if fewest > most:
            return None
        spots = []
        for kept, place in group:
            size = self._weights[place].numel()
            every = 1 if kept.tensor.numel() == size else fewest
            spots.append(Spot(kept, (place,), -(-size // every), every))
        return spots

    def _nearest(self, tensor: Tensor) -> int:
        """The weight of its shape, or at least its size, that a tensor is nearest to; -1 if there is none."""
        alike = [place for place, weight in enumerate(self._weights) if weight.numel() == tensor.numel()]
        alike = [place for place in alike if self._weights[place].shape == tensor.shape] or alike
        if len(alike) < 2:
            return alike[0] if alike else -1
        flat = tensor.flatten()
        return min(alike, key=lambda at: _apart(flat, self._weights[at].flatten()))


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one.to(other.device) - other).double().square().sum())


def _is_row(tensor: Tensor, total: int) -> bool:
    """Whether it could be that many numbers of several weights, one behind the other."""
    return tensor.numel() == total or (tensor.dim() == 1 and 0 <= tensor.numel() - total <= PADDING)
