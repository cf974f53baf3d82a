"""What an anchor says of a log: whether that goes far enough, and whether it has another entry there.

An anchor is of one branch of the log, and says nothing of another, to which the run may have gone on since the link
was made. A log that ends before the branch of the anchor began may be that of a run which has left that branch, or an
old copy: so the branch is waited for, and no more once a member that shows only such a log was here for a while.

Who shows a branch has passed by the anchor, but has founded it with members whom the log names, as is checked: with
`crash` those do not lie, with `byzantine` nobody founds branches; and an old copy that goes on alone is left again, as
any branch, once somebody shows one with more tokens.
"""

from __future__ import annotations

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.log.branches import branch_at, is_on
from shoal.protocol.log.register import body_of, branch_founded_by, entry_digest
from shoal.protocol.messages.anchor import ANCHOR_SIZE, Anchor
from shoal.protocol.messages.log import Entry, Found, Register, Way

EVERY = 8  # entries for which the anchor of a log stays the same


def anchor_of(register: Register) -> Anchor | None:
    """One of the last entries, as those who are a little behind know it as well; None before the first."""
    number = max(1, register.number - register.number % EVERY)
    entry = _entry_at(register, number)
    return _anchor(number, entry, branch_at(register, number)) if entry is not None else None


def is_below(anchor: Anchor, register: Register) -> bool:
    """Whether the log has to go further, if it is to have the anchor's entry."""
    has_left = register.branch[:ANCHOR_SIZE] != anchor.branch and is_on(register, anchor.branch)
    return register.number < anchor.number and not has_left


def is_elsewhere(anchor: Anchor, register: Register) -> bool:
    """Whether the log goes on, or has gone on, on another branch than that of the anchor's entry, without it."""
    if register.number >= anchor.number:
        return branch_at(register, anchor.number)[:ANCHOR_SIZE] != anchor.branch
    return not is_below(anchor, register)


def check_entry(anchor: Anchor | None, entry: Entry, shown_by: PeerId) -> None:
    """RemoteError if this entry stands where the anchor names another one of its branch."""
    if anchor is not None and entry.number == anchor.number:
        is_founding = isinstance(body_of(entry.body, shown_by), Found)
        branch = branch_founded_by(entry) if is_founding else entry.branch
        _check(anchor, entry.number, entry_digest(entry), branch, shown_by)


def check_skip(anchor: Anchor | None, way: Way, register: Register, shown_by: PeerId) -> None:
    """RemoteError if this way, or the register to which it leads, shows another entry than the anchor names.

    It tells only of some entries: those of its headers, and the last ones before its registers.
    """
    if anchor is None:
        return
    for header in (*(each for crossing in way.crossings for each in crossing.headers), *way.headers):
        subject = header.certificate.subject
        _check(anchor, subject.number, subject.entry, subject.branch, shown_by)
    for each in (*(crossing.register for crossing in way.crossings), register):
        if (entry := _entry_at(each, anchor.number)) is not None:
            _check(anchor, anchor.number, entry, branch_at(each, anchor.number), shown_by)


def _anchor(number: int, entry: Digest, branch: Digest) -> Anchor:
    return Anchor(number, entry[:ANCHOR_SIZE], branch[:ANCHOR_SIZE])


def _check(anchor: Anchor, number: int, entry: Digest, branch: Digest, shown_by: PeerId) -> None:
    shown = _anchor(number, entry, branch)
    if (shown.number, shown.branch) == (anchor.number, anchor.branch) and shown != anchor:
        raise RemoteError(f"shows another entry {number} than the run's link names", shown_by)


def _entry_at(register: Register, number: int) -> Digest | None:
    """The digest of an entry, if the register still tells it."""
    back = register.number - number
    return register.tips[-1 - back] if 0 <= back < len(register.tips) else None
