"""NAT-PMP (RFC 6886) on the wire. Pure; decoding is total: what is no answer to the question gives None.

Rules:
- A router counts the seconds of its life in each answer. Where that count is behind what it should be by now, the
  router has begun anew, and has forgotten all mappings (3.6).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

PORT = 5351
WHERE, MAP_TCP = 0, 2  # what is asked
ANSWER = 128  # is added to it in answers
LONGEST = 64  # bytes: the longest answer has 16
WORDS = {
    1: "speaks another version of NAT-PMP",
    2: "has it switched off, or does not let us",
    3: "has no address outside itself",
    4: "has no room for another mapping",
    5: "does not know how to map ports",
}
NO_ADDRESS = 3
SLACK = 2.0  # seconds that the router's clock may be behind, beside an eighth of what has passed


@dataclass(frozen=True, slots=True)
class Answer:
    """What all answers have; `code` 0 is consent."""

    code: int
    epoch: int  # seconds of the router's life


@dataclass(frozen=True, slots=True)
class Where(Answer):
    """Its address outside."""

    host: str


@dataclass(frozen=True, slots=True)
class Mapped(Answer):
    """A mapping that is made, or not."""

    port: int
    external: int
    lifetime: int


def ask_where() -> bytes:
    """The question for the router's address outside."""
    return struct.pack("!BB", 0, WHERE)


def ask_to_map(port: int, external: int, lifetime: int) -> bytes:
    """The question for a mapping of a TCP port; without a lifetime, for its end."""
    return struct.pack("!BBHHHI", 0, MAP_TCP, 0, port, external, lifetime)


def where(said: bytes) -> Where | None:
    """An answer to `ask_where`; a refusal may end after the epoch."""
    head = _head(said, WHERE)
    if head is None or (head.code == 0 and len(said) < 12):
        return None
    return Where(head.code, head.epoch, str(IPv4Address(said[8:12])) if len(said) >= 12 else "0.0.0.0")


def mapped(said: bytes, port: int) -> Mapped | None:
    """An answer to `ask_to_map` about this port."""
    head = _head(said, MAP_TCP)
    if head is None or (head.code == 0 and len(said) < 16):
        return None
    if len(said) < 16:
        return Mapped(head.code, head.epoch, port, 0, 0)
    internal, external, lifetime = struct.unpack_from("!HHI", said, 8)
    return Mapped(head.code, head.epoch, internal, external, lifetime) if internal == port else None


def _head(said: bytes, asked: int) -> Answer | None:
    if not 8 <= len(said) <= LONGEST:
        return None
    version, kind, code, epoch = struct.unpack_from("!BBHI", said)
    return Answer(code, epoch) if (version, kind) == (0, ANSWER + asked) else None


def has_begun_anew(before: int, seconds: float, epoch: int) -> bool:
    """Whether a router with this epoch is not the one that had `before` so many seconds ago, as far as one can tell."""
    return epoch + SLACK < before + seconds * 7 / 8
