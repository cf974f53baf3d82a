"""What late payloads are made from (protocol/base/effects.py): our contribution to a round, and versions of the state.

Rules:
- A payload is bound to its source when it is queued, in the event loop, and made in a carrier's thread when its turn
  comes. It looks at nothing of a core, and holds neither the run nor this object, which sending may outlast.
- A contribution lies in memory that the worker writes to after the round. So nothing is made of it once the core has
  withdrawn it, or the run has forgotten it, whichever comes first: effects may have to wait for the disk.
- A version of the state may be gone when its turn comes; then the payload is empty, as who asked is to know that.
- A mean of an earlier round is read from our disk. If it is there no more, nothing is sent.
"""

from __future__ import annotations

import logging
from functools import partial
from threading import Event
from typing import Protocol

from shoal.node.base.logs import warn
from shoal.protocol.averaging.reducer import Contribute
from shoal.protocol.base.ids import Digest
from shoal.protocol.base.shortages import in_words
from shoal.protocol.base.wire import Message, Payload
from shoal.protocol.member.facts import PART
from shoal.protocol.messages.averaging import Contribution, Mean
from shoal.protocol.messages.replicas import Chunk
from shoal.protocol.messages.transfer import StateChunk
from shoal.protocol.net.bulk.backlog import LatePayload

log = logging.getLogger("shoal.run")

NOTHING = LatePayload(bytes, lambda: False)  # there is nothing to make it from, so it is dropped


class States(Protocol):
    """Our versions of the state."""

    def chunk(self, round: int, index: int) -> bytes:
        """A chunk's bytes; none if the version is held no more. Called in any thread."""


class Means(Protocol):
    """The means of earlier rounds on our disk."""

    def payload(self, round: int, hash: Digest) -> Payload | None:
        """The bytes of a mean; None if they are not there. Called in any thread; OSError if the disk fails."""


class PayloadSources:
    """Those of one run."""

    def __init__(self, states: States, means: Means | None = None) -> None:
        self._states = states
        self._means = means
        self._submitted: tuple[int, Contribute] | None = None  # our contribution to the round of this number
        self._withdrawn: dict[tuple[int, int], Event] = {}  # by part and round: set when what was queued is of no use

    def __repr__(self) -> str:
        round = self._submitted[0] if self._submitted is not None else None
        return f"PayloadSources(submitted={round}, queued={list(self._withdrawn)})"

    def submit(self, round: int, contribution: Contribute) -> None:
        """Our contribution to a round; that to an earlier one is forgotten."""
        self._submitted = round, contribution

    def forget(self) -> None:
        """Our contribution may change from now on: nothing more is made of it."""
        self._submitted = None
        for part, round in list(self._withdrawn):
            self.withdraw(part, round)

    def contribution(self, round: int) -> Contribute | None:
        """Our contribution to `round`, if we have submitted one."""
        return self._submitted[1] if self._submitted is not None and self._submitted[0] == round else None

    def late(self, message: Message) -> LatePayload:
        """How to make the payload of a message that a core sends late."""
        if isinstance(message, StateChunk):
            return LatePayload(partial(self._states.chunk, message.round, message.index))
        if isinstance(message, Mean):
            mean = _WrittenMean(self._means, message) if self._means is not None else None
            return LatePayload(mean.take, mean.is_there) if mean is not None else NOTHING
        assert isinstance(message, Contribution | Chunk)
        contribution = self.contribution(message.round)
        if contribution is None:
            return NOTHING
        part = message.part if isinstance(message, Contribution) else PART
        withdrawn = self._withdrawn.setdefault((part, message.round), Event())
        return LatePayload(partial(contribution, message.chunk), lambda: not withdrawn.is_set())

    def withdraw(self, part: int, round: int) -> None:
        """Nothing more is to be made of what was queued of our contribution to `round` of `part`."""
        if (withdrawn := self._withdrawn.pop((part, round), None)) is not None:
            withdrawn.set()


class _WrittenMean:
    """A mean that is read when it is asked whether it is there; that is just before it is sent."""

    def __init__(self, means: Means, mean: Mean) -> None:
        self._means, self._mean = means, mean
        self._payload: Payload | None = None

    def is_there(self) -> bool:
        mean = self._mean
        try:
            self._payload = self._means.payload(mean.round, mean.made.hash)
        except OSError as error:
            warn(log, "record-not-read", f"a mean of round {mean.round} cannot be read: {in_words(error)}")
        return self._payload is not None

    def take(self) -> Payload:
        payload, self._payload = self._payload, None
        assert payload is not None
        return payload
