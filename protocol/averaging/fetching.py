"""Means by hash: getting those that a table names, each chunk from one holder at a time.

Rules:
- The owner of a chunk is asked first: it may be in its queue for us already, where it is found and not sent twice.
- What stands behind other chunks from the same holder is not late, and is asked for once.
- A holder that has sent nothing for a while is asked again for everything: what waited there may be lost with its
  connection. It answers with the bytes that are not on their way, or says that all wait in its queue: as long as that
  moves, so do we, but not for more payloads than there are chunks. If it lacks them, is silent once more, or has moved
  nothing for longer than payloads take it, another holder is asked. One that lacks them may get them: it is asked again
  after a second, and not before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from shoal.protocol.averaging.shelf import Shelf
from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.messages.averaging import Give, Made, Progress

REFUSED = 1.0  # seconds in which who had nothing of what it was asked for is asked for nothing


class Fetching:
    """The means of one round's result on their way to us."""

    def __init__(
        self, part: int, round: int, shelf: Shelf, pace: Estimate, longest_pause: Callable[[PeerId], float]
    ) -> None:
        """`longest_pause`: for how many seconds a holder in whose queue we wait may send nothing."""
        self._part = part
        self._round = round
        self._shelf = shelf
        self._pace = pace
        self._longest_pause = longest_pause
        self._turn = 0
        self._asked: dict[tuple[int, Digest], PeerId] = {}
        self._heard: dict[PeerId, float] = {}  # when a holder was asked first, got ahead, or said that we wait there
        self._ahead: dict[PeerId, float] = {}  # when it was first asked, or last got ahead
        self._probed: dict[PeerId, float] = {}  # when it was asked again, and has not got ahead since
        self._sent: dict[PeerId, int] = {}  # payloads, as it says
        self._believed: dict[PeerId, int] = {}  # how often, since something new came from it
        self._refused: dict[PeerId, float] = {}  # when a holder last said that it has nothing of what we want
        self._chunks = 0
        self._owners_asked: set[tuple[int, Digest]] = set()
        self.moved_at = 0.0  # when a holder last got ahead, or may soon

    def ask(self, now: float, means: Sequence[Made], chunks: Sequence[int], holders: Sequence[PeerId]) -> list[Effect]:
        """Ask for chunks that nobody is about to send: their owner, the next of `holders`, or the last one again."""
        self._chunks = len(means)
        due: list[int] = []
        again: dict[PeerId, list[int]] = {}
        first: dict[PeerId, list[int]] = {}
        for chunk in chunks:
            key, owner = (chunk, means[chunk].hash), means[chunk].owner
            holder = self._asked.get(key)
            if owner in holders and key not in self._owners_asked:
                self._owners_asked.add(key)
                first.setdefault(owner, []).append(chunk)
            elif holder is None or holder not in holders or self._is_late(now, self._probed.get(holder)):
                due.append(chunk)
            elif holder not in self._probed and self._is_late(now, self._heard[holder]):
                again.setdefault(holder, []).append(chunk)
        self._probed |= dict.fromkeys(again, now)
        effects: list[Effect] = [self._give(means, chunks, holder) for holder, chunks in again.items()]
        effects += [self._seek(now, means, chunks, owner) for owner, chunks in first.items()]
        willing = [peer for peer in holders if now - self._refused.get(peer, -math.inf) >= REFUSED]
        if due and willing:
            source = willing[self._turn % len(willing)]
            self._turn += 1
            effects.append(self._seek(now, means, due, source))
        return effects

    def is_in_vain(self, holders: Sequence[PeerId]) -> bool:
        """Whether all of them have said that they have nothing of it."""
        return bool(holders) and all(peer in self._refused for peer in holders)

    def arrived(self, now: float, holder: PeerId) -> None:
        """`holder` has sent some of what it was asked for."""
        self._believed.pop(holder, None)
        self._refused.pop(holder, None)
        self.moved_at = self._ahead[holder] = now
        self._hear(now, holder)

    def put_off(self, now: float, holder: PeerId, progress: Progress) -> None:
        """`holder` has been asked, and has not sent the bytes, or not yet."""
        if progress.is_waiting:
            if holder in self._asked.values():
                self._refused[holder] = now
            self._asked = {key: peer for key, peer in self._asked.items() if peer != holder}
        elif (
            holder in self._heard
            and progress.sent > self._sent.get(holder, -1)
            and self._believed.get(holder, 0) < self._chunks
        ):
            self._refused.pop(holder, None)
            self._sent[holder] = progress.sent
            self._believed[holder] = self._believed.get(holder, 0) + 1
            self.moved_at = self._ahead[holder] = now
            self._hear(now, holder)
        elif progress.is_queued and now - self._ahead.get(holder, now) < self._longest_pause(holder):
            self._refused.pop(holder, None)
            self.moved_at = now
            self._hear(now, holder)

    def _hear(self, now: float, holder: PeerId) -> None:
        self._heard[holder] = now
        self._probed.pop(holder, None)

    def _is_late(self, now: float, since: float | None) -> bool:
        return since is not None and now - since >= self._pace.deadline()

    def _seek(self, now: float, means: Sequence[Made], chunks: Sequence[int], holder: PeerId) -> Send:
        self._ahead.setdefault(holder, now)
        self._hear(now, holder)
        self._asked |= {(chunk, means[chunk].hash): holder for chunk in chunks}
        return self._give(means, chunks, holder)

    def _give(self, means: Sequence[Made], chunks: Sequence[int], holder: PeerId) -> Send:
        hashes = tuple((chunk, means[chunk].hash) for chunk in chunks)
        for chunk, hash in hashes:
            self._shelf.ask(chunk, hash, holder)
        return Send(holder, Give(self._part, self._round, (), (), hashes))
