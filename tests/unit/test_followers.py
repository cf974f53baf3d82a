"""Who is too far behind to be waited for, by what it says of itself, and to us."""

from __future__ import annotations

import pytest

from shoal.protocol.averaging import followers as module
from shoal.protocol.averaging.followers import FAR, Followers
from tests.unit.rounds_kit import A, B, C


@pytest.mark.parametrize(
    ("spoke_of", "said", "is_far"),
    [
        (9, 9, False),  # it is in the round before, as all may be who have not begun this one
        (10 - FAR, 10 - FAR, True),
        (5, 5, True),
        (5, 10, False),  # it has caught up, and trains
        (10, 5, False),  # what it says by gossip is old
    ],
)
def test_both_must_say_so(spoke_of: int, said: int, is_far: bool) -> None:
    followers = Followers()
    followers.heard(A, spoke_of)
    followers.heard(A, spoke_of - 3)  # that may have been on its way for long
    assert followers.is_far(A, 10, said) is is_far


def test_what_is_known_of_members_that_come_and_go_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    followers = Followers()
    for peer in (A, B, A, C):
        followers.heard(peer, 10)
    assert [followers.is_far(peer, 10, said=1) for peer in (A, B, C)] == [False, True, False]


def test_of_somebody_who_has_said_nothing_gossip_tells() -> None:
    assert Followers().is_far(B, 10, said=5)
    assert not Followers().is_far(B, 10, said=9)
