"""What a network takes and answers is settled when it starts; whatever its owner does not answer is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.messages.node import GetManifest
from shoal.protocol.net.peers.shared import Handlers

ANNA, RUN = PeerId("anna"), RunId(bytes(32))


def test_without_an_answer_nothing_is_taken_or_served() -> None:
    handlers = Handlers()
    assert not handlers.takes(RUN)
    assert not handlers.takes(None)
    assert not handlers.shares_run(ANNA)
    with pytest.raises(LocalError, match="GetManifest is not served here"):
        handlers.on_call(ANNA, GetManifest("ab"))


def test_they_do_not_change_afterwards() -> None:
    with pytest.raises(FrozenInstanceError):
        Handlers().takes = lambda run: True  # type: ignore[misc]
