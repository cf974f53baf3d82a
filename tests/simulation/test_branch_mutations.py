"""Each rule of branches is needed: if it is taken out, the promise that breaks is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from shoal.protocol.base.effects import Effect
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import MAX_INT
from shoal.protocol.log import keeper as keeping
from shoal.protocol.log import register as registering
from shoal.protocol.log.keeper import Keeper
from shoal.protocol.log.rivals import Shown
from shoal.protocol.member.member import Member
from shoal.protocol.messages.log import Found, Register, Yield
from tests.simulation import branching as play
from tests.simulation.branching import CUTS, PROMISES
from tests.simulation.promises import Violation

Patch = Callable[[pytest.MonkeyPatch], None]


# -- the rules, each taken out ------------------------------------------------------------------------------------


def yield_to_any_branch(patch: pytest.MonkeyPatch) -> None:
    """Also to one with fewer tokens: two that see old ends of each other both leave."""

    def yield_to(step: Any, body: Yield) -> Register:
        return replace(step.register, yields_to=body.branch)

    patch.setitem(registering._APPLY, Yield, yield_to)
    patch.setattr(Shown, "rank", (True, MAX_INT, Digest(b"\xff" * 32)))


def go_on_beside_a_quorum(patch: pytest.MonkeyPatch) -> None:
    """Who reaches a quorum founds a branch all the same."""
    sound = Keeper._go_on

    def go_on(self: Keeper) -> list[Effect]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Keeper, "is_quorum", lambda self, peers: False)
            return sound(self)

    patch.setattr(Keeper, "_go_on", go_on)
    patch.setattr(registering._Step, "_is_quorum", lambda self, peers: False)


def wait_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """A branch is founded as soon as there is no quorum."""
    _with_settings(patch, continue_after=0.0)


def decide_at_once_after_an_absence(patch: pytest.MonkeyPatch) -> None:
    """Who was away does not look for the others first."""
    _with_settings(patch, was_away=False)


def decide_at_once_after_a_sleep(patch: pytest.MonkeyPatch) -> None:
    """Who slept goes on as if it had not."""
    patch.setattr(Keeper, "woke", lambda self: None)


def go_on_without_the_state(patch: pytest.MonkeyPatch) -> None:
    """A branch is founded by whoever is there, whatever state it holds."""
    patch.setattr(Member, "held_round", 1_000_000)


def found_again_at_once(patch: pytest.MonkeyPatch) -> None:
    """Who has founded a branch counts on from when the log before it was stuck."""
    sound = Keeper._after_entry

    def after_entry(self: Keeper, before: Register, register: Register) -> list[Effect]:
        since = self._goes_on_since, self._stuck_since
        done = sound(self, before, register)
        self._goes_on_since, self._stuck_since = since
        return done

    patch.setattr(Keeper, "_after_entry", after_entry)


def meet_nobody(patch: pytest.MonkeyPatch) -> None:
    """What others show of another branch is not looked at."""
    patch.setattr(Keeper, "_meet_branch", lambda self, shown: [])


def never_yield(patch: pytest.MonkeyPatch) -> None:
    """A branch that may still grow stays, whatever it is shown."""
    sound = Keeper._yield_to_rival

    def yield_to_rival(self: Keeper) -> list[Effect]:
        return [] if self.is_quorum(self.here) else sound(self)

    patch.setattr(Keeper, "_yield_to_rival", yield_to_rival)


def forget_who_began_a_later_life(patch: pytest.MonkeyPatch) -> None:
    """Of the members only those may go on who still are in the life in which they were admitted."""
    sound = registering.may_stay

    def may_stay(register: Register, peer: PeerId, life: int) -> bool:
        is_later = any(each.peer == peer and each.life != life for each in register.members)
        return not is_later and sound(register, peer, life)

    for module in (keeping, registering):
        patch.setattr(module, "may_stay", may_stay)


def forget_who_left(patch: pytest.MonkeyPatch) -> None:
    """Only members may go on."""
    for module in (keeping, registering):
        patch.setattr(module, "who_left", lambda register: [])


def forget_the_wishes_of_who_left(patch: pytest.MonkeyPatch) -> None:
    """They are not repeated on the branch that was joined."""
    patch.setattr(Keeper, "_pass_on_wishes", lambda self: [])


def count_the_last_result_again(patch: pytest.MonkeyPatch) -> None:
    """A branch begins with the tokens of its parent's last result, which are behind it already."""
    sound = registering._Step.found

    def found(step: Any, body: Found) -> Register:
        begun = sound(step, body)
        return replace(begun, parts=tuple(replace(each, tokens=each.tokens + each.last_tokens) for each in begun.parts))

    patch.setitem(registering._APPLY, Found, found)


def _with_settings(patch: pytest.MonkeyPatch, **settings: Any) -> None:
    sound = Keeper.__init__

    def init(self: Keeper, core: Any, view: Any, founding: Any, shortcuts: Any, judge: Any, *more: Any) -> None:
        names = ("anchor", "was_away", "continue_after")
        sound(self, core, view, founding, shortcuts, judge, **(dict(zip(names, more, strict=False)) | settings))

    patch.setattr(Keeper, "__init__", init)


# -- what breaks without each -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutation:
    """A patch, the promise that it breaks, and the play and seeds that show it."""

    patch: Patch
    promise: str
    play: Callable[[int], object]
    seeds: Sequence[int]


HALVES = partial(play.cut, sizes=CUTS["3 | 3"])
THIRDS = partial(play.cut, sizes=CUTS["2 | 2 | 2"])
STOPPED = partial(play.last_to_stop, peers=5)

MUTATIONS = [
    Mutation(yield_to_any_branch, "No swap", THIRDS, (0, 1, 2)),
    Mutation(go_on_beside_a_quorum, "No haste", HALVES, (0,)),
    Mutation(wait_for_nobody, "No haste", HALVES, (0,)),
    Mutation(decide_at_once_after_an_absence, "No haste", play.boots_before_its_network, (0,)),
    Mutation(decide_at_once_after_a_sleep, "No haste", play.wakes_before_its_network, (0,)),
    Mutation(go_on_without_the_state, "Holder", play.holder_comes_later, (0, 1, 2, 3)),
    Mutation(found_again_at_once, "No haste", HALVES, (1, 2)),
    Mutation(meet_nobody, "One history", HALVES, (0,)),
    Mutation(never_yield, "One history", THIRDS, (0,)),
    Mutation(forget_who_began_a_later_life, "One history", play.all_begin_another_life, (0,)),
    Mutation(forget_who_left, "One history", STOPPED, (0,)),
    Mutation(forget_the_wishes_of_who_left, "Left", play.leaves_while_cut, (0,)),
    Mutation(count_the_last_result_again, "Once", STOPPED, (0,)),
]


def test_every_promise_has_a_mutation() -> None:
    assert set(PROMISES) == {mutation.promise for mutation in MUTATIONS}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.patch.__name__)
def test_a_missing_rule_is_missed_by_its_promise(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    registering.after.cache_clear()
    mutation.patch(monkeypatch)
    try:
        caught = [violation for seed in mutation.seeds if (violation := _violation(mutation, seed)) is not None]
    finally:
        registering.after.cache_clear()
    assert caught, "nobody missed it"
    assert {violation.promise for violation in caught} == {mutation.promise}, caught


def _violation(mutation: Mutation, seed: int) -> Violation | None:
    try:
        mutation.play(seed)
    except Violation as violation:
        return violation
    return None
