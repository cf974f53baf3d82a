"""A run that goes on as a branch night after night: how long the way through all of them is, and how it is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, PeerId, digest
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, Message, encode
from shoal.protocol.log.certificate import certificate_of, subject_of
from shoal.protocol.log.journal import begun_at, read
from shoal.protocol.log.register import (
    after,
    bare,
    body_of,
    founded,
    has_quorum,
    last_life,
    member_of,
    next_entry,
    rest_of,
)
from shoal.protocol.log.shortcuts import START, Shortcuts, beginning, check_shortcut
from shoal.protocol.log.trust import Crash
from shoal.protocol.messages.log import (
    AddVoters,
    Admit,
    Asks,
    Consent,
    Crossing,
    Decided,
    Found,
    Header,
    Phase,
    Register,
    Result,
    Shortcut,
    Stays,
    Vote,
    VoteFile,
    Way,
)
from tests.simulation.log_search import rules_of
from tests.simulation.signing import SIZE, FakeSigner

LAPTOPS = [PeerId(f"12D3KooW{number:044d}") for number in range(5)]
READER = PeerId("reader")
RULES = rules_of(Crash, READER)
ED25519 = 64  # bytes of a real signature
NIGHTS = 500


class Nights:
    """The log of a run of laptops, of which some are closed each night."""

    def __init__(self) -> None:
        self.founding = founded(digest("a run of laptops"), LAPTOPS[0], 1, rounds_to_vote=0)
        self.register = self.founding
        self.shortcuts = Shortcuts(self.founding, START, self.founding)
        self.log: list[Decided] = []  # the newest entries
        self.be_back()

    def be_back(self) -> None:
        """Everybody is there, a member and a voter, and a round is made."""
        away = [peer for peer in LAPTOPS if all(peer != each.peer for each in self.register.members)]
        self.decide(Admit(tuple(self.asks(peer) for peer in away)))
        self.decide(AddVoters(tuple(self.consent(peer) for peer in LAPTOPS if peer not in self.register.voters), ()))
        self.make_round()

    def fall_asleep(self, but: Sequence[PeerId], later: bool = False, makes: int = 1) -> None:
        """The others go on without those who sleep: `later`, in later lives; and they make so many rounds."""
        register = self.register
        stays = [
            Stays(register.branch, register.tip, but[0], self.round + 1, 1, b"", peer, self.life(peer, later), b"")
            for peer in but
        ]
        entry = next_entry(register, Found(tuple(signed(each, FakeSigner(each.peer)) for each in stays)))
        changed = after(register, entry, RULES)
        self.take(Decided(entry, certificate_of(subject_of(register, changed, entry, 0, Phase.COMMIT), ())), changed)
        for _ in range(makes):
            self.make_round()

    def make_round(self) -> None:
        """Its result counts nobody: what matters is that it is decided."""
        base = max((each.result for each in self.register.parts), default=0)
        self.decide(Result(0, self.round + 1, base, NO_DIGEST, digest(f"{self.register.number}"), b"", (), ()))

    def decide(self, body: Message) -> None:
        """By as many votes as it takes."""
        entry = next_entry(self.register, body)
        changed = after(self.register, entry, RULES)
        subject = subject_of(self.register, changed, entry, 0, Phase.COMMIT)
        lives = {each.peer: each.life for each in (*changed.members, *self.register.members)}
        votes: list[Vote] = []
        for peer in (*self.register.voters, *(each for each in changed.voters if each not in self.register.voters)):
            voted = [each.peer for each in votes]
            if not all(has_quorum(each, voted, RULES) for each in (self.register, changed)):
                votes.append(signed(Vote(subject, peer, lives[peer], b""), FakeSigner(peer)))
        self.take(Decided(entry, certificate_of(subject, votes)), changed)

    def take(self, decided: Decided, changed: Register) -> None:
        """An entry is read."""
        self.shortcuts.read(self.register, decided, changed)
        self.register, self.log = changed, [*self.log, decided][-64:]

    @property
    def round(self) -> int:
        """The last one."""
        return max((each.round for each in self.register.parts), default=0)

    def life(self, peer: PeerId, later: bool) -> int:
        return last_life(self.register, peer) + 1 if later else member_of(self.register, peer).life

    def asks(self, peer: PeerId) -> Asks:
        asks = Asks(self.register.branch, peer, self.life(peer, later=True), False, b"")
        return signed(asks, FakeSigner(peer))

    def consent(self, peer: PeerId) -> Consent:
        life = member_of(self.register, peer).life
        return signed(Consent(self.register.branch, self.register.tip, peer, life, b""), FakeSigner(peer))

    def way(self) -> Shortcut:
        """What somebody is shown who is far behind."""
        way = self.shortcuts.to(self.log, self.register)
        assert way is not None
        return way


def size_of(way: Shortcut) -> int:
    """Bytes, with real signatures."""
    headers = [*way.way.headers, *(each for crossing in way.way.crossings for each in crossing.headers)]
    signatures = sum(len(each.certificate.proofs) for each in headers)
    for crossing in way.way.crossings:
        body = body_of(crossing.entry.body)
        assert isinstance(body, Found)
        signatures += len(body.stays)
    return len(encode(way)) + signatures * (ED25519 - SIZE)


@pytest.mark.parametrize("awake", [1, 2])
def test_the_way_through_hundreds_of_branches_is_short_where_some_voter_stays_on_each_night(awake: int) -> None:
    nights = Nights()
    for night in range(NIGHTS):
        nights.fall_asleep([LAPTOPS[(night + place) % len(LAPTOPS)] for place in range(awake)])
        nights.be_back()
    way = nights.way()
    print(f"{awake} awake: {size_of(way):,} bytes, {len(way.way.crossings)} crossings")
    assert size_of(way) < 1_000_000
    check_found(nights, way)


def check_found(nights: Nights, way: Shortcut) -> None:
    """Somebody who knows the founder only gets to the end, as does who starts again from a shorter journal."""
    check_shortcut(way, nights.founding, RULES, READER)
    assert beginning(nights.founding, way.way, RULES).branch == way.register.branch
    journal = read(begun_at(way, VoteFile(1, NO_DIGEST, 0, 0, None, None)), RULES)
    assert (journal.is_damaged, journal.register, journal.way) == (False, way.register, way.way)


def test_the_way_through_branches_whose_founders_had_all_begun_another_life_can_still_be_sent() -> None:
    nights = Nights()
    for night in range(NIGHTS):
        nights.fall_asleep([LAPTOPS[(night + place) % len(LAPTOPS)] for place in range(2)], later=True)
        nights.be_back()
    way = nights.way()
    print(f"{size_of(way):,} bytes, {len(way.way.crossings)} crossings")
    assert len(way.way.crossings) == NIGHTS
    assert size_of(way) < MAX_CONTROL_FRAME
    check_found(nights, way)


def test_the_founding_of_a_branch_on_which_nothing_was_decided_is_shown_until_a_voter_of_before_decides() -> None:
    nights = Nights()
    nights.fall_asleep(LAPTOPS[:2], makes=0)
    nights.fall_asleep(LAPTOPS[1:2], makes=0)
    assert len(nights.shortcuts._branch.crossings) == 2
    nights.be_back()
    nights.fall_asleep(LAPTOPS[1:2])
    way = nights.way()
    assert len(way.way.crossings) == 1
    check_found(nights, way)
    assert nights.shortcuts.left_behind == (way.way.crossings[0].register, [LAPTOPS[0], *LAPTOPS[2:]])


def test_a_branch_on_which_nothing_was_decided_is_shown_whole_where_nobody_leads_over_it() -> None:
    """Without a header nothing certifies what is left out of the register before the next branch."""
    nights = Nights()
    nights.fall_asleep(LAPTOPS[:2], later=True, makes=0)
    nights.fall_asleep(LAPTOPS[1:2], makes=0)
    nights.be_back()
    nights.fall_asleep(LAPTOPS[:2], later=True)
    way = nights.way()
    assert [len(each.headers) > 0 for each in way.way.crossings] == [True, False, True]
    check_found(nights, way)


def test_a_way_that_was_made_shorter_is_made_shorter_by_who_takes_it_too() -> None:
    nights = Nights()
    for night in range(8):
        nights.fall_asleep([LAPTOPS[night % 2]])
        nights.be_back()
    way = nights.way()
    nights.shortcuts = Shortcuts(beginning(nights.founding, way.way, RULES), way.way, way.register)
    nights.register = way.register
    nights.be_back()
    nights.fall_asleep(LAPTOPS[:1])
    assert len(nights.way().way.crossings) == 1
    check_found(nights, nights.way())


def forged(way: Shortcut, place: int, header: Header) -> Shortcut:
    """With another header on the way to its only crossing."""
    (crossing,) = way.way.crossings
    headers = (*crossing.headers[:place], header, *crossing.headers[place + 1 :])
    return replace(way, way=replace(way.way, crossings=(Crossing(headers, crossing.register, crossing.entry),)))


def test_a_header_of_another_branch_that_no_voter_of_before_has_signed_leads_nowhere() -> None:
    nights, other = Nights(), Nights()
    nights.fall_asleep(LAPTOPS[:1])
    nights.be_back()
    nights.fall_asleep(LAPTOPS[:1])
    other.fall_asleep(LAPTOPS[3:], later=True)
    way = nights.way()
    (crossing,) = way.way.crossings
    check_shortcut(way, nights.founding, RULES, READER)
    alien = other.shortcuts._newest[0]
    for place in range(len(crossing.headers)):
        with pytest.raises(RemoteError, match=r"too few|nobody has certified|leads back|another branch"):
            check_shortcut(forged(way, place, alien), nights.founding, RULES, READER)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda crossing: replace(crossing, rest=NO_DIGEST),
        lambda crossing: replace(crossing, rest=None),
        lambda crossing: replace(crossing, register=replace(crossing.register, voters=LAPTOPS[:1])),
        lambda crossing: replace(crossing, register=replace(crossing.register, author=READER)),
    ],
)
def test_a_register_of_which_a_part_is_left_out_is_checked_all_the_same(spoil: Callable[[Crossing], Crossing]) -> None:
    nights = Nights()
    for _ in range(2):
        nights.fall_asleep(LAPTOPS[:2], later=True)
        nights.be_back()
    nights.fall_asleep(LAPTOPS[:2], later=True)
    way = nights.way()
    first, second, third = way.way.crossings
    assert (first.rest is None, second.rest is None, third.rest is None) == (False, False, True)
    check_shortcut(way, nights.founding, RULES, READER)
    spoiled = replace(way, way=replace(way.way, crossings=(first, spoil(second), third)))
    with pytest.raises(RemoteError, match="nobody has certified"):
        check_shortcut(spoiled, nights.founding, RULES, READER)


def bared(crossing: Crossing) -> Crossing:
    """With a part of its register left out."""
    return replace(crossing, register=bare(crossing.register), rest=rest_of(crossing.register))


@pytest.mark.parametrize("makes", [0, 1])
def test_the_register_before_the_newest_branch_is_shown_whole(makes: int) -> None:
    """Else who takes the way has another register than all others, and nobody has certified that."""
    nights = Nights()
    nights.fall_asleep(LAPTOPS[:2], later=True, makes=makes)
    (whole,) = nights.shortcuts._branch.crossings
    crossing = bared(whole)
    first = after(crossing.register, crossing.entry, RULES)
    register, headers = (nights.register, nights.shortcuts._newest) if makes else (first, ())
    way = Shortcut(register.branch, 0, True, Way((crossing,), headers), register)
    with pytest.raises(RemoteError, match="a part of a register"):
        check_shortcut(way, nights.founding, RULES, READER)
    check_shortcut(replace(way, way=Way((whole,), headers), register=nights.register), nights.founding, RULES, READER)


def test_the_register_before_a_branch_is_shown_whole_where_no_header_follows() -> None:
    nights = Nights()
    nights.fall_asleep(LAPTOPS[:2], later=True, makes=0)
    nights.fall_asleep(LAPTOPS[1:2], makes=0)
    crossing, following = nights.shortcuts._branch.crossings
    before = after(bare(crossing.register), crossing.entry, RULES)
    crossings = bared(crossing), replace(following, register=before)
    way = Shortcut(nights.register.branch, 0, True, Way(crossings, ()), after(before, following.entry, RULES))
    with pytest.raises(RemoteError, match="a part of a register"):
        check_shortcut(way, nights.founding, RULES, READER)
