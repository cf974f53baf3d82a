"""Our answers to those who ask for the data that we have.

Rules:
- Each peer has its share, and all together have theirs: who asks for more is told to come back later, so that a run's
  rounds and other joiners have a line that is not full.
- A piece is read in a thread, few at a time, and only when its turn has come; it is hashed before it leaves, so that a
  damaged disk makes nobody call us a liar.
"""

from __future__ import annotations

import asyncio
import logging

from shoal.node.dataset.pieces import Blob
from shoal.node.dataset.store import Dataset
from shoal.node.logs import warn
from shoal.node.pools import DISK
from shoal.protocol.allowance import Allowance, Allowances
from shoal.protocol.ids import Digest, PeerId
from shoal.protocol.messages.data import GetPiece, Later, PieceIs
from shoal.protocol.messages.node import Refused
from shoal.protocol.wire import Message

EACH = (64.0, 64.0)  # blobs for one peer, in a burst and per second: 16 MiB
ALL = (128.0, 128.0)  # for all peers
PEERS = 1024  # whose shares are known
AGAIN = 2.0  # seconds until whoever asks is to ask again, where a piece cannot be read now
WAIT = 1.0  # seconds that a question may wait for its turn
READING = 4  # blobs at a time

log = logging.getLogger("shoal.data")


class Serving:
    """The datasets that others may have of us, by their roots."""

    def __init__(self) -> None:
        self._datasets: dict[Digest, Dataset] = {}
        self._each: Allowances[PeerId] = Allowances(*EACH, PEERS)
        self._all = Allowance(*ALL)
        self._reading = asyncio.Semaphore(READING)

    def offer(self, dataset: Dataset) -> None:
        """From now on others may have it."""
        self._datasets[dataset.root] = dataset

    def withdraw(self, digest: Digest) -> None:
        """From now on nobody may."""
        self._datasets = {root: each for root, each in self._datasets.items() if each.digest != digest}

    async def answer(self, peer: PeerId, message: GetPiece) -> Message:
        """The bytes, or why there are none."""
        dataset, blob = self._datasets.get(message.dataset), Blob(message.level, message.number)
        if dataset is None or not dataset.index.shape.length(blob):
            return Refused("these data are not here, or not given away")
        wait = self._turn(peer, asyncio.get_running_loop().time())
        if wait > WAIT:
            return Later(round(wait * 1000))
        await asyncio.sleep(wait)
        async with self._reading:
            try:
                content = await DISK.run(dataset.read, blob)
            except OSError as error:
                log.debug("a piece cannot be read now: %s", error)
                return Later(round(AGAIN * 1000))
        if content is None:
            self._datasets.pop(dataset.root, None)
            warn(log, "data-damaged", f"{dataset.path} is damaged, so it is not given away; a restart mends it")
            return Refused("these data are damaged here")
        return PieceIs(content)

    def _turn(self, peer: PeerId, now: float) -> float:
        """Seconds until it is this peer's turn; more than WAIT, and it has lost none of its share by asking."""
        allowances = (self._each.of(peer), self._all)
        wait = max(each.owe(now, 1.0) for each in allowances)
        if wait > WAIT:
            for each in allowances:
                each.give_back()
        return wait
