"""The exchange of summaries: how a newcomer learns everything at once, and how what gossip lost is healed.

A sends a Summary; B answers with the entries that are later at B, in pages, and with its own Summary, which A
answers in turn. Only differences travel in full. A death in a summary is a claim like any other: the other side
checks it, and the member that it speaks of refutes it.
"""

from __future__ import annotations

from shoal.protocol.effects import Effect, Send
from shoal.protocol.ids import PeerId
from shoal.protocol.members import Member, MemberTable, State, age
from shoal.protocol.messages.membership import Claim, Entry, Gossip, News, Row, Summary

PAGE = 48  # entries in one message


def ask(table: MemberTable, peer: PeerId) -> Effect:
    """Begin an exchange with `peer`."""
    return Send(peer, Summary(table.own, table.rows(), ask=True))


def answer(table: MemberTable, sender: PeerId, summary: Summary) -> list[Effect]:
    """What the sender of `summary` lacks, and our own summary if it asked for that."""
    known = {row.peer: row for row in summary.rows}
    own = summary.entry  # the sender's entry, perhaps older than one from an earlier life that we hold
    known[sender] = Row(sender, own.incarnation, own.version, False)
    later = [member for member in table if _lacks(known, member)]
    effects: list[Effect] = [
        Send(sender, Gossip(table.own, _page(table, later[begin : begin + PAGE])))
        for begin in range(0, len(later), PAGE)
    ]
    if summary.ask:
        effects.append(Send(sender, Summary(table.own, table.rows(), ask=False)))
    return effects


def deaths(sender: PeerId, summary: Summary) -> list[Claim]:
    """The deaths that a summary claims."""
    return [Claim(row.peer, row.incarnation, True, sender) for row in summary.rows if row.dead]


def _lacks(known: dict[PeerId, Row], member: Member) -> bool:
    row = known.get(member.entry.peer)
    if row is None:
        return member.state is not State.LEFT
    return age(member.entry) > (row.incarnation, row.version)


def _page(table: MemberTable, members: list[Member]) -> News:
    entries: list[Entry] = [member.entry for member in members]
    dead = [
        Claim(member.entry.peer, member.entry.incarnation, True, table.own.peer)
        for member in members
        if member.state is State.DEAD
    ]
    return News(tuple(entries), tuple(dead))
