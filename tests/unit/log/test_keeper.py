"""What a voter says of the others: who is absent, and after how long, and who is on another branch of the log."""

from __future__ import annotations

from dataclasses import replace

from shoal.protocol.base.effects import Effect, Send, Timer
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, decode
from shoal.protocol.log.certificate import subject_of
from shoal.protocol.log.core import Core
from shoal.protocol.log.keeper import ABSENT, LEAVING, TICK, Keeper
from shoal.protocol.log.register import after, member_of, next_entry
from shoal.protocol.log.shortcuts import START, Shortcuts
from shoal.protocol.log.trust import Crash
from shoal.protocol.messages.log import (
    STATEMENT_TAGS,
    Certificate,
    Decided,
    Found,
    GetLog,
    Met,
    Phase,
    Propose,
    Register,
    Request,
    Shortcut,
    Statement,
    Stays,
    Unheard,
)
from tests.simulation.log_search import rules_of
from tests.simulation.log_worlds import PEERS, Endless, register_of
from tests.simulation.signing import FakeSigner

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
    """The keeper of A, a voter beside B and C, with a clock; its log may be some entries long."""

    def __init__(self, entries: int = 0) -> None:
        self.first = register_of(3, 3)
        now = replace(self.first, number=entries)
        self.seen, self.now = Seen(), 1000.0
        core = Core(A, member_of(now, A).life, now, rules_of(Crash, A))
        self.keeper = Keeper(core, self.seen, self.first, Shortcuts(self.first, START, now), Endless())
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


def other_branch(first: Register, founder: PeerId, tokens: int) -> Shortcut:
    """The way to a branch that `founder` began alone with the first entry, and which has so many tokens by now."""
    rules, life = rules_of(Crash, A), member_of(first, founder).life
    stays = signed(Stays(first.branch, first.tip, founder, 1, b"", founder, life, b""), FakeSigner(founder))
    entry = next_entry(first, Found((stays,)))
    branch = after(first, entry, rules)
    shown = Decided(entry, Certificate(subject_of(first, branch, entry, 0, Phase.COMMIT), ()))
    shortcuts = Shortcuts(first, START, first)
    shortcuts.read(first, shown, branch)
    way = shortcuts.to((), branch)
    assert way is not None
    return replace(way, tokens=tokens)


def asks_to_yield(effects: list[Effect]) -> bool:
    return any(isinstance(each, Send) and isinstance(each.message, Request | Propose) for each in effects)


def test_who_shows_another_branch_is_there_and_who_passes_that_on_is_not() -> None:
    bench = Bench(entries=5)
    rival = other_branch(bench.first, C, tokens=1000)
    assert asks_to_yield(bench.keeper.receive(B, Met(bench.first.branch, C, rival)))
    assert bench.keeper.here == [A, B, C]
    bench.keeper.receive(C, rival)
    assert bench.keeper.here == [A, B]


def test_what_a_stranger_passes_on_is_nothing() -> None:
    bench = Bench(entries=5)
    rival = other_branch(bench.first, C, tokens=1000)
    assert bench.keeper.receive(PEERS[3], Met(bench.first.branch, C, rival)) == []


def test_a_branch_is_left_without_an_entry_only_after_some_seconds_without_a_quorum() -> None:
    """The other branch may just be yielding to ours."""
    bench = Bench(entries=5)
    rival = other_branch(bench.first, C, tokens=1000)
    bench.lose(B)
    bench.keeper.receive(C, rival)  # so C is not here
    bench.run(LEAVING - TICK)
    bench.keeper.receive(C, rival)
    assert bench.keeper.register.branch == bench.first.branch
    bench.run(2 * TICK)
    bench.keeper.receive(C, rival)
    assert bench.keeper.register.branch == rival.branch


def test_whoever_speaks_is_not_down() -> None:
    bench = Bench()
    bench.lose(B)
    assert bench.keeper.core.down == (B,)
    bench.keeper.receive(B, GetLog(bench.first.branch, 0))
    assert not bench.keeper.core.down
