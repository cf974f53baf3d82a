"""An anchor: a joiner waits for a log that goes so far, and refuses one that has another entry there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import pytest

from shoal.protocol.base.effects import Effect, Send, Timer
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.signing import signed
from shoal.protocol.log.anchors import EVERY, anchor_of, check_skip
from shoal.protocol.log.core import Core
from shoal.protocol.log.keeper import Keeper
from shoal.protocol.log.register import entry_digest, founded, voters_root
from shoal.protocol.log.shortcuts import EVERY as MARKED
from shoal.protocol.log.shortcuts import START, Shortcuts
from shoal.protocol.log.trust import Crash
from shoal.protocol.messages.anchor import Anchor
from shoal.protocol.messages.log import Admit, Asks, Decided, Register, Request, Shortcut, Tip, VoteFile
from tests.simulation.log_search import rules_of
from tests.simulation.log_worlds import BRANCH, Endless
from tests.simulation.signing import FakeSigner

FOUNDER, JOINER = PeerId("founder"), PeerId("joiner")
FOUNDING = founded(BRANCH, FOUNDER, 1)
DUTIES = Timer("log", "duties", 0)
LATEST = 20  # entries of the log that is tried with


@dataclass(frozen=True)
class Others:
    """Who is alive."""

    peers: tuple[PeerId, ...]

    def alive(self) -> Sequence[PeerId]:
        return self.peers

    def is_alive(self, peer: PeerId) -> bool:
        return peer in self.peers


def keeper(me: PeerId, anchor: Anchor | None = None) -> Keeper:
    """A peer that has read nothing yet."""
    votes = VoteFile(1, voters_root(FOUNDING), 0, 0, None, None)
    core = Core.resume(me, FOUNDING, (), votes, rules_of(Crash, me))
    others = Others(() if me == FOUNDER else (FOUNDER,))
    return Keeper(core, others, FOUNDING, Shortcuts(FOUNDING, START, FOUNDING), Endless(), anchor)


def log_of(entries: int) -> tuple[Keeper, list[Decided]]:
    """A founder who has admitted so many, and what it has decided."""
    alone, decided = keeper(FOUNDER), list[Decided]()
    alone.start()
    for number in range(entries):
        asks = Asks(BRANCH, PeerId(f"N{number}"), 7, False, b"")
        alone.want(Admit((signed(asks, FakeSigner(asks.peer)),)))
        decided.append(alone.core.log[-1])
    assert alone.register.number == entries
    return alone, decided


FOUNDERS, LOG = log_of(LATEST)


def anchor_at(number: int) -> Anchor:
    return Anchor(number, entry_digest(LOG[number - 1].entry)[:8])


def asks_to_be_admitted(effects: list[Effect]) -> bool:
    return any(isinstance(each, Send) and isinstance(each.message, Request) for each in effects)


def shortcut(of: Keeper = FOUNDERS) -> Shortcut:
    found = of._shortcuts.to(of.core.log[-4:], of.register)  # a peer that has made its log shorter
    assert found is not None
    assert found.register.number < of.register.number
    return found


def test_a_log_that_ends_below_the_anchor_is_not_joined() -> None:
    joiner = keeper(JOINER, anchor_at(3))
    assert not asks_to_be_admitted(joiner.start())
    for entry in LOG[:2]:
        joiner.receive(FOUNDER, entry)
        assert joiner.is_below_anchor
        assert not asks_to_be_admitted(joiner.fire(1.0, DUTIES))
    joiner.receive(FOUNDER, LOG[2])
    assert not joiner.is_below_anchor
    assert asks_to_be_admitted(joiner.fire(2.0, DUTIES))


def test_who_has_no_anchor_asks_at_once() -> None:
    assert asks_to_be_admitted(keeper(JOINER).start())


def test_another_entry_than_the_anchor_names_is_refused() -> None:
    joiner = keeper(JOINER, Anchor(2, b"another!"))
    joiner.receive(FOUNDER, LOG[0])
    with pytest.raises(RemoteError, match="another entry 2 than the run's link names") as refusal:
        joiner.receive(FOUNDER, LOG[1])
    assert refusal.value.peer == FOUNDER
    assert joiner.register.number == 1
    with pytest.raises(RemoteError, match="another entry 2 than the run's link names"):  # as it is read by who asks
        joiner.receive(FOUNDER, Tip(BRANCH, LATEST, tuple(LOG)))
    assert joiner.register.number == 1


@pytest.mark.parametrize("number", [16, 12, 2])
def test_a_shortcut_over_another_entry_is_refused_where_its_register_tells(number: int) -> None:
    way = shortcut()
    assert number <= way.register.number
    wrong, right = keeper(JOINER, Anchor(number, b"another!")), keeper(JOINER, anchor_at(number))
    with pytest.raises(RemoteError, match=f"another entry {number}"):
        wrong.receive(FOUNDER, way)
    assert wrong.register.number == 0
    right.receive(FOUNDER, way)
    assert right.register.number == way.register.number


def test_a_shortcut_over_another_entry_is_refused_where_its_headers_tell() -> None:
    """Its register has forgotten that entry; one of the headers is of it."""
    way = shortcut()
    number = way.way.headers[0].certificate.subject.number
    late = replace(way.register, tips=way.register.tips[-1:], number=way.register.number + EVERY)
    check_skip(anchor_at(number), way.way, late, FOUNDER)
    with pytest.raises(RemoteError, match=f"another entry {number}"):
        check_skip(Anchor(number, b"another!"), way.way, late, FOUNDER)


def test_a_shortcut_that_ends_below_the_anchor_is_read_on_from() -> None:
    joiner, way = keeper(JOINER, anchor_at(LATEST)), shortcut()
    joiner.receive(FOUNDER, way)
    assert joiner.is_below_anchor
    for entry in LOG[way.register.number :]:
        joiner.receive(FOUNDER, entry)
    assert not joiner.is_below_anchor


@pytest.mark.parametrize("order", [*permutations(("short", "long", "forged"))])
def test_of_several_ways_the_longest_that_is_certified_is_taken(order: tuple[str, ...]) -> None:
    """Whoever shows a forged one is named, and neither keeps a joiner from the others nor takes it back."""
    other, longer = PeerId("other"), shortcut(log_of(LATEST + MARKED)[0])
    assert longer.register.number == shortcut().register.number + MARKED
    forged = replace(longer, register=replace(longer.register, number=longer.register.number + MARKED))
    ways = {"short": shortcut(), "long": longer, "forged": forged}
    joiner = keeper(JOINER)
    joiner.start()
    for each in order:
        if each == "forged":
            with pytest.raises(RemoteError, match="nobody has certified") as refusal:
                joiner.receive(other, forged)
            assert refusal.value.peer == other
        else:
            before = joiner.register.number
            joiner.receive(FOUNDER, ways[each])
            assert joiner.register.number == max(before, ways[each].register.number)
    assert joiner.register == longer.register


def test_the_anchor_of_a_log_stays_for_a_few_entries() -> None:
    def after(number: int) -> Register:
        tips = (BRANCH, *(entry_digest(each.entry) for each in LOG[:number]))
        return replace(FOUNDING, number=number, tips=tips)

    assert anchor_of(after(0)) is None
    assert {anchor_of(after(number)) for number in range(1, EVERY)} == {anchor_at(1)}
    assert {anchor_of(after(number)) for number in range(EVERY, 2 * EVERY)} == {anchor_at(EVERY)}
