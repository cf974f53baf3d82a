"""Small worlds for the search: two entries, of which one may change the voters, wanted by different peers at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from shoal.protocol.base.ids import Digest, PeerId, digest
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import Message
from shoal.protocol.log.register import founded, member_of
from shoal.protocol.log.trust import Byzantine, Crash
from shoal.protocol.messages.log import AddVoters, Asks, Consent, Leave, Member, Register, Roster, Seat
from tests.simulation.log_search import Wish, World, rules_of
from tests.simulation.signing import FakeSigner

BRANCH: Digest = digest("test run")
PEERS = tuple(PeerId(name) for name in (*"ABCDEFG", *(f"H{number:02}" for number in range(25))))


class Endless:
    """A judge of rounds of which there is no last, and which the log has."""

    held_round: int | None = 0

    def has_gone(self, peer: PeerId) -> bool:
        return True

    def is_passed(self) -> bool:
        return False

    def has_finished(self) -> bool:
        return False


class Stateless(Endless):
    """One of a peer at which no state is."""

    held_round = None


def register_of(members: int, voters: int, faults: int = 0) -> Register:
    """A run of so many members, of whom the first so many vote."""
    peers = PEERS[:members]
    register = founded(BRANCH, peers[0], 1, most_faults=faults, rounds_to_vote=0)
    return replace(
        register,
        faults=faults,
        members=tuple(Member(peer, number, 0) for number, peer in enumerate(peers, 1)),
        voters=peers[:voters],
    )


def adds(peer: PeerId, register: Register) -> Message | None:
    """`peer` is made a voter."""
    if peer in register.voters:
        return None
    life = member_of(register, peer).life
    consent = Consent(register.branch, register.tip, peer, life, b"")
    return AddVoters((signed(consent, FakeSigner(peer)),), ())


def leaves(peer: PeerId, register: Register) -> Message | None:
    """`peer` is a member no more."""
    if peer not in register.voters:
        return None
    asks = Asks(register.branch, peer, member_of(register, peer).life, True, b"")
    return Leave(signed(asks, FakeSigner(peer)))


def has_roster(members: tuple[PeerId, ...], register: Register) -> Message | None:
    """These take part in the rounds, too."""
    seats = register.parts[0].roster if register.parts else ()
    known = [seat.peer for seat in seats]
    new = [each.peer for each in register.members if each.peer in members and each.peer not in known]
    return Roster(0, (*seats, *(Seat(peer, 1) for peer in new))) if new else None


def world(
    before: int,
    after: int,
    trust: type = Crash,
    leaver: PeerId | None = None,
    asker: PeerId = PEERS[0],
    **settings: object,
) -> World:
    """Voters go from `before` to `after`, while others want other entries; the last one leaves, or `leaver`.

    `asker` wants that, unless it lies: then nobody does.
    """
    faults = (before - 1) // 3 if issubclass(trust, Byzantine) else 0
    register = register_of(max(before, after), before, faults)
    changes: Callable[[Register], Message | None]
    changes = partial(adds, PEERS[before]) if after > before else partial(leaves, leaver or PEERS[before - 1])
    wishes = (
        Wish(asker, changes),
        *(Wish(peer, partial(has_roster, (peer,))) for peer in register.voters[:3]),
    )
    liars: tuple[PeerId, ...] = settings.pop("liars", ())  # type: ignore[assignment]
    honest = tuple(member.peer for member in register.members if member.peer not in liars)
    return World(
        rules=partial(rules_of, trust),
        register=register,
        honest=honest,
        wishes=tuple(wish for wish in wishes if wish.peer in honest),
        liars=liars,
        **settings,  # type: ignore[arg-type]
    )
