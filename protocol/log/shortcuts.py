"""How somebody far behind gets to the end of the log without the entries before: a register, and what certifies it.

A peer keeps of the log's past one header for each change of voters, and of the last entries now and then the register
after one. Whoever lacks entries that are no longer kept is shown such a register with the headers that lead from the
founder to it, checks them, and reads on from there. Where a branch begins it is shown the register before, and checks
by that who might found it; but only of the newest branch, and of those whose founders all had no vote before in the
same life: else a header of one of its voters leads there (headers.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.log.certificate import is_founding
from shoal.protocol.log.headers import fewest, follow_all
from shoal.protocol.log.register import (
    Rules,
    after,
    bare,
    body_of,
    electorate_of,
    register_root,
    rest_of,
    root_of,
    state_of,
    tokens_of,
)
from shoal.protocol.messages.log import Crossing, Decided, Found, Header, Register, Shortcut, Way

EVERY, MARKS = 16, 16  # entries from one register that is kept to the next, and how many are
SPARING = 64  # changes of the voters from one tidying up of their headers to the next, which takes a while
START = Way((), ())  # to the register before the first entry


@dataclass(frozen=True, slots=True)
class Branch:
    """What is known of one branch of the log."""

    first: Register  # with which it begins
    crossings: tuple[Crossing, ...]  # that lead there
    headers: list[Header]  # of the changes of its voters so far, but for those that nobody need be shown


@dataclass(frozen=True, slots=True)
class _Mark:
    """A register that is kept, and what certifies it."""

    branch: Branch
    register: Register
    header: Header | None  # of its last entry; None: its branch begins with it


class Shortcuts:
    """What one peer can show."""

    def __init__(self, first: Register, way: Way, register: Register) -> None:
        """`way` leads from the founder to `register`, from which this peer reads on; its branch begins with `first`."""
        self._marks: deque[_Mark] = deque(maxlen=MARKS)
        self._begin(first, way, register)

    def _begin(self, first: Register, way: Way, register: Register) -> None:
        self._branch = Branch(first, way.crossings, list(way.headers))
        self._newest = way.headers[-1:]  # of the last entry that was read, if it is of this branch
        self._marks.append(_Mark(self._branch, register, way.headers[-1] if way.headers else None))

    def read(self, before: Register, decided: Decided, register: Register) -> None:
        """An entry was decided."""
        if is_founding(before, register):
            headers = _leading(self._branch.first, [*self._branch.headers, *self._newest])
            crossings = shortened((*self._branch.crossings, Crossing(headers, before, decided.entry)))
            self._begin(register, Way(crossings, ()), register)
            return
        after = electorate_of(register) if register.voters_since == register.number else None
        header = Header(decided.certificate, electorate_of(before), after)
        self._newest = (header,)
        if after is not None:
            self._branch.headers.append(header)
            if len(self._branch.headers) % SPARING == 0:
                self._spare()
        if register.number % EVERY == 0:
            self._marks.append(_Mark(self._branch, register, header))

    def _spare(self) -> None:
        """Drop the headers that nobody need be shown; those since the oldest mark may be needed to get to another."""
        branch, oldest = self._branch, self._marks[0]
        if oldest.branch is branch:
            earlier = [each for each in branch.headers if _number(each) <= oldest.register.number]
            branch.headers[: len(earlier)] = _leading(branch.first, earlier)

    def to(self, log: Sequence[Decided], now: Register, can_decide: bool = True) -> Shortcut | None:
        """A way to a register from which `log`, the entries that are kept, goes on to `now`; best before the last
        results, so that who takes it can still have their bytes."""
        first = log[0].entry.number if log else now.number + 1
        usable = [mark for mark in self._marks if mark.register.number + 1 >= first]
        if not usable:
            return None
        results = [part.result for part in now.parts if part.result]
        before = [mark for mark in usable if all(result > mark.register.number for result in results)]
        return _shown((before or usable[:1])[-1], now, can_decide)

    def behind(self, round: int, part: int, now: Register) -> Shortcut | None:
        """The last way to a register that knows no later round of `part` than this one; None: none is kept."""
        known = [mark for mark in self._marks if state_of(mark.register, part).round <= round]
        return _shown(known[-1], now, can_decide=True) if known else None

    @property
    def left_behind(self) -> tuple[Register, list[PeerId]] | None:
        """The register before the present branch began, and the members that did not go on; None: it is the first."""
        if not self._branch.crossings:
            return None
        before, went_on = self._branch.crossings[-1].register, {each.peer for each in self._branch.first.members}
        return before, [each.peer for each in before.members if each.peer not in went_on]

    def take(self, first: Register, shortcut: Shortcut) -> None:
        """Go on from what somebody else has shown, and was checked, on the branch that begins with `first`."""
        self._marks.clear()
        self._begin(first, shortcut.way, shortcut.register)


def _shown(mark: _Mark, now: Register, can_decide: bool) -> Shortcut:
    last = [mark.header] if mark.header is not None else []
    earlier = [each for each in mark.branch.headers if last and _number(each) < _number(last[0])]
    way = Way(mark.branch.crossings, _leading(mark.branch.first, [*earlier, *last]))
    return Shortcut(now.branch, tokens_of(now), can_decide, way, mark.register)


def _leading(first: Register, headers: Sequence[Header]) -> tuple[Header, ...]:
    return tuple(fewest(electorate_of(first), headers))


def shortened(crossings: Sequence[Crossing]) -> tuple[Crossing, ...]:
    """As few of these as lead to the last one: those are left out over which a voter of before leads by a header.

    Else a run that goes on as a branch each night would soon have more to show than can be sent.
    """
    *before, last = crossings
    for place, crossing in enumerate(before):
        for count, header in enumerate(crossing.headers, 1):
            if led := fewest(header.after or header.electorate, last.headers):
                return (*before[:place], replace(last, headers=(*crossing.headers[:count], *led)))
    return (*(_bare(each, following) for each, following in pairwise(crossings)), last)


def _bare(crossing: Crossing, following: Crossing) -> Crossing:
    """Without what nobody needs who only checks it: its own headers certify it, and those that follow what is founded.

    Where either are missing, as nothing was decided on a branch, the whole register is compared (`_check_way`).
    """
    if crossing.rest is not None or not crossing.headers or not following.headers:
        return crossing
    body = body_of(crossing.entry.body)
    if isinstance(body, Found) and any(each.bound for each in body.stays):  # to what may rest on the entries before
        return crossing
    return replace(crossing, register=bare(crossing.register), rest=rest_of(crossing.register))


def beginning(founding: Register, way: Way, rules: Rules) -> Register:
    """The register with which the branch begins to which `way`, that was checked, leads from the founder."""
    return after(way.crossings[-1].register, way.crossings[-1].entry, rules) if way.crossings else founding


def check_shortcut(shortcut: Shortcut, founding: Register, rules: Rules, shown_by: PeerId) -> None:
    """RemoteError unless the way leads from the founder to the register."""
    here, crossings = founding, shortcut.way.crossings
    for place, crossing in enumerate(crossings, 1):
        # Else `here` lacks a part, too, and would be taken for a register where no header names the root of the next.
        if crossing.rest is not None and not any(each.headers for each in crossings[place : place + 1]):
            raise RemoteError("shows a part of a register only, before a branch that no header leads on from", shown_by)
        root = root_of(crossing.register, crossing.rest) if crossing.rest is not None else None
        _check_way(here, crossing.headers, crossing.register, rules, shown_by, leads_over=True, root=root)
        here = after(crossing.register, crossing.entry, rules, shown_by)
        if not is_founding(crossing.register, here):
            raise RemoteError("shows the beginning of a branch that is none", shown_by)
    _check_way(here, shortcut.way.headers, shortcut.register, rules, shown_by)


def _check_way(
    here: Register,
    headers: Sequence[Header],
    register: Register,
    rules: Rules,
    shown_by: PeerId,
    leads_over: bool = False,
    root: Digest | None = None,
) -> None:
    """RemoteError unless the headers lead from one register to the other, which is whole if no `root` is given.

    `leads_over`: it may be of a later branch.
    """
    may_cross = leads_over and rules.trust.may_branch and bool(headers)
    if register.branch != here.branch and not may_cross:
        raise RemoteError("shows the register of another branch", shown_by)
    if register == here and not headers:
        return
    branch = None if may_cross else here.branch
    certified = follow_all(branch, electorate_of(here), headers, rules, shown_by)
    if certified != (register.number, root or register_root(register)):
        raise RemoteError("shows a register that nobody has certified", shown_by)


def _number(header: Header) -> int:
    return header.certificate.subject.number
