"""Compares a node's answers with their types in the table of operations; a fake's may lack keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict


def type_errors(hint: Any, value: Any, where: str = "answer", *, needs_all: bool = False) -> Iterator[str]:
    """Each way in which a value differs from its type hint; with `needs_all`, missing keys as well."""
    if (is_typeddict(hint) and not isinstance(value, dict)) or (
        get_origin(hint) is list and not isinstance(value, list)
    ):
        yield f"{where} is {value!r}, not {hint}"
    elif is_typeddict(hint):
        hints = get_type_hints(hint)
        for key, each in value.items():
            if key in hints:
                yield from type_errors(hints[key], each, f"{where}.{key}", needs_all=needs_all)
            else:
                yield f"{where}.{key} is unknown"
        if needs_all:
            yield from (f"{where}.{key} is lacking" for key in sorted(hint.__required_keys__ - value.keys()))
    elif isinstance(hint, UnionType):
        if all(list(type_errors(each, value, needs_all=needs_all)) for each in get_args(hint)):
            yield f"{where} is {value!r}, not {hint}"
    elif get_origin(hint) in (list, Sequence):
        for number, each in enumerate(value):
            yield from type_errors(get_args(hint)[0], each, f"{where}[{number}]", needs_all=needs_all)
    else:
        kind = get_origin(hint) or hint
        is_fit = isinstance(value, (int, float) if kind is float else kind) or (kind is NoneType and value is None)
        if not is_fit:
            yield f"{where} is {value!r}, not {hint}"
