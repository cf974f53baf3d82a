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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from shoal.node.script.state_tensors import Kept, kept_tensors
from shoal.node.script.taken_back import TakenBack
from shoal.protocol.errors import LocalError

PLAIN = ("torch.optim.", "transformers.optimization")  # whose states are of gradients alone
NOT_PLAIN = ("ASGD",)
AHEAD = 10.0  # steps: weights of which the module's follow by a tenth, as a z, are so far ahead of them
TOLERANCE = 0.01  # of the squared step
STRAIGHT = 0.9  # the squared cosine between the weights and a step that leads to or from zero
NEARLY_ALL = 0.99  # from here on a share is all
SAME = 1e-6  # of the squared weights: what an average that is shown just now, is from them
ROUNDING = 1e-12  # of the squared weights
PADDING = 4096  # numbers at the end of a row of weights, at most
CLOSE = 0.5  # of the squared weights: a copy that we have not seen come into being


class Kind(Enum):
    """What the tensors of a label are."""

    OTHER = auto()
    WEIGHTS = auto()
    SHARE = auto()  # of weights: an average that began from zeros, before it is divided by how far it has come


_learned: WeakKeyDictionary[torch.optim.Optimizer, dict[str, Kind]] = WeakKeyDictionary()

Numbers = Callable[[int], Tensor]  # like those of a weight, by its place


@dataclass(frozen=True, slots=True)
class Spot:
    """A tensor that an optimizer keeps, like a weight, or each `every`-th number of it, or several weights in a row."""

    holder: Any  # a dict, or a sequence
    key: Any
    places: Sequence[int]  # of the weights, one behind the other
    size: int  # how many numbers they stand for
    every: int = 1

    @property
    def tensor(self) -> Tensor:
        """All of it."""
        found: Tensor = self.holder[self.key]
        return found

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
        return parts[0][:: self.every] if len(parts) == 1 else torch.cat(parts)

    def move(self, by: Numbers, share: float) -> None:
        """Go along with the weights, by so much of their way."""
        part = self.part(by).to(self.tensor.device) * share
        if self.is_whole:
            like = self._like(part)
            like.add_(part.view(like.shape))
        else:
            self.holder[self.key] = self.tensor + part

    def put(self, weights: Numbers, share: float) -> None:
        """Become the same, or that share of them."""
        part = self.part(weights) * share
        like = self._like(part)
        like.copy_(part.view(like.shape))

    def _like(self, part: Tensor) -> Tensor:
        tensor = self.tensor.detach()
        return tensor if tensor.numel() == part.numel() else tensor[: self.size]


class StateWeights:
    """Those of `optimizer`, beside `weights`, which are all that is trained of `module`."""

    def __init__(self, optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor], module: nn.Module) -> None:
        self._optimizer, self._named, self._module = optimizer, weights, module
        self._weights = tuple(weights.values())
        kind = type(optimizer)
        self._is_plain = kind.__module__.startswith(PLAIN) and kind.__name__ not in NOT_PLAIN
        self._kinds = _learned.setdefault(optimizer, {})  # by label
        self._before: list[Tensor] | None = None  # the weights before the next step, while we learn
        self._ahead: dict[str, list[Tensor]] = {}  # what may be ahead of the weights: how it was after the first step
        self._looks = 0
        self._taken_back = TakenBack(self._weights)

    def load(self, fresh: Sequence[Tensor], *, is_end: bool = False) -> None:
        """Give the module these weights, and move the others along; at the run's end they become the same ones."""
        is_watched = not self._is_plain and not is_end and self._taken_back.is_looking
        before = [weight.detach().clone() for weight in self._weights] if is_watched else []
        with torch.no_grad(), shown(self._optimizer, self._weights):
            found = self._found()
            for spot, share in found:
                spot.move(lambda place: fresh[place].to(self._weights[place].device) - self._weights[place], share)
            for weight, wanted in zip(self._weights, fresh, strict=True):
                weight.copy_(wanted)
            for spot, share in found if is_end else ():
                spot.put(self._weights.__getitem__, share)
        if self._ahead:
            spots = self._spots()
            self._ahead = {label: _copies(spots.get(label, ())) for label in self._ahead}
        if not self._is_plain and (not self._looks or self._ahead):
            self._before = [weight.detach().clone() for weight in self._weights]
        if is_watched:
            self._taken_back.loaded(before)

    def stepped(self) -> None:
        """The optimizer has made a step: see what it keeps. LocalError if it has taken back what came of a round."""
        if self._taken_back.stepped():
            raise LocalError(
                f"this {type(self._optimizer).__name__} has taken the weights back to where they were before the run "
                "replaced them: it keeps weights where they cannot be found. Let it keep them in its attributes, or in "
                "its state, in the shapes of the parameters; or train with another optimizer"
            )
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

    def _found(self) -> list[tuple[Spot, float]]:
        """All that are weights, or a share of them. Of what is seen for the first time, what is near to those now."""
        if self._is_plain:
            return []
        spots = self._spots()
        for label, group in spots.items():
            if label not in self._kinds and _is_filled(group):
                whole = [(each.numbers, each.part(self._weights.__getitem__)) for each in group if each.is_whole]
                size = sum(_square(weight) for _, weight in whole)
                apart = sum(_square(numbers.to(weight.device) - weight) for numbers, weight in whole)
                self._kinds[label] = Kind.WEIGHTS if size > 0 and apart <= CLOSE * size else Kind.OTHER
                share = _share(group, self._weights.__getitem__)
                off = sum(_square(numbers.to(weight.device) - share * weight) for numbers, weight in whole)
                if 0 < share < NEARLY_ALL and off <= SAME * share**2 * size:
                    self._kinds[label] = Kind.SHARE
        found: list[tuple[Spot, float]] = []
        for label, group in spots.items():
            kind = self._kinds.get(label, Kind.OTHER)
            if kind is not Kind.OTHER:
                share = _share(group, self._weights.__getitem__) if kind is Kind.SHARE else 1.0
                found += [(each, share) for each in group]
        return found

    def _look(self, before: Sequence[Tensor], now: Sequence[Tensor]) -> None:
        """After the first step of which we know where it began."""
        for label, group in self._spots().items():
            whole = [each for each in group if each.is_whole]
            if label in self._kinds or not whole or not _is_filled(group):
                continue
            begins = [each.part(before.__getitem__) for each in whole]
            ends = [each.part(now.__getitem__) for each in whole]
            size, step = sum(map(_square, begins)), sum(map(_square, map(torch.sub, ends, begins)))
            lines = [_line(each.numbers, *line) for each, *line in zip(whole, begins, ends, strict=True)]
            if size <= step:  # weights that are no larger than a step tell nothing, unless they are kept to the bit
                if all(
                    map(
                        torch.equal, (each.numbers.to(begin) for each, begin in zip(whole, begins, strict=True)), begins
                    )
                ):
                    self._kinds[label] = Kind.WEIGHTS
                continue
            near = TOLERANCE * step + ROUNDING * size
            is_near = sum(away for away, _ in lines) <= near
            self._kinds[label] = Kind.WEIGHTS if is_near else Kind.OTHER
            if not is_near and _is_aslant(begins, ends) and (share := _share(whole, now.__getitem__)) > 0:
                lines = [_line(each.numbers / share, *line) for each, *line in zip(whole, begins, ends, strict=True)]
                self._kinds[label] = Kind.SHARE if sum(away for away, _ in lines) <= near else Kind.OTHER
            if is_near and max(at for _, at in lines) > 1.0 + TOLERANCE:
                self._ahead[label] = _copies(group)

    def _look_again(self, before: Sequence[Tensor], now: Sequence[Tensor]) -> None:
        """After the second: whether what seemed to be ahead goes where the weights go."""
        spots = self._spots()
        for label, then in self._ahead.items():
            whole = [each for each in spots.get(label, ()) if each.is_whole]
            steps = [each.part(now.__getitem__) - each.part(before.__getitem__) for each in whole]
            moves = [each.numbers - old for each, old in zip(whole, then, strict=False)]
            along = sum(float((move.to(step.device) * step).sum()) for move, step in zip(moves, steps, strict=False))
            self._kinds[label] = Kind.WEIGHTS if along >= 0 else Kind.OTHER
        self._ahead.clear()

    def _spots(self) -> dict[str, list[Spot]]:
        """What could be weights, by label: of each label all tensors are like the weights that they belong to."""
        kept: dict[str, list[Kept]] = {}
        for each in kept_tensors(self._optimizer, self._named, set(map(id, self._module.modules()))):
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
        sizes, wanted = [_tensor(each).numel() for each in group], [self._weights[place].numel() for place in in_order]
        copies, rest = divmod(len(sizes), len(wanted))
        if not rest and sizes == wanted * copies:
            return self._alike(list(zip(group, in_order * copies, strict=True)))
        for cut in (rows, [in_order]):
            totals = [sum(self._weights[place].numel() for place in row) for row in cut]
            if len(cut) == len(group) and all(map(_is_row, map(_tensor, group), totals)):
                return [Spot(e.holder, e.key, row, size) for e, row, size in zip(group, cut, totals, strict=True)]
        return self._alike([(each, self._nearest(_tensor(each)) if place < 0 else place) for each, place in owned])

    def _alike(self, group: Sequence[tuple[Kept, int]]) -> list[Spot] | None:
        """Each of one weight, at its place: all numbers of it, or each of so many."""
        fewest, most = 1, sys.maxsize
        for kept, place in group:
            if place < 0:
                return None
            tensor, size = _tensor(kept), self._weights[place].numel()
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
            every = 1 if _tensor(kept).numel() == size else fewest
            spots.append(Spot(kept.holder, kept.key, (place,), -(-size // every), every))
        return spots

    def _nearest(self, tensor: Tensor) -> int:
        """The weight of its shape, or at least its size, that a tensor is nearest to; -1 if there is none."""
        alike = [place for place, weight in enumerate(self._weights) if weight.numel() == tensor.numel()]
        alike = [place for place in alike if self._weights[place].shape == tensor.shape] or alike
        if len(alike) < 2:
            return alike[0] if alike else -1
        flat = tensor.flatten()
        return min(alike, key=lambda at: _square(flat.to(self._weights[at].device) - self._weights[at].flatten()))


def _tensor(kept: Kept) -> Tensor:
    found: Tensor = kept.holder[kept.key]
    return found


def _is_row(tensor: Tensor, total: int) -> bool:
    """Whether it could be that many numbers of several weights, one behind the other."""
    return tensor.numel() == total or (tensor.dim() == 1 and 0 <= tensor.numel() - total <= PADDING)


def _copies(spots: Sequence[Spot]) -> list[Tensor]:
    return [each.numbers.detach().clone() for each in spots if each.is_whole]


@contextmanager
def shown(optimizer: torch.optim.Optimizer, weights: Sequence[Tensor]) -> Iterator[None]:
    """In the module are the weights that the optimizer means to show, as a schedule-free one does after `eval()`."""
    show, go_on = getattr(optimizer, "eval", None), getattr(optimizer, "train", None)
    if not (callable(show) and callable(go_on)):
        yield
        return
    with torch.no_grad():
        flags, before = _flags(optimizer), [weight.detach().clone() for weight in weights]
        state = getattr(optimizer, "state", {})
        has_state = any(state.values())
        try:
            show()
        except Exception as error:
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)
            if has_state:
                raise LocalError(
                    f"the eval() of this {type(optimizer).__name__} fails, by which it would show the weights that are "
                    f"handed in: {type(error).__name__}: {error}"
                ) from error
            state.clear()  # of what it has begun
            was_training = False  # before its first step it has nothing else to show
        else:
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


def _is_filled(group: Sequence[Spot]) -> bool:
    """Whether there is anything in it yet."""
    return any(bool(each.tensor.any()) for each in group)


def _share(spots: Sequence[Spot], weights: Numbers) -> float:
    """How much of the weights they are, if they are a share of them."""
    pairs = [(each.numbers, each.part(weights)) for each in spots if each.is_whole]
    size = sum(_square(weight) for _, weight in pairs)
    return sum(_dot(weight, numbers.to(weight.device)) for numbers, weight in pairs) / size if size else 1.0


def _is_aslant(begins: Sequence[Tensor], ends: Sequence[Tensor]) -> bool:
    """Whether a step leads aside. Else all of its kind, as moments, are a share of the weights."""
    steps = list(map(torch.sub, ends, begins))
    along = sum(map(_dot, steps, begins))
    return along**2 < STRAIGHT * sum(map(_square, steps)) * sum(map(_square, begins))


def _line(value: Tensor, begin: Tensor, end: Tensor) -> tuple[float, float]:
    """How far `value` is from the line that goes from `begin` through `end`, squared, and where on it, 1 at `end`."""
    step, off = end - begin, value.to(begin.device) - begin
    length = _square(step)
    at = min(max(float((off * step).sum()) / length, 0.0), AHEAD) if length else 0.0
    return _square(off - at * step), at


def _dot(one: Tensor, other: Tensor) -> float:
    return float((one.double() * other).sum())


def _square(tensor: Tensor) -> float:
    return float(tensor.double().square().sum())
