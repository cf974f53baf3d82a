"""What a voter says of the others: who is absent, and after how long."""

from __future__ import annotations

from shoal.protocol.base.effects import Effect, Send, Timer
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, decode
from shoal.protocol.log.core import Core
from shoal.protocol.log.keeper import ABSENT, TICK, Keeper
from shoal.protocol.log.register import member_of
from shoal.protocol.log.shortcuts import START, Shortcuts
from shoal.protocol.log.trust import Crash
from shoal.protocol.messages.log import STATEMENT_TAGS, Statement, Unheard
from tests.simulation.log_search import rules_of
from tests.simulation.log_worlds import PEERS, Endless, register_of

A, B, C = PEERS[:3]


class Seen:
    """Membership, as the keeper sees it."""

    def __init__(self) -> None:
        self.here = {B, C}

    def alive(self) -> list[PeerId]:
        return sorted(self.here)

    def is_alive(self, peer: PeerId) -> bool:
        return peer in self.here


class Bench:
    """The keeper of A, a voter beside B and C, with a clock."""

    def __init__(self) -> None:
        register = register_of(3, 3)
        self.seen, self.now = Seen(), 1000.0
        core = Core(A, member_of(register, A).life, register, rules_of(Crash, A))
        self.keeper = Keeper(core, self.seen, register, Shortcuts(register, START, register), Endless())
        self.keeper.start()

    def lose(self, *peers: PeerId) -> None:
        """Membership gives these up."""
        self.seen.here -= set(peers)
        for peer in peers:
            self.keeper.peer_down(peer)

    def find(self, peer: PeerId) -> None:
        """Membership finds it again."""
        self.seen.here.add(peer)
        self.keeper.peer_up(peer)

    def run(self, seconds: float) -> set[PeerId]:
        """Whom it calls absent in that time."""
        end, said = self.now + seconds, set[PeerId]()
        while self.now < end:
            said |= self.wake(self.now + TICK)
        return said

    def wake(self, now: float) -> set[PeerId]:
        """Whom it calls absent when it wakes up."""
        self.now = now
        return called_absent(self.keeper.fire(now, Timer("log", "duties", 0)))


def called_absent(effects: list[Effect]) -> set[PeerId]:
    sent = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Statement)]
    said = [decode(each.body, None, MAX_CONTROL_FRAME, STATEMENT_TAGS) for each in sent]
    return {each.absent for each in said if isinstance(each, Unheard)}


def test_who_is_away_for_a_minute_is_called_absent() -> None:
    bench = Bench()
    assert bench.run(ABSENT) == set()
    bench.lose(C)
    assert bench.run(ABSENT - 1) == set()
    assert bench.run(3) == {C}


def test_only_time_in_which_this_process_ran_counts() -> None:
    """A laptop that wakes up finds the others gone, until it has reached them."""
    bench = Bench()
    bench.run(5)
    bench.lose(B, C)
    bench.run(5)
    assert bench.wake(bench.now + 8 * 3600) == set()
    assert bench.run(ABSENT - 10) == set()
    assert bench.run(10) == {B, C}


def test_who_was_not_there_when_this_process_began_is_called_absent_as_well() -> None:
    bench = Bench()
    bench.seen.here.remove(B)
    assert bench.run(ABSENT + 2) == {B}


def test_how_long_is_learned_from_those_who_come_back() -> None:
    bench = Bench()
    for _ in range(3):
        bench.lose(C)
        assert bench.run(ABSENT - 10) == set()
        bench.find(C)
        bench.run(5)
    bench.lose(C)
    assert bench.run(ABSENT + 10) == set()
    assert bench.run(ABSENT) == {C}
