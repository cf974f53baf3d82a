"""What leaves this node for an all-reduce: how many bytes, which of them again, and when a fault is due."""

from __future__ import annotations

from shoal.node.faults import FaultTrigger
from shoal.node.run.records import CommitLog
from shoal.protocol.attempt import Attempt
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.rounds import Contribution, Fetched, Final
from shoal.protocol.wire import Message


class Outgoing:
    """Counts payloads as they are written to the network."""

    def __init__(self, me: PeerId, commits: CommitLog, fault: FaultTrigger | None) -> None:
        self.resent = 0  # bytes of chunks that had been contributed before in the same attempt
        self._me = me
        self._commits = commits
        self._fault = fault
        self._attempt = (0, 0)
        self._chunks: set[int] = set()

    def sent(self, message: Message, attempt: Attempt | None, exchanged: int = 0) -> None:
        """A bulk message has been written to its stream, while we were in `attempt`.

        `exchanged` is how many chunks two replicas give each other: then there is no attempt.
        """
        match message:
            case Contribution():
                self._commits.sent(message.round, len(message.payload))
                self._contributed(message, attempt, exchanged)
            case Final():
                self._commits.sent(message.round, len(message.payload))
            case Fetched() if attempt is not None and message.round == attempt.plan.round:
                self._commits.sent(message.round, len(message.payload))  # else somebody is catching up

    def _contributed(self, message: Contribution, attempt: Attempt | None, exchanged: int) -> None:
        if self._attempt != (message.round, message.attempt):
            self._attempt, self.resent = (message.round, message.attempt), 0
            self._chunks.clear()
        if message.chunk in self._chunks:
            self.resent += len(message.payload)
        self._chunks.add(message.chunk)
        if self._fault is not None and exchanged:
            self._fault.sent(message.round, len(self._chunks), exchanged, "any")
        elif self._fault is not None and attempt is not None and attempt.number == message.attempt:
            total = sum(owner != self._me for owner in attempt.plan.owners)
            role = self._fault.fault.role
            if role in self._roles(attempt):
                self._fault.sent(message.round, len(self._chunks), total, role)

    def _roles(self, attempt: Attempt) -> list[str]:
        """What we are in a group: a leader may be an owner too."""
        work = "owner" if attempt.owns_any() else "contributor"
        return ["any", work, "leader"] if attempt.plan.leader == self._me else ["any", work]
