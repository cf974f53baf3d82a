"""What an anchor says of a log: whether that goes far enough, and whether it has another entry there."""

from __future__ import annotations

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.messages.anchor import ANCHOR_SIZE, Anchor
from shoal.protocol.messages.log import Register, Way

EVERY = 8  # entries for which the anchor of a log stays the same


def anchor_of(register: Register) -> Anchor | None:
    """One of the last entries, as those who are a little behind know it as well; None before the first."""
    number = max(1, register.number - register.number % EVERY)
    entry = _entry_at(register, number)
    return Anchor(number, entry[:ANCHOR_SIZE]) if entry is not None else None


def check_entry(anchor: Anchor | None, number: int, entry: Digest, shown_by: PeerId) -> None:
    """RemoteError if the entry of this number and digest stands where the anchor names another one."""
    if anchor is not None and number == anchor.number and entry[:ANCHOR_SIZE] != anchor.digest:
        raise RemoteError(f"shows another entry {number} than the run's link names", shown_by)


def check_skip(anchor: Anchor | None, way: Way, register: Register, shown_by: PeerId) -> None:
    """RemoteError if this way, or the register to which it leads, shows another entry than the anchor names.

    It tells only of some entries: those of its headers, and the last ones before its registers.
    """
    for header in (*(each for crossing in way.crossings for each in crossing.headers), *way.headers):
        subject = header.certificate.subject
        check_entry(anchor, subject.number, subject.entry, shown_by)
    for each in (*(crossing.register for crossing in way.crossings), register):
        if anchor is not None and (entry := _entry_at(each, anchor.number)) is not None:
            check_entry(anchor, anchor.number, entry, shown_by)


def _entry_at(register: Register, number: int) -> Digest | None:
    """The digest of an entry, if the register still tells it."""
    back = register.number - number
    return register.tips[-1 - back] if 0 <= back < len(register.tips) else None
