"""A payload that is queued or may be on the wire is not sent again; one that was dropped, or left long ago, is."""

from __future__ import annotations

import pytest

from shoal.protocol.averaging.outbox import SETTLE, Outbox
from shoal.protocol.averaging.rounds import key_of
from shoal.protocol.base.effects import Send
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.messages.averaging import Contribution

TO, OTHER = PeerId("to"), PeerId("other")


def contribution(chunk: int = 0, epoch: int = 0) -> Contribution:
    return Contribution(0, 1, chunk, epoch, 10, NO_DIGEST, b"bytes")


@pytest.fixture
def outbox() -> Outbox:
    made = Outbox(key_of)
    made.note(0.0, [Send(TO, contribution())])
    return made


def test_what_waits_is_not_sent_again_in_whatever_epoch(outbox: Outbox) -> None:
    again = Send(TO, contribution(epoch=1))
    elsewhere, another = Send(OTHER, contribution()), Send(TO, contribution(1))
    assert outbox.fresh(100.0, [again, elsewhere, another]) == [elsewhere, another]
    assert outbox.holds(TO, 1)


def test_what_was_dropped_is_sent_again(outbox: Outbox) -> None:
    outbox.dropped(TO, contribution())
    assert outbox.fresh(0.0, [Send(TO, contribution())])
    assert outbox.sent_count == 0


def test_what_has_left_may_be_on_the_wire_for_as_long_as_it_took_to_leave(outbox: Outbox) -> None:
    outbox.note(0.0, [Send(TO, contribution(1))])
    outbox.sent(8.0, TO, contribution())
    outbox.sent(8.1, TO, contribution(1))
    slow, quick = Send(TO, contribution()), Send(TO, contribution(1))
    assert outbox.fresh(8.1 + SETTLE, [slow, quick]) == [quick]
    assert outbox.fresh(16.0, [slow, quick]) == [slow, quick]
    assert outbox.sent_count == 2
