"""The member table: which entry is later, what a claim can and cannot do, and what is forgotten first."""

from __future__ import annotations

import dataclasses

from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.membership.members import (
    MemberTable,
    PeerDown,
    PeerLeft,
    PeerSuspected,
    PeerUp,
    State,
    StatusChanged,
)
from shoal.protocol.membership.view import MembershipView
from shoal.protocol.messages.membership import Entry, Row, RunStatus

ME, A, B, C = PeerId("me"), PeerId("a"), PeerId("b"), PeerId("c")
STATUS = RunStatus(0, NO_DIGEST, NO_DIGEST, "training", 0, 0, None, True, 0, 0, "unknown")


def entry(peer: PeerId, incarnation: int = 0, version: int = 0, *, left: bool = False) -> Entry:
    return Entry(peer, incarnation, version, (), STATUS, left, f"{peer} {incarnation} {version}".encode())


def table(limit: int = 10, tombstones: int = 10) -> MemberTable:
    return MemberTable(entry(ME), limit, tombstones)


def state(members: MemberTable, peer: PeerId) -> State:
    member = members.get(peer)
    assert member is not None
    return member.state


def test_a_new_member_is_up_and_a_later_version_changes_its_status() -> None:
    members = table()
    assert members.adopt(0.0, entry(A)) == PeerUp(A, ())
    assert members.is_later(entry(A, version=1))
    assert members.adopt(1.0, entry(A, version=1)) == StatusChanged(A)
    assert not members.is_later(entry(A, version=1))
    assert not members.is_later(entry(A))


def test_a_member_that_has_moved_is_up_elsewhere_unless_it_is_doubted() -> None:
    members = table()
    members.adopt(0.0, entry(A))
    moved = dataclasses.replace(entry(A, version=1), addresses=("/elsewhere",))
    assert members.adopt(1.0, moved) == PeerUp(A, ("/elsewhere",))
    members.suspect(2.0, A)
    assert members.adopt(3.0, dataclasses.replace(entry(A, version=2), addresses=("/again",))) == StatusChanged(A)
    assert members.trust(4.0, A) == PeerUp(A, ("/again",))


def test_who_has_left_is_known_until_it_is_back_and_the_dead_are_not_among_them() -> None:
    members = table()
    view = MembershipView(members)
    for peer in (A, B, C):
        members.adopt(0.0, entry(peer))
    members.adopt(1.0, entry(B, version=1, left=True))
    members.adopt(2.0, entry(A, version=1, left=True))
    members.declare_dead(3.0, C)
    assert view.gone() == [A, B]
    members.adopt(4.0, entry(A, incarnation=1))
    assert view.gone() == [B]


def test_only_a_higher_incarnation_refutes() -> None:
    members = table()
    members.adopt(0.0, entry(A))
    assert members.suspect(1.0, A) == PeerSuspected(A)
    assert members.suspect(1.0, A) is None
    members.adopt(2.0, entry(A, version=9))
    assert state(members, A) is State.SUSPECT
    assert members.adopt(3.0, entry(A, incarnation=1)) == PeerUp(A, ())
    assert state(members, A) is State.ALIVE


def test_the_dead_come_back_with_a_higher_incarnation_only() -> None:
    members = table()
    members.adopt(0.0, entry(A))
    assert members.declare_dead(1.0, A) == PeerDown(A)
    assert members.declare_dead(1.0, A) is None
    assert members.adopt(2.0, entry(A, version=1)) is None
    assert members.present() == []
    assert members.adopt(3.0, entry(A, incarnation=1)) == PeerUp(A, ())
    assert members.present() == [A]


def test_who_left_is_gone_until_its_next_incarnation() -> None:
    members = table()
    members.adopt(0.0, entry(A))
    assert members.adopt(1.0, entry(A, version=1, left=True)) == PeerLeft(A)
    assert members.declare_dead(1.0, A) is None
    assert members.adopt(2.0, entry(A, incarnation=1, version=2)) == PeerUp(A, ())


def test_who_left_early_may_have_said_more_since_in_a_later_process_that_knows_nothing_of_it() -> None:
    members = table()
    members.adopt(0.0, entry(A, version=2, left=True))
    assert members.adopt(1.0, entry(A, version=24)) == PeerUp(A, ())
    assert state(members, A) is State.ALIVE


def test_who_is_new_and_dead_or_gone_is_no_news() -> None:
    members = table()
    assert members.adopt(0.0, entry(A), dead=True) is None
    assert members.adopt(0.0, entry(B, left=True)) is None
    assert state(members, A) is State.DEAD
    assert state(members, B) is State.LEFT
    assert members.present() == []


def test_present_members_are_sorted_and_rows_show_the_dead() -> None:
    members = table()
    for peer in (C, A, B):
        members.adopt(0.0, entry(peer))
    members.declare_dead(1.0, B)
    assert members.present() == [A, C]
    assert members.rows() == (Row(C, 0, 0, False), Row(A, 0, 0, False), Row(B, 0, 0, True))


def test_a_full_table_forgets_the_longest_gone_and_never_a_living_one() -> None:
    members = table(limit=2)
    members.adopt(0.0, entry(A))
    members.adopt(0.0, entry(B))
    assert members.adopt(1.0, entry(C)) is None
    assert members.get(C) is None
    members.declare_dead(2.0, A)
    assert members.adopt(3.0, entry(C)) == PeerUp(C, ())
    assert members.get(A) is None
    assert members.present() == [B, C]


def test_tombstones_are_bounded() -> None:
    members = table(limit=100, tombstones=3)
    for index in range(10):
        peer = PeerId(f"peer {index}")
        members.adopt(float(index), entry(peer))
        members.declare_dead(float(index), peer)
    assert [member.entry.peer for member in members] == ["peer 7", "peer 8", "peer 9"]


def test_an_entry_of_ours_that_we_did_not_make_is_from_an_earlier_life() -> None:
    members = table()
    assert not members.is_later(entry(ME))
    assert members.is_later(entry(ME, version=3))
    assert members.is_later(dataclasses.replace(entry(ME), signature=b"another"))


def test_an_author_that_forgot_its_entry_is_told() -> None:
    members = table()
    members.adopt(0.0, entry(A, version=5))
    assert members.outdates(entry(A, version=1))
    assert members.outdates(dataclasses.replace(entry(A, version=5), signature=b"another"))
    assert not members.outdates(entry(A, version=5))
    assert not members.outdates(entry(A, version=6))
    assert not members.outdates(entry(B))
