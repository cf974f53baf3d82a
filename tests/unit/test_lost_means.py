"""When a member says that the means of a decided round are lost: once it has looked everywhere for long enough."""

from __future__ import annotations

import pytest

from shoal.protocol.averaging.events import Lost
from shoal.protocol.averaging.rounds import TICK, Rounds
from shoal.protocol.base.effects import Effect, Wake
from shoal.protocol.base.ids import digest
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.log import Admit, Result
from tests.unit.rounds_kit import BASE, ROUND, told
from tests.unit.test_rounds import Log, log, rounds

__all__ = ["log", "rounds"]  # fixtures

NUMBER = BASE.entry + 1
LONG = 60  # seconds


def result(round: int) -> Result:
    """One whose means nobody has."""
    return Result(0, round, BASE.entry, BASE.root, digest("a table", bytes([round])), b"", (), ())


def lost(rounds: Rounds, log: Log, goes_on_with: list[Message]) -> list[int]:
    """What is said to be lost while the log of others has one more of these each second."""
    (wake,) = [each for each in rounds.open(0.0, BASE) if isinstance(each, Wake)]
    effects: list[Effect] = rounds.committed(1.0, NUMBER, result(ROUND), log.register)
    for second in range(LONG):
        now = 1.0 + TICK * (1 + second)
        effects += rounds.fire(now, wake.timer)
        for body in goes_on_with:
            effects += rounds.committed(now, NUMBER + 1 + second, body, log.register)
    return sorted({each.entry for each in told(effects, Lost)})


@pytest.mark.parametrize("others", [[], [Admit(())], [result(ROUND + 1)]], ids=["rests", "members", "rounds"])
def test_it_is_said_whatever_else_is_decided_meanwhile(rounds: Rounds, log: Log, others: list[Message]) -> None:
    assert lost(rounds, log, others) == [NUMBER]
