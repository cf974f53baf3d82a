"""The file in which a peer keeps the log and its votes, as pure functions over bytes.

Records are only ever appended: a `Register` to begin with, or a `Shortcut` to a later one, then entries with their
proofs (`Decided`), and vote files, of which the last one counts. When the file has grown, `shortened` gives one
with the same meaning.

    size of content (4 bytes, little-endian)   BLAKE3 of content (16)   BLAKE3 of these twenty bytes (4)   content

A record that ends too early was being written when the power failed, so nothing that follows from it has left this
peer: it is cut off. Any other damage may have hit a vote that others have seen. Then the entries before it still count,
but the vote does not: the peer goes on in another life.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from blake3 import blake3

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, Message, decode, encode
from shoal.protocol.log.register import Rules, after
from shoal.protocol.log.shortcuts import START
from shoal.protocol.messages.log import Decided, Register, Shortcut, VoteFile, Way

SIZE, CHECK, HEAD = 4, 16, 24  # bytes
TAGS = (14, 18, 133, 134)  # of Decided, Shortcut, VoteFile and Register

Record = Message  # one of those


@dataclass(frozen=True, slots=True)
class Journal:
    """What a file says. Its first `length` bytes are good; append after those."""

    first: Register | None  # before the first entry; None: the file has not begun
    way: Way  # that leads there
    register: Register | None  # after the last entry
    entries: tuple[Decided, ...]
    places: Mapping[int, int]  # in the file, where each of them begins, by its number
    votes: VoteFile | None
    length: int
    is_damaged: bool


def framed(record: Record) -> bytes:
    """The bytes to append for a record."""
    content = encode(record)
    head = len(content).to_bytes(SIZE, "little") + _check(content, CHECK)
    return head + _check(head, HEAD - len(head)) + content


def read(content: bytes, rules: Rules) -> Journal:
    """What a file with this content says."""
    register, votes, length, is_damaged = None, None, 0, False
    first: Register | None = None
    way = START
    entries: list[Decided] = []
    places: dict[int, int] = {}
    for end, record in _records(content):
        if record is None or (register is None) is not isinstance(record, Register | Shortcut):
            is_damaged = True
            break
        match record:
            case Register():
                register = first = record
            case Shortcut():
                register, way = record.register, record.way
                first = register
            case VoteFile():
                votes = record
            case Decided(entry=entry):
                try:
                    register = after(register, entry, rules)
                except RemoteError:
                    is_damaged = True
                    break
                entries.append(record)
                places[entry.number] = length
        length = end
    if register is not None and votes is not None and votes.number > register.number + 1:
        is_damaged = True  # it has voted on what follows entries that are not here
    votes = None if is_damaged else votes
    return Journal(first, way, register, tuple(entries), places, votes, length, is_damaged)


def first_register(content: bytes) -> Register | None:
    """The register before the first entry; None: the file has not begun."""
    match next((record for _, record in _records(content)), None):
        case Register() as register:
            return register
        case Shortcut(register=register):
            return register
    return None


def begun_at(beginning: Register | Shortcut, votes: VoteFile) -> bytes:
    """A file without entries."""
    return framed(beginning) + framed(votes)


def shortened(
    content: bytes, places: Mapping[int, int], beginning: Shortcut, votes: VoteFile
) -> tuple[bytes, dict[int, int]]:
    """The same file, but that it begins with `beginning`, if it does not begin there or later; `votes` are its last.

    `places` says where each entry begins, by its number; the second result, where in the new file.
    """
    number = beginning.register.number
    if number not in places:
        return content, dict(places)
    start = places.get(number + 1, len(content))
    head = begun_at(beginning, votes)
    moved = {entry: len(head) + place - start for entry, place in places.items() if entry > number}
    return head + content[start:], moved


def begins_with(content: bytes) -> bytes:
    """What tells its first record from any other."""
    return content[:HEAD]


def is_readable(record: Record) -> bool:
    """Whether a record can be read again: it may be too long."""
    content = encode(record)
    return _decoded(_check(content, CHECK), content) is not None


def _records(content: bytes) -> Iterator[tuple[int, Record | None]]:
    """Each record with where it ends; None in place of one that is damaged. One that ends too early is left out."""
    start = 0
    while start + HEAD <= len(content):
        head, check = content[start : start + SIZE + CHECK], content[start + SIZE + CHECK : start + HEAD]
        if not any(content[start:]):  # a file system may have lengthened the file before it wrote
            return
        if _check(head, len(check)) != check:
            yield start, None
            return
        end = start + HEAD + int.from_bytes(head[:SIZE], "little")
        if end > len(content):
            return
        record = _decoded(head[SIZE:], content[start + HEAD : end])
        yield end, record
        start = end


def _decoded(check: bytes, content: bytes) -> Record | None:
    if _check(content, CHECK) != check:
        return None
    try:
        return decode(content, None, MAX_CONTROL_FRAME, TAGS)
    except RemoteError:
        return None


def _check(content: bytes, size: int) -> bytes:
    return blake3(content).digest(length=size)
