"""The wire codec: every message is a frozen dataclass in one table, and its type hints are its schema.

On the wire a message is a msgpack array: its tag, then its fields in order; a nested value is the array of
its fields. Decoding is total and bounded: any bytes give a message or a RemoteError, and nothing is built
beyond the limits below. Integers are 0 .. 2^63-1, floats are finite, digests are 32 bytes, and a code is a member of
its IntEnum: cores need not check again what a field's type says.

Tags say where a message belongs (see messages/__init__.py), and receivers name the tags that they accept, so that
messages between the processes of one machine are never accepted from a peer.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import types
import typing
from collections.abc import Callable, Container
from enum import IntEnum
from operator import attrgetter
from typing import Any, ClassVar, TypeVar, dataclass_transform

import msgpack

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import DIGEST_SIZE, Digest, PeerId, RunId

MAX_STRING = 1024
MAX_ITEMS = 65_536  # of one sequence
MAX_TOTAL = 4 * MAX_ITEMS  # items of all sequences of a message together
MAX_CONTROL_FRAME = 4 << 20
MAX_BULK_FRAME = 16 << 20
MAX_INT = 2**63 - 1

RUN_TAGS = frozenset((*range(1, 70), *range(140, 160)))  # between the members of a run
NODE_TAGS = frozenset((*range(70, 90), *range(100, 120)))  # calls between nodes, and their answers

Payload = bytes | bytearray | memoryview  # travels beside its message, and is not copied
MEMORY_UNIT = 1 << 16  # bytes: memory for payloads, and credit for them, is counted in whole units; peers must agree

Fields = Callable[[Any], tuple[Any, ...]]
Unpack = Callable[[Any], Any]


class Message:
    """Base of all messages. `bulk` messages end in a `payload`, and travel on carriers of their own."""

    __slots__ = ()
    bulk: ClassVar[bool] = False


T = TypeVar("T")
M = TypeVar("M", bound=Message)
_fields: dict[type, Fields] = {}
_unpacks: dict[type, Unpack] = {}
_tags: dict[type[Message], int] = {}
_table: dict[int, type[Message]] = {}


class _Budget:
    """Counts items while msgpack builds them: 16 MB of empty sequences would become a gigabyte of objects."""

    def __init__(self) -> None:
        self.left = MAX_TOTAL

    def spend(self, items: list[Any]) -> list[Any]:
        self.left -= 1 + len(items)
        if self.left < 0:
            raise ValueError("too many items")
        return items


class _Malformed(ValueError):
    """Raised for malformed bytes; callers turn it into a RemoteError."""


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass that may be a field of a message."""
    made = dataclasses.dataclass(frozen=True, slots=True)(cls)
    _fields[made] = _fields_of(made)
    _unpacks[made] = _record(made)
    return made


@dataclass_transform(frozen_default=True)
def message(tag: int) -> Callable[[type[M]], type[M]]:
    """Make a class a message of the table, under a `tag` that is never reused."""

    def register(cls: type[M]) -> type[M]:
        made = value(cls)
        if tag in _table:
            raise TypeError(f"tag {tag} is already {_table[tag].__name__}")
        _table[tag] = made
        _tags[made] = tag
        return made

    return register


def encode(message: Message) -> bytes:
    """The canonical bytes of `message`: the same message always gives the same bytes."""
    kind = type(message)
    packed: bytes = msgpack.packb((_tags[kind], *_fields[kind](message)), default=_plain)
    return packed


def encode_head(message: Message) -> bytes:
    """The canonical bytes of a bulk message without its payload, which is its last field."""
    kind = type(message)
    packed: bytes = msgpack.packb((_tags[kind], *_fields[kind](message)[:-1]), default=_plain)
    return packed


def encode_value(record: object) -> bytes:
    """The canonical bytes of a value that is not a message, for hashing."""
    packed: bytes = msgpack.packb(record, default=_plain)
    return packed


def decode(
    data: bytes | memoryview,
    sender: PeerId | None = None,
    limit: int = MAX_BULK_FRAME,
    tags: Container[int] | None = None,
) -> Message:
    """The message in `data`, of any tag or one of `tags`; raises RemoteError, naming `sender`, for anything else."""
    return _decode(data, [], sender, limit, tags)


def payload_memory(size: int) -> int:
    """How many bytes of memory a payload of `size` bytes takes, in whole units."""
    return max(1, -(-size // MEMORY_UNIT)) * MEMORY_UNIT


def decode_bulk(head: bytes | memoryview, payload: Payload, sender: PeerId | None = None) -> Message:
    """The bulk message of a run with this `head`, and `payload` uncopied; raises RemoteError for anything else."""
    message = _decode(head, [payload], sender, MAX_CONTROL_FRAME, RUN_TAGS)
    if not message.bulk:
        raise RemoteError(f"{type(message).__name__} came with a payload", sender)
    return message


def _decode(
    data: bytes | memoryview, more: list[Payload], sender: PeerId | None, limit: int, tags: Container[int] | None
) -> Message:
    if len(data) > limit:
        raise RemoteError(f"message of {len(data)} bytes is over the limit of {limit}", sender)
    try:
        items = msgpack.unpackb(data, max_map_len=0, max_ext_len=0, max_array_len=MAX_ITEMS, list_hook=_Budget().spend)
    except Exception as error:  # msgpack raises a dozen types, for malformed data and exceeded limits
        raise RemoteError(f"message is not well-formed msgpack ({type(error).__name__})", sender) from error
    if not isinstance(items, list) or not items or type(items[0]) is not int:
        raise RemoteError("message has no tag", sender)
    kind = _table.get(items[0])
    if kind is None or (tags is not None and items[0] not in tags):
        raise RemoteError(f"message has tag {items[0]}, which means nothing here", sender)
    try:
        decoded: Message = _unpacks[kind](items[1:] + more)
    except _Malformed as error:
        raise RemoteError(f"malformed {kind.__name__}: {error}", sender) from error
    return decoded


def table() -> dict[int, type[Message]]:
    """All message types by tag, for docs and tests."""
    return dict(sorted(_table.items()))


# -- packing: msgpack packs all types of fields except our values, for which it calls _plain ------------------


def _plain(record: Any) -> tuple[Any, ...]:
    try:
        return _fields[type(record)](record)
    except KeyError:
        raise TypeError(f"{type(record).__name__} cannot travel") from None


def _fields_of(cls: type) -> Fields:
    names = [field.name for field in dataclasses.fields(cls)]
    if len(names) > 1:
        return attrgetter(*names)  # gives a tuple, faster than a loop
    return lambda record: tuple([getattr(record, name) for name in names])


# -- unpacking: one function for each type hint --------------------------------------------------------------


def _int(item: Any) -> int:
    if type(item) is not int or not 0 <= item <= MAX_INT:
        raise _Malformed("expected an integer of 0 .. 2^63-1")
    return item


def _float(item: Any) -> float:
    if type(item) not in (float, int) or not math.isfinite(item):
        raise _Malformed("expected a finite number")
    return float(item)


def _bool(item: Any) -> bool:
    if type(item) is not bool:
        raise _Malformed("expected a boolean")
    return item


def _str(item: Any) -> str:
    if type(item) is not str or len(item) > MAX_STRING:
        raise _Malformed(f"expected a string of at most {MAX_STRING} characters")
    return item


def _bytes(item: Any) -> bytes:
    if type(item) is not bytes:
        raise _Malformed("expected bytes")
    return item


def _digest(item: Any) -> bytes:
    if type(item) is not bytes or len(item) != DIGEST_SIZE:
        raise _Malformed(f"expected {DIGEST_SIZE} bytes")
    return item


def _payload(item: Any) -> Payload:
    if not isinstance(item, Payload):
        raise _Malformed("expected a payload")
    return item


_unpacks.update({int: _int, float: _float, bool: _bool, str: _str, bytes: _bytes})
# PeerIDs are interned: the proofs that are kept of each round are full of them.
_new_types: dict[Any, Unpack] = {PeerId: lambda item: sys.intern(_str(item)), Digest: _digest, RunId: _digest}


def _unpack(hint: Any) -> Unpack:
    if hint in _new_types:
        return _new_types[hint]
    if hint == Payload:
        return _payload
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (arg for arg in args if arg is not type(None))
        return _optional(_unpack(inner))
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _sequence(_unpack(args[0]))
    if origin is tuple:
        return _fixed([_unpack(arg) for arg in args])
    if hint in _unpacks:
        return _unpacks[hint]
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return _code(hint)
    raise TypeError(f"{hint!r} cannot travel")


def _code(kind: type[IntEnum]) -> Unpack:
    def unpack(item: Any) -> IntEnum:
        if type(item) is not int or item not in list(kind):
            raise _Malformed(f"expected a code of {kind.__name__}")
        return kind(item)

    return unpack


def _optional(unpack: Unpack) -> Unpack:
    return lambda item: None if item is None else unpack(item)


def _sequence(unpack: Unpack) -> Unpack:
    def unpack_all(items: Any) -> tuple[Any, ...]:
        if type(items) is not list:
            raise _Malformed("expected a sequence")
        return tuple([unpack(item) for item in items])

    return unpack_all


def _fixed(unpacks: list[Unpack]) -> Unpack:
    def unpack_all(items: Any) -> tuple[Any, ...]:
        if type(items) is not list or len(items) != len(unpacks):
            raise _Malformed(f"expected {len(unpacks)} items")
        return tuple([unpack(item) for unpack, item in zip(unpacks, items)])  # noqa: B905  # they are as many

    return unpack_all


def _record(cls: type) -> Unpack:
    names = [field.name for field in dataclasses.fields(cls)]
    hints = typing.get_type_hints(cls)
    unpacks = [_unpack(hints[name]) for name in names]
    expected = len(names)

    def unpack_record(items: Any) -> Any:
        if type(items) is not list or len(items) != expected:
            raise _Malformed(f"expected {expected} fields")
        values: list[Any] = []
        try:
            for unpack, item in zip(unpacks, items):  # noqa: B905  # they are as many
                values.append(unpack(item))
        except _Malformed as error:
            raise _Malformed(f"{names[len(values)]}: {error}") from None
        return cls(*values)

    return unpack_record
