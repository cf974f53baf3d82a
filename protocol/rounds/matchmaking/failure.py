"""Why an attempt came to nothing: a kind, of which there are few and which is counted, and words for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shoal.protocol.base.effects import Event


class Kind(StrEnum):
    """What failed attempts are told apart by."""

    NO_QUORUM = "no-quorum"
    NO_CONTRIBUTOR = "no-contributor"
    NO_PROGRESS = "no-progress"


@dataclass(frozen=True, slots=True)
class Failure:
    """A kind and the words that go with it."""

    kind: Kind
    words: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, slots=True)
class AttemptFailed(Event):
    """This group cannot decide any more; `attempt` is the lowest that may work."""

    reason: Failure
    attempt: int


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """An attempt came to nothing; the next one begins."""

    attempt: int
    reason: Failure
