"""The weights that an optimizer keeps in its state, beside the module's.

A schedule-free optimizer steps a `z` of its own, Lookahead has slow weights, a mixed-precision one masters, ASGD an
average, Prodigy what it began with. When a round replaces the module's weights these have to go along, or the next
step takes back what came of the round. So they are moved by as much as the weights are: how far each is from the
weights stays this machine's own, as moments do, and training goes on as it would have, elsewhere.

Which tensors these are is found by what they hold, whatever their names: after an optimizer's first step they lie
where the weights were, or on the line that the step took, and go the same way with the next one. Moments do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from shoal.node.script.showing import shown
from shoal.node.script.state_kinds import Kind, goes_along, is_ahead, kind_after_step, kind_beside, share_of
from shoal.node.script.state_spots import Matching, Numbers, Spot
from shoal.node.script.taken_back import TakenBack
from shoal.protocol.errors import LocalError

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
