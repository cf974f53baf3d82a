"""Masks: which of a row of members are meant, as bits. Bit i is member i; a mask has no zero byte at its end.

So a mask stays as it is when members are added to the end of the row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from typing import TypeVar

T = TypeVar("T")


def mask_of(members: Sequence[T], meant: Collection[T]) -> bytes:
    """The mask over `members` of those that are `meant`."""
    return _packed(sum(1 << place for place, member in enumerate(members) if member in meant))


def masked(members: Sequence[T], mask: bytes) -> list[T]:
    """Those of `members` that are meant, in their order."""
    bits = int.from_bytes(mask, "little")
    return [member for place, member in enumerate(members) if bits >> place & 1]


def is_mask(mask: bytes, members: int) -> bool:
    """Whether it is a mask over so many members."""
    return not mask.endswith(b"\0") and int.from_bytes(mask, "little") >> members == 0


def common(masks: Iterable[bytes]) -> bytes:
    """Those who are in all of them."""
    return _packed(reduce(lambda a, b: a & b, (int.from_bytes(mask, "little") for mask in masks)))


def _packed(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
