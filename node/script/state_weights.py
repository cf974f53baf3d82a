"""The weights that an optimizer keeps in its state, beside the module's.

A schedule-free optimizer steps a `z` of its own, Lookahead has slow weights, a mixed-precision one masters, ASGD an
average, Prodigy what it began with. When a round replaces the module's weights these have to go along, or the next
step takes back what came of the round. So they are moved by as much as the weights are: how far each is from the
weights stays this machine's own, as moments do, and training goes on as it would have, elsewhere.

Which tensors these are is found by what they hold, whatever their names: after an optimizer's first step they lie
where the weights were, or on the line that the step took, and go the same way with the next one. Moments do not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

PLAIN = ("torch.optim.", "transformers.optimization")  # whose states are of gradients alone
NOT_PLAIN = ("ASGD",)
AHEAD = 10.0  # steps: weights of which the module's follow by a tenth, as a z, are so far ahead of them
TOLERANCE = 0.01  # of the squared step
ROUNDING = 1e-12  # of the squared weights
CLOSE = 0.5  # of the squared weights: a copy that we have not seen come into being

_learned: WeakKeyDictionary[torch.optim.Optimizer, dict[str, bool]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Spot:
    """A tensor in an optimizer's state, like one of the weights, or like each `every`-th number of it in a row."""

    holder: Any  # a dict or a list
    key: Any
    place: int  # of the weight
    every: int  # 0: of the weight's shape

    @property
    def tensor(self) -> Tensor:
        found: Tensor = self.holder[self.key]
        return found

    def part(self, of: Tensor) -> Tensor:
        """The numbers of a tensor like the weight that it stands for."""
        return of.flatten()[:: self.every] if self.every else of

    def move(self, by: Tensor) -> None:
        """Go along with the weight."""
        tensor = self.tensor
        part = self.part(by).to(tensor.device)
        if tensor.shape == part.shape:
            tensor.add_(part)
        else:  # one zero in the place of as many as there are
            self.holder[self.key] = tensor + part


class StateWeights:
    """Those of `optimizer`, beside `weights`."""

    def __init__(self, optimizer: torch.optim.Optimizer, weights: Sequence[Tensor]) -> None:
        self._optimizer, self._weights = optimizer, weights
        kind = type(optimizer)
        self._is_plain = kind.__module__.startswith(PLAIN) and kind.__name__ not in NOT_PLAIN
        self._is_weights = _learned.setdefault(optimizer, {})  # by label
        self._before: list[Tensor] | None = None  # the weights before the next step, while we learn
        self._ahead: dict[str, list[Tensor]] = {}  # what may be ahead of the weights: how it was after the first step
        self._looks = 0

    def load(self, fresh: Sequence[Tensor], *, is_end: bool = False) -> None:
        """Give the module these weights, and move the others along; at the run's end they become the same ones."""
        with torch.no_grad(), shown(self._optimizer, self._weights):
            along: dict[int, list[Spot]] = {}
            for spot in self._found():
                along.setdefault(spot.place, []).append(spot)
            for place, (weight, wanted) in enumerate(zip(self._weights, fresh, strict=True)):
                for spot in along.get(place, ()):
                    spot.move(wanted.to(weight.device) - weight)
                weight.copy_(wanted)
                for spot in along.get(place, ()) if is_end else ():
                    spot.tensor.copy_(spot.part(weight))
        if self._ahead:
            spots = self._spots()
            self._ahead = {label: self._copies(spots.get(label, ())) for label in self._ahead}
        if not self._is_plain and (not self._looks or self._ahead):
            self._before = [weight.detach().clone() for weight in self._weights]

    def stepped(self) -> None:
        """The optimizer has made a step: see what it keeps."""
        if self._before is None:
            return
        with torch.no_grad():
            before, now = self._before, [weight.detach() for weight in self._weights]
            if self._looks:
                self._look_again(before, now)
            else:
                self._look(before, now)
        self._looks += 1
        self._before = [each.clone() for each in now] if self._ahead else None

    # -- inside ---------------------------------------------------------------------------------------------

    def _found(self) -> list[Spot]:
        """All that are weights. Of what is seen for the first time now, that is what is near to them."""
        if self._is_plain:
            return []
        spots = self._spots()
        for label, group in spots.items():
            if label not in self._is_weights and _is_filled(group):
                pairs = [(each.tensor, each.part(self._weights[each.place])) for each in group if self._has_shape(each)]
                size = sum(_square(weight) for _, weight in pairs)
                apart = sum(_square(tensor.to(weight.device) - weight) for tensor, weight in pairs)
                self._is_weights[label] = size > 0 and apart <= CLOSE * size
        return [each for label, group in spots.items() if self._is_weights.get(label) for each in group]

    def _look(self, before: Sequence[Tensor], now: Sequence[Tensor]) -> None:
        """After the first step of which we know where it began."""
        step = sum(_square(new - old) for old, new in zip(before, now, strict=True))
        size = sum(map(_square, before))
        if size <= step:
            return  # weights that are no larger than a step tell nothing
        for label, group in self._spots().items():
            if label in self._is_weights or not _is_filled(group):
                continue
            known = [each for each in group if self._has_shape(each)]
            lines = [_line(each.tensor, each.part(before[each.place]), each.part(now[each.place])) for each in known]
            is_near = bool(known) and sum(away for away, _ in lines) <= TOLERANCE * step + ROUNDING * size
            self._is_weights[label] = is_near
            if is_near and max(at for _, at in lines) > 1.0 + TOLERANCE:
                self._ahead[label] = self._copies(known)

    def _look_again(self, before: Sequence[Tensor], now: Sequence[Tensor]) -> None:
        """After the second: whether what seemed to be ahead goes where the weights go."""
        spots = self._spots()
        for label, then in self._ahead.items():
            known = [each for each in spots.get(label, ()) if self._has_shape(each)]
            steps = [each.part(now[each.place] - before[each.place]) for each in known]
            moves = [each.tensor - old for each, old in zip(known, then, strict=False)]
            along = sum(float((move.to(step.device) * step).sum()) for move, step in zip(moves, steps, strict=False))
            self._is_weights[label] = along >= 0
        self._ahead.clear()

    def _copies(self, spots: Sequence[Spot]) -> list[Tensor]:
        return [each.tensor.detach().clone() for each in spots if self._has_shape(each)]

    def _has_shape(self, spot: Spot) -> bool:
        return spot.tensor.shape == spot.part(self._weights[spot.place]).shape

    def _spots(self) -> dict[str, list[Spot]]:
        """What could be weights, by label: of each label all tensors are like the weights that they belong to."""
        places = {id(weight): place for place, weight in enumerate(self._weights)}
        spots: dict[str, list[Spot]] = {}
        for label, holder, key, owner in _tensors(self._optimizer, set(places)):
            if holder[key].is_floating_point() and holder[key].layout == torch.strided:
                spots.setdefault(label, []).append(Spot(holder, key, places[owner] if owner is not None else -1, 0))
        alike = ((label, self._alike(self._owned(group))) for label, group in spots.items())
        return {label: group for label, group in alike if group is not None}

    def _owned(self, group: Sequence[Spot]) -> Sequence[Spot]:
        """The same, also where nothing says whose they are: of all weights in order, or each of the nearest one."""
        if all(spot.place >= 0 for spot in group):
            return group
        places = {id(weight): place for place, weight in enumerate(self._weights)}
        in_order = [places[id(each)] for table in self._optimizer.param_groups for each in table["params"]]
        if [spot.tensor.shape for spot in group] == [self._weights[place].shape for place in in_order]:
            return [replace(spot, place=place) for spot, place in zip(group, in_order, strict=True)]
        return [spot if spot.place >= 0 else replace(spot, place=self._nearest(spot.tensor)) for spot in group]

    def _alike(self, group: Sequence[Spot]) -> list[Spot] | None:
        """The same, as what they stand for; None if they cannot all be weights."""
        fewest, most = 1, sys.maxsize
        for spot in group:
            if spot.place < 0:
                return None
            tensor, size = spot.tensor, self._weights[spot.place].numel()
            if tensor.shape == self._weights[spot.place].shape:
                continue
            if tensor.dim() == 1 and 0 < tensor.numel() <= size:
                fewest = max(fewest, -(-size // tensor.numel()))
                most = min(most, (size - 1) // (tensor.numel() - 1) if tensor.numel() > 1 else sys.maxsize)
            elif tensor.dim() or float(tensor) or isinstance(spot.holder, tuple):
                return None  # else it is one zero in the place of all, which the tensor that it becomes replaces there
        if fewest > most:
            return None
        alike = (spot.tensor.shape == self._weights[spot.place].shape for spot in group)
        return [spot if is_alike else replace(spot, every=fewest) for spot, is_alike in zip(group, alike, strict=True)]

    def _nearest(self, tensor: Tensor) -> int:
        """The weight of its shape that a tensor is nearest to; -1 if there is none."""
        alike = [place for place, weight in enumerate(self._weights) if weight.shape == tensor.shape]
        if len(alike) < 2:
            return alike[0] if alike else -1
        return min(alike, key=lambda place: _square(tensor.to(self._weights[place].device) - self._weights[place]))


@contextmanager
def shown(optimizer: torch.optim.Optimizer, weights: Sequence[Tensor]) -> Iterator[None]:
    """In the module are the weights that the optimizer means to show, as a schedule-free one does after `eval()`."""
    show, go_on = getattr(optimizer, "eval", None), getattr(optimizer, "train", None)
    if not (callable(show) and callable(go_on)):
        yield
        return
    with torch.no_grad():
        flags, before = _flags(optimizer), [weight.detach().clone() for weight in weights]
        show()
        was_training = flags != _flags(optimizer) or not all(map(torch.equal, before, weights))
        del before
    try:
        yield
    finally:
        if was_training:
            with torch.no_grad():
                go_on()


def _flags(optimizer: torch.optim.Optimizer) -> list[tuple[str, bool]]:
    tables: list[Mapping[str, Any]] = [vars(optimizer), *optimizer.param_groups]
    return [(key, value) for each in tables for key, value in each.items() if isinstance(value, bool)]


def _tensors(optimizer: Any, weights: set[int]) -> Iterator[tuple[str, Any, Any, int | None]]:
    """All tensors in an optimizer, and in those inside it: label, what holds it, its key there, whose it is if known.

    Those of one label lie in like places. The weights themselves, `weights` by id, are left out.
    """
    seen: set[int] = set()

    def walk(value: Any, label: str, holder: Any, key: Any, owner: int | None) -> Iterator[tuple[str, Any, Any, Any]]:
        if id(value) in weights or (id(value) in seen and not isinstance(value, Tensor)):
            return
        if isinstance(value, Tensor):
            if id(value) not in seen:
                seen.add(id(value))
                yield label, holder, key, owner
            return
        seen.add(id(value))
        inside: Sequence[tuple[Any, Any]] = ()
        if isinstance(value, torch.optim.Optimizer):
            value = vars(value)
        if isinstance(value, Mapping):
            inside = [(each, within) for each, within in value.items() if each not in ("params", "defaults")]
        elif isinstance(value, list | tuple):
            inside = list(enumerate(value))
        for each, within in inside:
            named = f"{label}.{each}" if isinstance(each, str) else label
            whose = id(each) if id(each) in weights else owner
            yield from walk(within, named, value, each, whose)

    yield from walk(optimizer, "", None, None, None)


def _is_filled(group: Sequence[Spot]) -> bool:
    """Whether there is anything in it yet."""
    return any(bool(each.tensor.any()) for each in group)


def _line(value: Tensor, begin: Tensor, end: Tensor) -> tuple[float, float]:
    """How far `value` is from the line that goes from `begin` through `end`, squared, and where on it, 1 at `end`."""
    step, off = end - begin, value.to(begin.device) - begin
    length = _square(step)
    at = min(max(float((off * step).sum()) / length, 0.0), AHEAD) if length else 0.0
    return _square(off - at * step), at


def _square(tensor: Tensor) -> float:
    return float(tensor.double().square().sum())
