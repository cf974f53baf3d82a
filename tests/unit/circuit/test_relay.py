"""A relay calls a holder over those of its connections that live, within one time limit for its caller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from libp2p.abc import INetConn, INetStream
from libp2p.peer.id import ID

from shoal.protocol.net.circuit.accounts import Refused
from shoal.protocol.net.circuit.relay import ASK_LIMIT, Relay


def test_connections_that_died_without_a_word_keep_a_caller_for_so_long_in_all() -> None:
    """The newest is asked first, and all of many are not asked one after the other for their own time each."""
    lines, asked = [SimpleNamespace(is_closed=False, number=number) for number in range(8)], list[int]()

    async def never(line: Any, protocol: str) -> INetStream:
        asked.append(line.number)
        await trio.sleep_forever()
        raise AssertionError

    relay = Relay(cast(Any, None), lambda peer: cast("list[INetConn]", lines), cast(Any, never), cast(Any, None))

    async def call() -> float:
        begin = trio.current_time()
        with pytest.raises(Refused):
            await relay._call(ID(b"target"), ID(b"source"))
        return trio.current_time() - begin

    took = trio.run(call, clock=trio.testing.MockClock(autojump_threshold=0))
    assert took == pytest.approx(ASK_LIMIT)
    assert asked[:2] == [7, 6]
