"""Bytes by hash: getting those that a result names, each chunk from one holder at a time; and giving them.

Rules for getting:
- What stands behind other chunks from the same holder is not late, and is asked for once.
- A holder that has sent nothing for a while is asked again for everything: what waited there may be lost with its
  connection. It answers with the bytes that are not on their way, or says that all wait in its queue: as long as that
  moves, so do we, but not for more payloads than there are chunks. If it lacks them, or is silent once more, another
  holder is asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.messages.rounds import Busy, ChunkRef, Fetch
from shoal.protocol.rounds.matchmaking.context import Means


class Fetching:
    """The bytes of one round's results on their way to us."""

    def __init__(self, means: Means, round: int) -> None:
        self._means = means
        self._round = round
        self._turn = 0
        self._asked: dict[tuple[int, Digest], PeerId] = {}
        self._heard: dict[PeerId, float] = {}  # when a holder was first asked, or last got ahead
        self._probed: dict[PeerId, float] = {}  # when it was asked again, and has not got ahead since
        self._sent: dict[PeerId, int] = {}  # payloads, as it says
        self._believed: dict[PeerId, int] = {}  # how often, since something new came from it
        self._chunks = 0

    def ask(
        self, now: float, refs: Sequence[ChunkRef], chunks: Sequence[int], holders: Sequence[PeerId]
    ) -> list[Effect]:
        """Ask for those of the chunks that nobody is about to send: the next of `holders`, or the last one again."""
        self._chunks = len(refs)
        due, again = [], []
        for chunk in chunks:
            holder = self._asked.get((chunk, refs[chunk].hash))
            if holder is None or holder not in holders or self._is_late(now, self._probed.get(holder)):
                due.append(chunk)
            elif holder not in self._probed and self._is_late(now, self._heard[holder]):
                again.append((chunk, holder))
        self._probed |= {holder: now for _, holder in again}
        effects: list[Effect] = [self._fetch(chunk, refs, holder) for chunk, holder in again]
        if not due or not holders:
            return effects
        source = holders[self._turn % len(holders)]
        self._turn += 1
        self._get_ahead(now, source)
        self._asked |= {(chunk, refs[chunk].hash): source for chunk in due}
        return effects + [self._fetch(chunk, refs, source) for chunk in due]

    def arrived(self, now: float, holder: PeerId) -> None:
        """`holder` has sent some of what it was asked for."""
        self._believed.pop(holder, None)
        self._get_ahead(now, holder)

    def put_off(self, now: float, holder: PeerId, busy: Busy) -> None:
        """`holder` has been asked, and has not sent the bytes, or not yet."""
        if busy.is_waiting:
            self._asked = {key: peer for key, peer in self._asked.items() if peer != holder}
        elif (
            holder in self._heard
            and busy.sent > self._sent.get(holder, -1)
            and self._believed.get(holder, 0) < self._chunks
        ):
            self._sent[holder] = busy.sent
            self._believed[holder] = self._believed.get(holder, 0) + 1
            self._get_ahead(now, holder)

    def _get_ahead(self, now: float, holder: PeerId) -> None:
        self._heard[holder] = now
        self._probed.pop(holder, None)

    def _is_late(self, now: float, since: float | None) -> bool:
        return since is not None and now - since >= self._means.pace.deadline()

    def _fetch(self, chunk: int, refs: Sequence[ChunkRef], holder: PeerId) -> Send:
        return self._means.shelf.fetch(self._round, self._means.part, chunk, refs[chunk].hash, holder)


def answer_fetch(means: Means, now: float, sender: PeerId, message: Fetch) -> list[Effect]:
    """The bytes, if they are here and not on their way already; else how far we are."""
    found = means.shelf.answer(sender, message)
    fresh = means.outbox.fresh(now, found)
    return fresh or [Send(sender, means.outbox.busy(message.round, message.part, 0, is_waiting=not found))]
