"""From which donors a state is taken without a relay."""

from __future__ import annotations

import dataclasses

from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.membership.view import fastest, without_relay
from shoal.protocol.messages.membership import RunStatus
from tests.unit.rounds_kit import A, B, C, D

STATUS = RunStatus(1, NO_DIGEST, NO_DIGEST, "training", 0, 0, None, True, 0, 0, "nat")


class Said:
    """The statuses that members give of themselves."""

    def __init__(self, **words: str) -> None:
        self._words = words

    def status(self, peer: PeerId) -> RunStatus | None:
        return dataclasses.replace(STATUS, reachability=self._words[peer]) if peer in self._words else None


def test_who_cannot_be_dialled_goes_to_those_who_can() -> None:
    said = Said(a="nat", b="nat", c="public")
    assert without_relay(A, [B, C, D], said) == [C]
    assert without_relay(A, [B, D], said) == [B, D]
    assert without_relay(C, [A, B, D], said) == [A, B, D]
    assert without_relay(D, [B, C], said) == [C]


def test_the_fastest_uplinks_come_first_and_the_unknown_last() -> None:
    class Fast(Said):
        def status(self, peer: PeerId) -> RunStatus | None:
            said = super().status(peer)
            return dataclasses.replace(said, up={A: 0, B: 5, C: 50}[peer]) if said is not None else None

    assert fastest([A, B, C, D], Fast(a="nat", b="nat", c="nat")) == [C, B, A, D]
    assert fastest([D, A], Fast(a="nat")) == [D, A]
