"""Moves the weights that an optimizer keeps in its own state along when a round replaces the module's weights.

A schedule-free optimizer steps its own `z`, Lookahead has slow weights, a mixed-precision one master weights, ASGD an
average, Prodigy its initial weights. If they did not move along, the next step would undo the result of the round. They
are moved by as much as the module's weights: like moments, their distance from the weights stays this machine's own,
and training goes on from the new place.

These tensors are recognised by their values, whatever their names: after an optimizer's first step they lie where the
weights were, or on the line that the step took, and move along with the next step. Moments do not.

An optimizer whose weights were not found undoes the result of a round: such a step goes straight back to where the
weights were before they were replaced, and is much longer than the others. The first steps after each of the first few
replacements are checked for that (`UndoCheck`), and such an optimizer is refused with a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from shoal.node.client.script.state_tensors import MatchedTensor, TensorOf, WeightMatcher
from shoal.protocol.base.errors import LocalError

PLAIN = ("torch.optim.", "transformers.optimization")  # modules whose optimizers keep no weights, only moments
NOT_PLAIN = ("ASGD",)

_learned: WeakKeyDictionary[torch.optim.Optimizer, dict[str, Kind]] = WeakKeyDictionary()


class StateWeights:
    """The weights in the state of `optimizer`; `weights` are all trained parameters of `module`, by name."""

    def __init__(self, optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor], module: nn.Module) -> None:
        self._optimizer, self._weights = optimizer, tuple(weights.values())
        self._matcher = WeightMatcher(optimizer, weights, module)
        kind = type(optimizer)
        self._is_plain = kind.__module__.startswith(PLAIN) and kind.__name__ not in NOT_PLAIN
        self._kinds = _learned.setdefault(optimizer, {})  # by label
        self._before: list[Tensor] | None = None  # the weights before the next step, while kinds are still unknown
        self._ahead: dict[str, list[Tensor]] = {}  # by label: after the first step, what may be ahead of the weights
        self._observed = 0  # steps
        self._undo_check = UndoCheck(self._weights)

    def load(self, fresh: Sequence[Tensor], *, is_end: bool = False) -> None:
        """Load these weights into the module and move the optimizer's along; at the run's end they become equal."""
        is_checked = not self._is_plain and not is_end and self._undo_check.checks_next
        before = self._undo_check.sample() if is_checked else None
        with torch.no_grad(), shown(self._optimizer, self._weights):
            found = self._found()
            for tensor, share in found:
                tensor.move(lambda index: fresh[index].to(self._weights[index].device) - self._weights[index], share)
            for weight, wanted in zip(self._weights, fresh, strict=True):
                weight.copy_(wanted)
            for tensor, share in found if is_end else ():
                tensor.put(self._weights.__getitem__, share)
        if self._ahead:
            matched = self._matcher.matched()
            self._ahead = {label: _copies(matched.get(label, ())) for label in self._ahead}
        if not self._is_plain and (not self._observed or self._ahead):
            self._before = [weight.detach().clone() for weight in self._weights]
        if before is not None:
            self._undo_check.loaded(before)

    def stepped(self) -> None:
        """The optimizer has made a step: learn what its tensors are. LocalError if it has undone a round's result."""
        if self._undo_check.stepped():
            raise LocalError(
                f"this {type(self._optimizer).__name__} has taken the weights back to where they were before the run "
                "replaced them: it keeps weights where they cannot be found. Let it keep them in its attributes, or in "
                "its state, in the shapes of the parameters; or train with another optimizer",
                code="script-module",
            )
        if self._before is None:
            return
        with torch.no_grad():
            before, now = self._before, [weight.detach() for weight in self._weights]
            if self._observed:
                self._observe_second_step(before, now)
            else:
                self._observe_first_step(before, now)
        self._observed += 1
        self._before = [each.clone() for each in now] if self._ahead else None

    # -- inside ---------------------------------------------------------------------------------------------

    def _found(self) -> list[tuple[MatchedTensor, float]]:
        """The tensors that are weights, each with the share of the weights that it is (1.0: all).

        A label that is seen for the first time is judged by how near its values are to the weights now.
        """
        found: list[tuple[MatchedTensor, float]] = []
        for label, group in ({} if self._is_plain else self._matcher.matched()).items():
            whole = [each for each in group if each.is_whole]
            values, weights = [each.numbers for each in whole], _parts(whole, self._weights.__getitem__)
            if label not in self._kinds and _is_filled(group):
                self._kinds[label] = kind_by_values(values, weights)
            kind = self._kinds.get(label, Kind.OTHER)
            if kind is not Kind.OTHER:
                share = share_of(values, weights) if kind is Kind.SHARE else 1.0
                found += [(each, share) for each in group]
        return found

    def _observe_first_step(self, before: Sequence[Tensor], now: Sequence[Tensor]) -> None:
        """Learn kinds from a step of the weights from `before` to `now`."""
        for label, group in self._matcher.matched().items():
            whole = [each for each in group if each.is_whole]
            if label in self._kinds or not whole or not _is_filled(group):
                continue
            line = [each.numbers for each in whole], _parts(whole, before.__getitem__), _parts(whole, now.__getitem__)
            if kind := kind_after_step(*line):
                self._kinds[label] = kind
                if kind is Kind.WEIGHTS and is_ahead(*line):
                    self._ahead[label] = _copies(group)

    def _observe_second_step(self, before: Sequence[Tensor], now: Sequence[Tensor]) -> None:
        """Learn whether the tensors that seemed to be ahead move where the weights step."""
        matched = self._matcher.matched()
        for label, then in self._ahead.items():
            whole = [each for each in matched.get(label, ()) if each.is_whole]
            steps = map(torch.sub, _parts(whole, now.__getitem__), _parts(whole, before.__getitem__))
            moves = [each.numbers - old for each, old in zip(whole, then, strict=False)]
            self._kinds[label] = Kind.WEIGHTS if goes_along(moves, list(steps)) else Kind.OTHER
        self._ahead.clear()


def _parts(tensors: Sequence[MatchedTensor], of: TensorOf) -> list[Tensor]:
    return [each.part(of) for each in tensors]


def _copies(tensors: Sequence[MatchedTensor]) -> list[Tensor]:
    return [each.numbers.detach().clone() for each in tensors if each.is_whole]


def _is_filled(group: Sequence[MatchedTensor]) -> bool:
    """Whether any number in it is not zero."""
    return any(bool(each.tensor.any()) for each in group)


# -- what tensors hold -------------------------------------------------------------------------------------


AHEAD = 10.0  # steps: so far ahead is a `z` that the module's weights follow by a tenth of the distance
TOLERANCE = 0.01  # of the squared step
ROUNDING = 1e-12  # of the squared weights
CLOSE = 0.5  # of the squared weights: the squared distance of a copy that was not seen being made, at most
STRAIGHT = 0.9  # squared cosine between the weights and a step, from which the step goes to or from zero
SAME = 1e-6  # of the squared weights: the squared distance of an average that the optimizer shows just now, at most
NEARLY_ALL = 0.99  # a share from here on counts as all


class Kind(Enum):
    """What the tensors of a label are."""

    OTHER = auto()
    WEIGHTS = auto()
    SHARE = auto()  # a share of weights: an average that began from zeros, without its bias correction


def kind_by_values(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Kind:
    """What `values` are, from their distance to the weights alone."""
    size, share = _size(weights), share_of(values, weights)
    if 0 < share < NEARLY_ALL and _squared_distance(values, weights, share) <= SAME * share**2 * size:
        return Kind.SHARE
    return Kind.WEIGHTS if size and _squared_distance(values, weights) <= CLOSE * size else Kind.OTHER


def kind_after_step(values: Sequence[Tensor], begins: Sequence[Tensor], ends: Sequence[Tensor]) -> Kind | None:
    """What `values` are after a step of the weights from `begins` to `ends`; None if that cannot be told."""
    size, step = _size(begins), _size(list(map(torch.sub, ends, begins)))
    if size <= step:  # weights no larger than a step are near to anything: only an exact copy is told apart
        is_same = all(torch.equal(value.to(begin), begin) for value, begin in zip(values, begins, strict=True))
        return Kind.WEIGHTS if is_same else None
    near = TOLERANCE * step + ROUNDING * size
    if _off_line(values, begins, ends) <= near:
        return Kind.WEIGHTS
    share = share_of(values, ends)
    if share > 0 and _turns(begins, ends) and _off_line([each / share for each in values], begins, ends) <= near:
        return Kind.SHARE
    return Kind.OTHER


def is_ahead(values: Sequence[Tensor], begins: Sequence[Tensor], ends: Sequence[Tensor]) -> bool:
    """Whether some values are beyond the step's end.

    Weights that the module's follow slowly are, but so may be tensors that hold large steps (`goes_along`).
    """
    return max(_on_line(*each)[1] for each in zip(values, begins, ends, strict=True)) > 1.0 + TOLERANCE


def goes_along(moves: Sequence[Tensor], steps: Sequence[Tensor]) -> bool:
    """Whether the tensors move in the direction of the weights' step."""
    return sum(map(_dot, steps, moves)) >= 0


def share_of(values: Sequence[Tensor], weights: Sequence[Tensor]) -> float:
    """The factor by which the weights are nearest to `values` (least squares)."""
    size = _size(weights)
    return sum(map(_dot, weights, values)) / size if size else 1.0


def _turns(begins: Sequence[Tensor], ends: Sequence[Tensor]) -> bool:
    """Whether a step does more than scale the weights; after one that only scales, moments are a share of them, too."""
    steps = list(map(torch.sub, ends, begins))
    return sum(map(_dot, steps, begins)) ** 2 < STRAIGHT * _size(steps) * _size(begins)


def _squared_distance(values: Sequence[Tensor], weights: Sequence[Tensor], share: float = 1.0) -> float:
    """The squared distance of the values from `share` times the weights."""
    pairs = zip(values, weights, strict=True)
    return sum(_square(value.to(weight.device) - share * weight) for value, weight in pairs)


def _off_line(values: Sequence[Tensor], begins: Sequence[Tensor], ends: Sequence[Tensor]) -> float:
    """The squared distance of the values from the lines along which the weights stepped."""
    return sum(_on_line(*each)[0] for each in zip(values, begins, ends, strict=True))


def _on_line(value: Tensor, begin: Tensor, end: Tensor) -> tuple[float, float]:
    """The squared distance of `value` from the line from `begin` through `end`, and its place there (1: at `end`)."""
    step, off = end - begin, value.to(begin.device) - begin
    length = _square(step)
    at = min(max(float((off * step).sum()) / length, 0.0), AHEAD) if length else 0.0
    return _square(off - at * step), at


def _size(tensors: Sequence[Tensor]) -> float:
    """The squared norm of all of them together."""
    return sum(map(_square, tensors))


def _dot(one: Tensor, other: Tensor) -> float:
    return float((one.double() * other.to(one.device)).sum())


def _square(tensor: Tensor) -> float:
    return float(tensor.double().square().sum())


# -- whether an optimizer undoes a round -------------------------------------------------------------------


LOADS = 4  # that are checked
STEPS = 12  # that are checked after each load
SHARE = 0.3  # of the way back: a step that undoes a load goes more than that
STRAIGHT_BACK = 0.9  # the cosine between such a step and the way back, at least
LONG = 4.0  # such a step is more than so many times as long as the longest of the others
OTHERS = 3  # steps of the other kind before anything is decided
SAMPLE = 1 << 20  # about how many numbers are compared: all of them would need memory for more models on the device


class UndoCheck:
    """Whether a step has undone a load: taken the weights back to where they were before it."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = weights
        self._every = 1 + sum(weight.numel() for weight in weights) // SAMPLE
        self._loads = self._steps = 0
        self._way: Tensor | None = None  # how the last load moved the weights
        self._last: Tensor | None = None  # the weights after the step before
        self._back = 0.0  # the length of the longest step that went back
        self._others: list[float] = []  # the lengths of the other steps

    @property
    def checks_next(self) -> bool:
        """Whether the next load is checked."""
        return self._loads < LOADS

    def sample(self) -> Tensor:
        """Some of the weights' numbers now, on the CPU in fp64."""
        return torch.cat([weight.detach().flatten()[:: self._every].cpu() for weight in self._weights]).double()

    def loaded(self, before: Tensor) -> None:
        """The weights were replaced; `before` is their earlier sample."""
        self._last, self._steps = self.sample(), 0
        self._way = self._last - before
        if self._way.any():
            self._loads += 1
        else:
            self._way = None  # nothing has moved, so nothing can be undone

    def stepped(self) -> bool:
        """After a step: whether it, or an earlier one, has undone a load."""
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


# -- the weights that an optimizer shows ------------------------------------------------------------------


@contextmanager
def shown(optimizer: torch.optim.Optimizer, weights: Sequence[Tensor]) -> Iterator[None]:
    """While this is open, the module has the weights that the optimizer shows: a schedule-free one's after `eval()`."""
    show, go_on = getattr(optimizer, "eval", None), getattr(optimizer, "train", None)
    if not (callable(show) and callable(go_on)):
        yield
        return
    with torch.no_grad():
        flags, before = _flags(optimizer), [weight.detach().clone() for weight in weights]
        has_begun = _has_begun(optimizer)
        try:
            show()
        except Exception as error:
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)
            if has_begun:
                raise LocalError(
                    f"the eval() of this {type(optimizer).__name__} fails, by which it would show the weights that are "
                    f"handed in: {type(error).__name__}: {error}",
                    code="script-module",
                ) from error
            if isinstance(optimizer.state, dict):
                optimizer.state.clear()  # of what eval() had begun to note
            was_training = False  # before its first step it shows the module's weights
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
    """Its booleans, among them the one by which `eval()` and `train()` mark its mode."""
    tables: list[Mapping[str, Any]] = [vars(optimizer), *optimizer.param_groups]
    return [(key, value) for each in tables for key, value in each.items() if isinstance(value, bool)]


def _has_begun(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it has made a step, or was given a state."""
    state = getattr(optimizer, "state", None)
    return not isinstance(state, Mapping) or any(not isinstance(each, Mapping) or each for each in state.values())
