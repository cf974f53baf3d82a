"""What a peer does about other branches that it is shown: the table of rivals.py, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId, digest
from shoal.protocol.log.rivals import RELIED, RIVAL, STAYING, Rank, Reaction, Rivals, Shown
from shoal.protocol.log.shortcuts import START
from shoal.protocol.messages.log import Shortcut
from tests.simulation.log_worlds import PEERS, register_of

A, B, C = PEERS[:3]
STRANGER = PEERS[6]
REGISTER = register_of(3, 3)
OURS: Rank = (True, 100, digest("ours"))


def shown(
    tokens: int, by: PeerId = C, passed_on_by: PeerId | None = None, can_decide: bool = True, stays: bool = False
) -> Shown:
    return Shown(Shortcut(digest("theirs"), tokens, can_decide, START, REGISTER, stays), by, passed_on_by)


def meet(rivals: Rivals, what: Shown, now: float = 0.0, ours: Rank = OURS) -> Reaction:
    return rivals.meet(now, what, ours, REGISTER, lambda shown: None)


@pytest.mark.parametrize(
    ("what", "ours", "reaction", "is_rival_then"),
    [
        (shown(99), OURS, Reaction.SHOW_OURS, False),
        (shown(1000, can_decide=False), OURS, Reaction.SHOW_OURS, False),
        (shown(200), OURS, Reaction.SEE_TO_IT, False),
        (shown(400, by=STRANGER), OURS, Reaction.NOTHING, False),
        (shown(400), OURS, Reaction.TELL_VOTERS, True),
        (shown(400, passed_on_by=B), OURS, Reaction.SEE_TO_IT, True),
        (shown(1, can_decide=False), (False, 0, digest("ours")), Reaction.SEE_TO_IT, False),
    ],
    ids=["lower", "unable", "below the rival", "a stranger's", "higher", "passed on", "we are unable"],
)
def test_what_is_shown_beside_a_rival_is_ranked(
    what: Shown, ours: Rank, reaction: Reaction, is_rival_then: bool
) -> None:
    rivals, known = Rivals(), shown(300, by=B)
    assert meet(rivals, known) == Reaction.TELL_VOTERS
    assert meet(rivals, what, ours=ours) == reaction
    assert rivals.best == (what if is_rival_then else known)


def test_what_is_shown_again_counts_for_longer_and_is_told_now_and_then() -> None:
    rivals = Rivals()
    seen = [meet(rivals, shown(300), now) for now in (0.0, 0.4 * RIVAL, 0.6 * RIVAL, 0.8 * RIVAL)]
    assert seen == [Reaction.TELL_VOTERS, Reaction.SEE_TO_IT, Reaction.TELL_VOTERS, Reaction.SEE_TO_IT]
    rivals.lapse(1.8 * RIVAL)
    assert rivals.best is not None
    rivals.lapse(1.9 * RIVAL)
    assert rivals.best is None


def test_a_rival_that_says_itself_that_it_is_lower_is_none() -> None:
    rivals = Rivals()
    meet(rivals, shown(300))
    assert meet(rivals, shown(300, by=B, can_decide=False)) == Reaction.SHOW_OURS
    assert rivals.best is not None
    assert meet(rivals, shown(300, can_decide=False)) == Reaction.SHOW_OURS
    assert rivals.best is None


def test_it_is_relied_on_for_less_long_than_it_is_kept_that_somebody_stays_on_a_branch() -> None:
    rivals = Rivals()
    meet(rivals, shown(300), 10.0)
    assert not rivals.is_promised(10.0)
    meet(rivals, shown(300, by=B, stays=True), 11.0)
    meet(rivals, shown(299, by=A, stays=True), 12.0)
    assert rivals.is_promised(11.0 + RELIED)
    assert not rivals.is_promised(11.1 + RELIED), "whoever has fewer tokens does not hold its last state"
    assert RELIED < STAYING


def test_a_promise_is_about_one_branch() -> None:
    rivals = Rivals()
    meet(rivals, shown(300, stays=True))
    meet(rivals, replace(shown(400), shortcut=replace(shown(400).shortcut, branch=digest("a third"))))
    assert not rivals.is_promised(0.0)


def test_what_no_way_leads_to_is_no_rival() -> None:
    def refuse(shown: Shown) -> None:
        raise RemoteError("leads nowhere", shown.sender)

    rivals = Rivals()
    with pytest.raises(RemoteError) as caught:
        rivals.meet(0.0, shown(300, passed_on_by=B), OURS, REGISTER, refuse)
    assert caught.value.peer == B
    assert rivals.best is None
