"""Where the branches of a log part, by what their registers remember: pure functions.

The entry that founds a branch counts as its first one, as whoever has it is on that branch.
"""

from __future__ import annotations

from shoal.protocol.base.ids import Digest
from shoal.protocol.messages.log import Register


def branch_at(register: Register, number: int) -> Digest:
    """The branch on which the log was once it had the entry of this number; the register remembers the last 16."""
    return next((stem.branch for stem in register.earlier if number < stem.end), register.branch)


def is_on(register: Register, begins: bytes) -> bool:
    """Whether the log is on the branch whose digest begins so, or has been on it."""
    return any(branch.startswith(begins) for branch in (register.branch, *(stem.branch for stem in register.earlier)))


def fork_of(ours: Register, theirs: Register) -> int:
    """The number of the first entry that is not alike in two logs of which neither goes on from the other.

    0 if it is not known: the registers have forgotten the last branch that both were on.
    """
    left = {stem.branch: stem.end for stem in theirs.earlier}
    if ours.branch in left:
        return left[ours.branch]
    for stem in reversed(ours.earlier):
        if stem.branch == theirs.branch:
            return stem.end
        if stem.branch in left:
            return min(stem.end, left[stem.branch])
    return 0
