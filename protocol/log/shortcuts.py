"""How somebody far behind gets to the end of the log without the entries before: a register, and what certifies it.

A peer keeps of the log's past one header for each electorate, and of the last entries now and then the register after
one. Whoever lacks entries that are no longer kept is shown such a register with the headers that lead from the founder
to it, checks them, and reads on from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.log.headers import fewest, follow_all
from shoal.protocol.log.register import Rules, electorate_of, register_root
from shoal.protocol.messages.log import Decided, Header, Register, Shortcut

EVERY, MARKS = 16, 16  # entries from one register that is kept to the next, and how many are


class Shortcuts:
    """What one peer can show."""

    def __init__(self, founding: Register, headers: Sequence[Header] = ()) -> None:
        """`headers` lead from the founder to where this peer begins to read."""
        self._first = electorate_of(founding)
        self._branch = founding.branch
        self._headers = list(headers)
        self._marks: deque[tuple[Register, Header]] = deque(maxlen=MARKS)

    def read(self, before: Register, decided: Decided, register: Register) -> None:
        """An entry was decided."""
        header = Header(decided.certificate, electorate_of(before))
        if not self._headers or self._headers[-1].electorate.since != header.electorate.since:
            self._headers.append(header)
        if register.number % EVERY == 0:
            self._marks.append((register, header))

    def to(self, log: Sequence[Decided]) -> Shortcut | None:
        """A way to a register from which `log`, the entries that are kept, goes on; best before the last results."""
        first = log[0].entry.number if log else 0
        usable = [mark for mark in self._marks if mark[0].number + 1 >= first]
        if not usable:
            return None
        newest = usable[-1][0]
        before = [mark for mark in usable if all(part.result > mark[0].number for part in newest.parts)]
        register, header = (before or usable[:1])[-1]
        earlier = [each for each in self._headers if _number(each) < _number(header)]
        return Shortcut(self._branch, tuple(fewest(self._first, [*earlier, header])), register)

    def take(self, shortcut: Shortcut) -> None:
        """Go on from what somebody else has shown, and was checked."""
        self._headers = list(shortcut.headers)
        self._marks.clear()
        self._marks.append((shortcut.register, shortcut.headers[-1]))


def check_shortcut(shortcut: Shortcut, founding: Register, rules: Rules, shown_by: PeerId) -> None:
    """RemoteError unless the headers lead from the founder to the register."""
    if shortcut.register.branch != founding.branch:
        raise RemoteError("shows the register of another branch", shown_by)
    number, root = follow_all(founding.branch, electorate_of(founding), shortcut.headers, rules, shown_by)
    if (number, root) != (shortcut.register.number, register_root(shortcut.register)):
        raise RemoteError("shows a register that nobody has certified", shown_by)


def _number(header: Header) -> int:
    return header.certificate.subject.number
