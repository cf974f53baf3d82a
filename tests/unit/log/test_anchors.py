"""An anchor: a joiner waits for a log that goes so far, and refuses one that has another entry there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import pytest

from shoal.protocol.base.effects import Effect, Send, Tell, Timer
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId, digest
from shoal.protocol.base.signing import signed
from shoal.protocol.log.anchors import EVERY, anchor_of, check_entry, check_skip
from shoal.protocol.log.branches import fork_of
from shoal.protocol.log.core import Core
from shoal.protocol.log.keeper import SEEKING, Keeper, Unanchored
from shoal.protocol.log.register import entry_digest, founded, steps, voters_root
from shoal.protocol.log.shortcuts import EVERY as MARKED
from shoal.protocol.log.shortcuts import START, Shortcuts
from shoal.protocol.log.trust import Crash
from shoal.protocol.messages.anchor import Anchor
from shoal.protocol.messages.log import (
    Admit,
    Asks,
    Decided,
    Found,
    GetLog,
    Register,
    Request,
    Shortcut,
    Stays,
    Stem,
    Tip,
    VoteFile,
)
from tests.simulation.log_search import rules_of
from tests.simulation.log_worlds import BRANCH, Stateless
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
    return Keeper(core, others, FOUNDING, Shortcuts(FOUNDING, START, FOUNDING), Stateless(), anchor)


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
    return Anchor(number, entry_digest(LOG[number - 1].entry)[:8], BRANCH[:8])


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
    joiner = keeper(JOINER, Anchor(2, b"another!", BRANCH[:8]))
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
    wrong, right = keeper(JOINER, Anchor(number, b"another!", BRANCH[:8])), keeper(JOINER, anchor_at(number))
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
        check_skip(Anchor(number, b"another!", BRANCH[:8]), way.way, late, FOUNDER)


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


# -- branches -----------------------------------------------------------------------------------------------------


FORK = 11  # number of the entry with which N0, who is a member since the first, founds a branch
SURVIVOR = PeerId("N0")


def branch_log(entries: int) -> tuple[Core, list[Decided]]:
    """The core of the survivor, who has admitted so many on the branch, and the whole log with them."""
    *_, (_, _, register) = steps(FOUNDING, LOG[: FORK - 1], rules_of(Crash, SURVIVOR))
    core = Core(SURVIVOR, 7, register, rules_of(Crash, SURVIVOR), log=tuple(LOG[: FORK - 1]))
    stays = Stays(register.branch, register.tip, SURVIVOR, 1, 1, b"", SURVIVOR, 7, b"")
    core, _ = core.found(Found((signed(stays, FakeSigner(SURVIVOR)),)))
    for number in range(entries):
        asks = Asks(core.register.branch, PeerId(f"M{number}"), 7, False, b"")
        core, _ = core.submit(Admit((signed(asks, FakeSigner(asks.peer)),)))
    assert core.register.number == FORK + entries
    return core, list(core.log)


def joiner_by(anchor: Anchor, sees: PeerId = SURVIVOR) -> Keeper:
    """A newcomer that sees one other."""
    made = keeper(JOINER, anchor)
    made._view = Others((sees,))
    made.start()
    return made


def shown(core: Core, log: Sequence[Decided]) -> Tip:
    return Tip(core.register.branch, core.register.number, tuple(log))


def ticks(joiner: Keeper, until: float) -> list[Effect]:
    """What it does in each second until then."""
    return [effect for at in range(1, int(until) + 1) for effect in joiner.fire(float(at), DUTIES)]


@pytest.mark.parametrize("at", [FORK, FORK + 1, LATEST])
@pytest.mark.parametrize("own", [1, 20])
def test_a_link_from_past_the_fork_leads_to_the_branch(at: int, own: int) -> None:
    """Whether the branch is longer than what was left, or shorter: its own entries are no other ones in their place."""
    core, log = branch_log(own)
    joiner = joiner_by(anchor_at(at))
    joiner.receive(SURVIVOR, shown(core, log))
    assert joiner.register == core.register
    effects = ticks(joiner, 2.0)
    assert Tell(Unanchored()) in effects
    assert asks_to_be_admitted(effects)
    assert not joiner.is_below_anchor


def test_a_shortcut_to_the_branch_is_taken_by_such_a_link() -> None:
    register = branch_log(20)[0].register
    check_skip(anchor_at(LATEST), START, register, SURVIVOR)
    own = anchor_on_branch(20)
    with pytest.raises(RemoteError, match=f"another entry {own.number}"):
        check_skip(replace(own, digest=b"another!"), START, register, SURVIVOR)


def test_a_link_from_before_the_fork_counts_on_the_branch() -> None:
    core, log = branch_log(2)
    with pytest.raises(RemoteError, match="another entry 3 than the run's link names"):
        joiner_by(Anchor(3, b"another!", BRANCH[:8])).receive(SURVIVOR, shown(core, log))
    joiner = joiner_by(anchor_at(3))
    joiner.receive(SURVIVOR, shown(core, log))
    assert Tell(Unanchored()) not in ticks(joiner, 2 * SEEKING)
    assert joiner.register == core.register


def test_a_link_that_was_made_on_a_branch_counts_there() -> None:
    core, log = branch_log(20)
    anchor = anchor_of(core.register)
    assert anchor is not None
    assert anchor.branch == core.register.branch[:8]
    joiner = joiner_by(anchor)
    joiner.receive(SURVIVOR, shown(core, log[: anchor.number - 1]))
    assert joiner.is_below_anchor
    assert Tell(Unanchored()) not in ticks(joiner, 2 * SEEKING)  # of its own branch an old copy is never taken
    wrong = joiner_by(replace(anchor, digest=b"another!"))
    with pytest.raises(RemoteError, match=f"another entry {anchor.number}"):
        wrong.receive(SURVIVOR, shown(core, log))


def test_a_link_that_was_made_on_a_branch_leads_to_the_log_that_it_was_left_for() -> None:
    joiner = joiner_by(anchor_on_branch(5), FOUNDER)
    joiner.receive(FOUNDER, Tip(BRANCH, LATEST, tuple(LOG)))
    effects = ticks(joiner, 2.0)
    assert Tell(Unanchored()) in effects
    assert asks_to_be_admitted(effects)


def test_to_a_log_that_ends_before_the_links_entry_only_after_a_while() -> None:
    """It may be an old copy of before the branch."""
    joiner = joiner_by(anchor_on_branch(20), FOUNDER)
    joiner.receive(FOUNDER, Tip(BRANCH, LATEST, tuple(LOG)))
    assert joiner.seeks_branch
    assert not asks_to_be_admitted(ticks(joiner, SEEKING - 1.0))
    effects = [effect for second in range(3) for effect in joiner.fire(SEEKING + second, DUTIES)]
    assert Tell(Unanchored()) in effects
    assert asks_to_be_admitted(effects)
    assert not joiner.seeks_branch


@pytest.mark.parametrize("says", [(), LOG])
def test_only_a_member_that_shows_another_branch_and_is_alive_says_that_the_links_was_left(
    says: Sequence[Decided],
) -> None:
    """Not strangers, nor other newcomers, whatever they have read, while the only member is away for a while."""
    other = PeerId("other newcomer")
    joiner = joiner_by(anchor_on_branch(20), FOUNDER)
    joiner.receive(FOUNDER, Tip(BRANCH, LATEST, tuple(LOG)))
    joiner._view = Others((other,))
    joiner.receive(other, Tip(BRANCH, len(says), tuple(says)))
    assert Tell(Unanchored()) not in ticks(joiner, 3 * SEEKING)
    joiner._view = Others((other, FOUNDER))
    again = [each for at in range(int(SEEKING) + 2) for each in joiner.fire(3 * SEEKING + at, DUTIES)]
    assert Tell(Unanchored()) in again


def test_who_has_gone_to_another_branch_shows_the_one_before_no_more() -> None:
    joiner = joiner_by(anchor_on_branch(20), FOUNDER)
    joiner.receive(FOUNDER, Tip(BRANCH, LATEST, tuple(LOG)))
    joiner.receive(FOUNDER, GetLog(digest("the links branch, perhaps"), LATEST))
    assert Tell(Unanchored()) not in ticks(joiner, 3 * SEEKING)


def test_who_knows_the_founder_only_and_hears_of_no_log_waits() -> None:
    joiner = joiner_by(anchor_on_branch(20), PeerId("stranger"))
    assert Tell(Unanchored()) not in ticks(joiner, 3 * SEEKING)


def test_who_has_read_a_log_that_is_over_still_asks_its_members_for_the_links_branch() -> None:
    joiner = joiner_by(anchor_on_branch(20), FOUNDER)
    joiner.receive(FOUNDER, Tip(BRANCH, LATEST, tuple(LOG)))
    joiner.core = replace(joiner.core, register=replace(joiner.register, is_over=True))
    asked = [each for each in joiner.fire(1.0, DUTIES) if isinstance(each, Send)]
    assert asked == [Send(FOUNDER, GetLog(BRANCH, LATEST))]


def way_to(log: Sequence[Decided], tokens: int) -> Shortcut:
    """To the end of such a log, or somewhere before, which claims to have so many tokens."""
    shortcuts, register = Shortcuts(FOUNDING, START, FOUNDING), FOUNDING
    for before, decided, register in steps(FOUNDING, log, rules_of(Crash, JOINER)):
        shortcuts.read(before, decided, register)
    found = shortcuts.to(log, register)
    assert found is not None
    return replace(found, tokens=tokens, stays=True)


def test_who_is_led_from_another_branch_to_an_old_copy_of_the_links_one_waits_there() -> None:
    joiner, (core, log) = joiner_by(anchor_on_branch(20)), branch_log(2)
    joiner.receive(FOUNDER, Tip(BRANCH, LATEST, tuple(LOG)))
    effects = joiner.receive(SURVIVOR, way_to(log, 1000)) + joiner.receive(SURVIVOR, shown(core, log))
    assert joiner.register == core.register
    effects += ticks(joiner, 3 * SEEKING)
    assert Tell(Unanchored()) not in effects
    assert not asks_to_be_admitted(effects)


def test_another_branch_with_another_entry_than_the_link_names_is_not_gone_to() -> None:
    core, log = branch_log(2)
    joiner = joiner_by(Anchor(FORK, b"another!", core.register.branch[:8]))
    joiner.receive(FOUNDER, Tip(BRANCH, LATEST, tuple(LOG)))
    with pytest.raises(RemoteError, match=f"another entry {FORK}") as refusal:
        joiner.receive(SURVIVOR, way_to(log, 1000))
    assert refusal.value.peer == SURVIVOR
    assert joiner.register.branch == BRANCH


def test_who_has_read_the_links_entry_and_leaves_its_branch_waits_for_it_no_more() -> None:
    """Though the other branch is shorter, so that it might be an old copy of what was before."""
    joiner, (core, log) = joiner_by(anchor_on_branch(20)), branch_log(20)
    joiner.receive(SURVIVOR, shown(core, log))
    assert not joiner.is_below_anchor
    effects = joiner.receive(FOUNDER, way_to(LOG, 1000))
    assert joiner.register.branch == BRANCH
    assert Tell(Unanchored()) in effects
    assert not joiner.is_below_anchor


def anchor_on_branch(own: int) -> Anchor:
    """That of a branch with so many entries of its own."""
    anchor = anchor_of(branch_log(own)[0].register)
    assert anchor is not None
    assert anchor.branch != BRANCH[:8]
    return anchor


def test_who_sees_nobody_waits_for_the_branch_that_its_link_names() -> None:
    joiner = joiner_by(replace(anchor_at(LATEST), branch=b"another!"))
    joiner._view = Others(())
    assert Tell(Unanchored()) not in ticks(joiner, 3 * SEEKING)
    assert joiner.seeks_branch


def test_an_anchor_of_before_a_branch_began_names_the_one_before() -> None:
    core, _ = branch_log(2)
    anchor = anchor_of(core.register)
    assert anchor == replace(anchor_at(8))
    check_entry(anchor, LOG[7].entry, FOUNDER)


def test_where_two_logs_part() -> None:
    core, _ = branch_log(2)
    *_, (_, _, parent) = steps(FOUNDING, LOG, rules_of(Crash, FOUNDER))
    assert fork_of(parent, core.register) == fork_of(core.register, parent) == FORK
    other = replace(parent, branch=digest("other"), earlier=(Stem(BRANCH, FORK - 3),))
    assert fork_of(core.register, other) == fork_of(other, core.register) == FORK - 3
    grandchild = replace(
        parent, branch=digest("x"), earlier=(*core.register.earlier, Stem(core.register.branch, FORK + 2))
    )
    assert fork_of(grandchild, parent) == fork_of(parent, grandchild) == FORK
    assert fork_of(grandchild, core.register) == fork_of(core.register, grandchild) == FORK + 2
    stranger = replace(parent, branch=digest("y"), earlier=(Stem(digest("z"), 2),))
    assert fork_of(stranger, core.register) == 0
