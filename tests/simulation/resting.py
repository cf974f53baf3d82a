"""What a simulated peer writes (through the codec) when it stops as the last voter, and reads when it is back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.protocol.base.wire import Message
from shoal.protocol.messages.transfer import StateChunk
from shoal.protocol.rounds.rest import Rest
from tests.simulation.process import through_codec

WORDS, STATE = "rest-", "state-"


@dataclass(frozen=True)
class Rested:
    """A rest, and the state that lies beside it."""

    rest: Rest
    state: list[bytes]


def save_rest(disk: dict[str, Message], rest: Rest | None, states: Mapping[int, Sequence[bytes]]) -> None:
    """Replace the rest on `disk`; None removes it."""
    for name in [name for name in disk if name.startswith((WORDS, STATE))]:
        del disk[name]
    if rest is None:
        return
    for index, message in enumerate(rest.messages(0)):
        disk[f"{WORDS}{index:06}"] = through_codec(message)[1]
    for index, payload in enumerate(states[rest.round]):
        disk[f"{STATE}{index:06}"] = StateChunk(0, rest.round, index, payload)


def load_rest(disk: Mapping[str, Message]) -> Rested | None:
    """The rest that an earlier life has left, if any."""
    words = [disk[name] for name in sorted(disk) if name.startswith(WORDS)]
    chunks = [disk[name] for name in sorted(disk) if name.startswith(STATE)]
    if not words:
        return None
    return Rested(Rest.of(words), [bytes(chunk.payload) for chunk in chunks if isinstance(chunk, StateChunk)])
