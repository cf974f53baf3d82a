"""What happens to the disk of a simulated peer (swarm.py) while no process of it runs. `rng` says where it hits."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from shoal.protocol.base.ids import PeerId
from shoal.protocol.log.journal import framed, read
from shoal.protocol.log.register import Rules
from shoal.protocol.log.shortcuts import START
from shoal.protocol.log.trust import Crash
from tests.simulation.signing import FakeSigner

Disk = dict[str, Any]
Damage = Callable[[Disk, random.Random], None]


def lose_power(disk: Disk, rng: random.Random) -> None:
    """What was written but not forced is gone, and the record that was being written is there in part."""
    disk["means"] = [each for each in disk.get("means", []) if each.round <= disk.get("forced", 0)]
    journal = disk.get("journal", bytearray())
    disk["journal"] = journal + journal[: rng.randint(0, min(60, len(journal)))]  # every record begins with a head


def flip_a_bit(disk: Disk, rng: random.Random) -> None:
    """A bit of the journal is another one."""
    if journal := disk.get("journal"):
        place = rng.randrange(8 * len(journal))
        journal[place // 8] ^= 1 << place % 8


def lose_the_journal(disk: Disk, rng: random.Random) -> None:
    """Log and votes are gone; the peer's key and its state are not."""
    disk.pop("journal", None)


def lose_the_state(disk: Disk, rng: random.Random) -> None:
    """Snapshot and means are gone, as of a checkpoint that does not have the hash that it should have."""
    disk.pop("snapshot", None)
    disk["means"] = []


def lose_the_votes(disk: Disk) -> None:
    """The log is there, and nothing of what this peer has promised to other voters."""
    journal = read(bytes(disk["journal"]), Rules(Crash(), FakeSigner(PeerId("disk"))))
    assert journal.first is not None
    assert journal.way == START
    disk["journal"] = bytearray(b"".join(framed(each) for each in (journal.first, *journal.entries)))


def lose_the_means(disk: Disk, since: int) -> None:
    """Those of the rounds from `since` on are gone, and no snapshot is as new."""
    disk["means"] = [each for each in disk.get("means", []) if each.round < since]
    if "snapshot" in disk and disk["snapshot"][0].round >= since:
        disk.pop("snapshot")


DAMAGES: tuple[Damage, ...] = (flip_a_bit, lose_the_journal, lose_the_state)


def copy_of(disk: Disk) -> Disk:
    """A copy of a home, to be started later: allowed only of who has no vote, neither then nor now."""
    return deepcopy(disk)
