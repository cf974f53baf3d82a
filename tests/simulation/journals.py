"""The journal of a log on a simulated disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.protocol.base.wire import Message
from shoal.protocol.log.core import Core
from shoal.protocol.log.journal import compacted, framed, read
from shoal.protocol.log.register import Rules, voters_root
from shoal.protocol.member.facts import RunFacts
from shoal.protocol.member.kept import Kept
from shoal.protocol.messages.log import Compaction, Shortcut, VoteFile
from tests.simulation.signing import FakeSigner


def recall(disk: dict[str, Any], facts: RunFacts, signer: FakeSigner, next_life: Callable[[], int]) -> Kept:
    """The log as it is on disk; begun, in the next life, if there is none that can be trusted."""
    first = facts.register()
    content = bytes(disk.get("journal", b""))
    journal = read(content, Rules(facts.trust, signer))
    register, votes, kept = journal.register or first, journal.votes, content[: journal.length]
    if votes is None:
        votes = VoteFile(next_life(), voters_root(register), 0, 0, None, None)
        kept += (b"" if journal.register else framed(first)) + framed(votes)
    disk["journal"] = bytearray(kept)
    was_away, means = bool(disk.get("was_away")), tuple(disk.get("means", []))
    return Kept(journal.first or first, journal.way, register, journal.entries, votes, was_away, means)


def put_record(disk: dict[str, Any], record: Message, core: Core) -> None:
    """Append a record, or begin anew where the log goes on from."""
    if isinstance(record, Shortcut | Compaction):
        shorter = record if isinstance(record, Compaction) else Compaction(record, ())
        votes = shorter.votes or core.vote_file()
        disk["journal"] = bytearray(compacted(shorter.beginning, shorter.entries, votes))
    else:
        disk["journal"] += framed(record)
