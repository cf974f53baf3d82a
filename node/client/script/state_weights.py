"""The weights that an optimizer keeps in its state, beside the module's.

A schedule-free optimizer steps its own `z`, Lookahead has slow weights, a mixed-precision one master weights, ASGD an
average, Prodigy its initial weights. When a round replaces the module's weights these have to move along, or the next
step undoes the result of the round. So they are moved by as much as the weights are: their distance from the weights
stays this machine's own, as moments do, and training goes on from the new place.

These tensors are recognised by their values, whatever their names: after an optimizer's first step they lie where the
weights were, or on the line that the step took, and move along with the next step. Moments do not.

An optimizer whose weights were not found undoes the result of a round: such a step goes straight back to where the
weights were before they were replaced, and is much longer than the others. The first steps after each of the first few
replacements are checked for that, and such an optimizer is refused with a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from shoal.node.client.script.showing import shown
from shoal.node.client.script.state_tensors import Matching, Numbers, Spot
from shoal.protocol.base.errors import LocalError

PLAIN = ("torch.optim.", "transformers.optimization")  # whose states are of gradients alone
NOT_PLAIN = ("ASGD",)

_learned: WeakKeyDictionary[torch.optim.Optimizer, dict[str, Kind]] = WeakKeyDictionary()


class StateWeights:
    """Those of `optimizer`, beside `weights`, which are all that is trained of `module`."""

    def __init__(self, optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor], module: nn.Module) -> None:
        self._optimizer, self._weights = optimizer, tuple(weights.values())
        self._matching = Matching(optimizer, weights, module)
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
        before = self._taken_back.sample() if is_watched else None
        with torch.no_grad(), shown(self._optimizer, self._weights):
            found = self._found()
            for spot, share in found:
                spot.move(lambda place: fresh[place].to(self._weights[place].device) - self._weights[place], share)
            for weight, wanted in zip(self._weights, fresh, strict=True):
                weight.copy_(wanted)
            for spot, share in found if is_end else ():
                spot.put(self._weights.__getitem__, share)
        if self._ahead:
            spots = self._matching.spots()
            self._ahead = {label: _copies(spots.get(label, ())) for label in self._ahead}
        if not self._is_plain and (not self._looks or self._ahead):
            self._before = [weight.detach().clone() for weight in self._weights]
        if before is not None:
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
        """All that are weights, or that share of them. Of what is seen for the first time, what is near now."""
        found: list[tuple[Spot, float]] = []
        for label, group in ({} if self._is_plain else self._matching.spots()).items():
            whole = [each for each in group if each.is_whole]
            values, weights = [each.numbers for each in whole], _parts(whole, self._weights.__getitem__)
            if label not in self._kinds and _is_filled(group):
                self._kinds[label] = kind_beside(values, weights)
            kind = self._kinds.get(label, Kind.OTHER)
            if kind is not Kind.OTHER:
                share = share_of(values, weights) if kind is Kind.SHARE else 1.0
                found += [(each, share) for each in group]
        return found

    def _look(self, before: Sequence[Tensor], now: Sequence[Tensor]) -> None:
        """After the first step of which we know where it began."""
        for label, group in self._matching.spots().items():
            whole = [each for each in group if each.is_whole]
            if label in self._kinds or not whole or not _is_filled(group):
                continue
            line = [each.numbers for each in whole], _parts(whole, before.__getitem__), _parts(whole, now.__getitem__)
            if kind := kind_after_step(*line):
                self._kinds[label] = kind
                if kind is Kind.WEIGHTS and is_ahead(*line):
                    self._ahead[label] = _copies(group)

    def _look_again(self, before: Sequence[Tensor], now: Sequence[Tensor]) -> None:
        """After the second: whether what seemed to be ahead goes where the weights go."""
        spots = self._matching.spots()
        for label, then in self._ahead.items():
            whole = [each for each in spots.get(label, ()) if each.is_whole]
            steps = map(torch.sub, _parts(whole, now.__getitem__), _parts(whole, before.__getitem__))
            moves = [each.numbers - old for each, old in zip(whole, then, strict=False)]
            self._kinds[label] = Kind.WEIGHTS if goes_along(moves, list(steps)) else Kind.OTHER
        self._ahead.clear()


def _parts(spots: Sequence[Spot], of: Numbers) -> list[Tensor]:
    return [each.part(of) for each in spots]


def _copies(spots: Sequence[Spot]) -> list[Tensor]:
    return [each.numbers.detach().clone() for each in spots if each.is_whole]


def _is_filled(group: Sequence[Spot]) -> bool:
    """Whether there is anything in it yet."""
    return any(bool(each.tensor.any()) for each in group)


# -- what tensors hold -------------------------------------------------------------------------------------


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


# -- what an optimizer takes back --------------------------------------------------------------------------


LOADS = 4  # that are looked at
STEPS = 12  # after each
SHARE = 0.3  # of the way back, which one step goes
STRAIGHT_BACK = 0.9  # the cosine between that step and the way
LONG = 4.0  # times the longest of the others
OTHERS = 3  # that are waited for
SAMPLE = 1 << 20  # numbers that are looked at, about: all would take the room of more models on their device


class TakenBack:
    """Of `weights`."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = weights
        self._every = 1 + sum(weight.numel() for weight in weights) // SAMPLE
        self._loads = self._steps = 0
        self._way: Tensor | None = None  # from where they were to where they were put
        self._last: Tensor | None = None  # after the step before
        self._back = 0.0  # the longest step that went back
        self._others: list[float] = []  # how long the others were

    @property
    def is_looking(self) -> bool:
        """Whether the next load is looked at."""
        return self._loads < LOADS

    def sample(self) -> Tensor:
        """Some of their numbers, as they are now."""
        return torch.cat([weight.detach().flatten()[:: self._every].cpu() for weight in self._weights]).double()

    def loaded(self, before: Tensor) -> None:
        """The weights were replaced; `before` is their sample from before."""
        self._last, self._steps = self.sample(), 0
        self._way = self._last - before
        if self._way.any():
            self._loads += 1
        else:
            self._way = None  # put where they were: that tells nothing

    def stepped(self) -> bool:
        """After a step: whether one of the last has taken the weights back."""
        if self._way is None or self._last is None:
            return False
        now = self.sample()
        step, self._last = now - self._last, now
        length, way = float(step.norm()), float(self._way.norm())
        back = -float(step @ self._way) / way
        if back > max(SHARE * way, STRAIGHT_BACK * length):
            self._back = max(self._back, length)
        else:
            self._others.append(length)
        self._steps += 1
        if self._steps == STEPS:
            self._way = self._last = None
        return len(self._others) >= OTHERS and self._back > LONG * max(self._others)
