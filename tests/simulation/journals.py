"""The journal of a log on a simulated disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.protocol.base.wire import Message
from shoal.protocol.log.core import Core
from shoal.protocol.log.journal import begun_at, framed, read, shortened
from shoal.protocol.log.register import Rules, voters_root
from shoal.protocol.member.facts import RunFacts
from shoal.protocol.member.past import Kept, Past, recall
from shoal.protocol.messages.averaging import Mean, Table
from shoal.protocol.messages.log import Shortcut, Switch, VoteFile
from tests.simulation.signing import FakeSigner


def recalled(disk: dict[str, Any], facts: RunFacts, signer: FakeSigner, next_life: Callable[[], int]) -> Past:
    """The log as it is on disk; begun, in the next life, if there is none that can be trusted."""
    first, rules = facts.register(), Rules(facts.trust, signer)
    content = bytes(disk.get("journal", b""))
    journal = read(content, rules)
    register, votes, kept = journal.register or first, journal.votes, content[: journal.length]
    if votes is None:
        votes = VoteFile(next_life(), voters_root(register), 0, 0, None, None)
        kept += (b"" if journal.register else framed(first)) + framed(votes)
    disk["journal"] = bytearray(kept)
    was_away = bool(disk.get("was_away"))
    return recall(facts, Kept(journal.first or first, journal.way, register, journal.entries, votes, was_away), rules)


def put_record(disk: dict[str, Any], name: str, record: Message, core: Core) -> None:
    """Append a record, or begin where the log goes on from."""
    if name == "shorten":
        assert isinstance(record, Shortcut)
        journal = read(bytes(disk["journal"]), core.rules)
        votes = journal.votes or core.vote_file()  # a process knows them, although its disk has lost a bit meanwhile
        disk["journal"] = bytearray(shortened(bytes(disk["journal"]), journal.places, record, votes)[0])
    elif isinstance(record, Switch):
        disk["journal"] = bytearray(begun_at(record.beginning, record.votes))
    elif isinstance(record, Shortcut):
        disk["journal"] = bytearray(begun_at(record, core.vote_file()))
    else:
        disk["journal"] += framed(record)


def means_on(disk: dict[str, Any]) -> Callable[[int], list[Mean | Table]]:
    """What is there of a round."""
    return lambda round: [each for each in disk.get("means", []) if each.round == round]
