"""How many members train: the living ones that say so, and this node."""

from __future__ import annotations

import dataclasses

from shoal.node.run.facts import training_now
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.membership.members import MemberTable
from shoal.protocol.membership.view import MembershipView
from shoal.protocol.messages.membership import Entry, RunStatus

TRAINS = RunStatus(0, NO_DIGEST, NO_DIGEST, "training", 0, 0, None, True, 0, 0, "unknown")
KEEPS = dataclasses.replace(TRAINS, trains=False)


def entry(name: str, status: RunStatus, left: bool = False) -> Entry:
    return Entry(PeerId(name), 0, 0, (), status, left, b"")


def test_who_keeps_state_only_and_who_is_gone_do_not_count() -> None:
    table = MemberTable(entry("me", TRAINS))
    assert training_now(MembershipView(table)) == 1
    table.adopt(0.0, entry("a", TRAINS))
    table.adopt(0.0, entry("b", KEEPS))
    table.adopt(0.0, entry("c", TRAINS, left=True))
    table.adopt(0.0, entry("d", TRAINS))
    assert training_now(MembershipView(table)) == 3
    table.declare_dead(1.0, PeerId("d"))
    assert training_now(MembershipView(table)) == 2
