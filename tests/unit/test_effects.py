"""Effects are plain data, all the way down: no function is in them, and nothing that a core goes on with."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import pytest

from shoal import dht, protocol
from shoal.dht import effects as of_dht
from shoal.protocol.base import effects as of_members
from shoal.protocol.base.effects import Event
from shoal.protocol.base.wire import Message

EFFECTS = list(dict.fromkeys([*get_args(of_members.Effect), *get_args(of_dht.Effect)]))
PLAIN = (int, float, str, bytes, bytearray, memoryview, Enum, NoneType)
HOLDERS = (tuple, Mapping, Collection, Union, UnionType)


def not_plain(kind: Any, path: str) -> Iterator[str]:
    """What in a type is not plain data, as `field.field: type`."""
    kind = kind.__supertype__ if isinstance(kind, NewType) else kind
    if get_origin(kind) in HOLDERS:
        for part in get_args(kind):
            yield from not_plain(part, path)
    elif kind in (Event, Message):  # such a field holds any of them
        for each in kind.__subclasses__():
            if each.__module__.startswith("shoal."):
                yield from not_plain(each, f"{path}.{each.__name__}")
    elif is_dataclass(kind):
        hints = get_type_hints(kind)
        for each in fields(kind):
            yield from not_plain(hints[each.name], f"{path}.{each.name}")
    elif kind is not Ellipsis and not (isinstance(kind, type) and issubclass(kind, PLAIN)):
        yield f"{path}: {kind}"


@pytest.fixture(scope="module", autouse=True)
def _modules() -> None:
    """All events of cores are known, and all messages."""
    for package in (protocol, dht):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith("shoal.protocol.net"):
                importlib.import_module(module.name)


@pytest.mark.parametrize("effect", EFFECTS)
def test_an_effect_holds_plain_data_only(effect: type) -> None:
    assert not list(not_plain(effect, effect.__name__))


@dataclass(frozen=True)
class Inner:
    """Part of an effect that breaks the rule."""

    make: Callable[[], bytes]
    store: object


@dataclass(frozen=True)
class Outer:
    """Such an effect."""

    parts: tuple[int | Inner, ...]


def test_a_function_and_an_object_are_found_however_deep_they_are() -> None:
    found = list(not_plain(Outer, "Outer"))
    assert [each.partition(":")[0] for each in found] == ["Outer.parts.make", "Outer.parts.store"]
