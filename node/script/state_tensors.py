"""All tensors that an optimizer keeps, wherever it does: in its state, its attributes, optimizers and objects inside.

What it may be is open: a subclass of torch's, one around another, or any class with `param_groups` and a `step`. The
trained weights themselves are left out, as is what shares memory with them, or with what was found before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

DEPTH = 4  # objects within objects that are looked into; modules and optimizers within others are not counted
CLOSED = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, threading.Thread, str, bytes, int, float)


@dataclass(frozen=True, slots=True)
class Kept:
    """One of them. Those of one label lie in like places."""

    label: str
    holder: Any  # a dict, or a sequence
    key: Any  # of the tensor there
    owner: int | None  # the id of the weight that it belongs to, where a key or a name says so

    @property
    def tensor(self) -> Tensor:
        """Itself, as of now."""
        found: Tensor = self.holder[self.key]
        return found


def kept_tensors(optimizer: Any, weights: Mapping[str, Tensor], outside: Collection[int]) -> Iterator[Kept]:
    """Those of numbers with a point, dense ones. What has an id in `outside`, as the module's parts, is not entered."""
    ids, names = set(map(id, weights.values())), {name: id(weight) for name, weight in weights.items()}
    seen, taken = set(outside) | ids, _Memory()
    for each in weights.values():
        taken.add(each)

    def walk(value: Any, label: str, holder: Any, key: Any, owner: int | None, depth: int) -> Iterator[Kept]:
        if id(value) in seen or isinstance(value, CLOSED):
            return
        if isinstance(value, Tensor):
            seen.add(id(value))
            if value.is_floating_point() and value.layout == torch.strided and taken.add(value):
                yield Kept(label, holder, key, owner)
            return
        if isinstance(value, dict | list | tuple | deque):
            seen.add(id(value))
        elif isinstance(value, set | frozenset):
            seen.add(id(value))
            value = list(value)
        else:
            table = _attributes(value)
            if not table or depth > DEPTH:
                return
            seen.add(id(value))
            depth += not isinstance(value, torch.nn.Module | torch.optim.Optimizer)
            if isinstance(value, torch.nn.Module):
                for name, within, table, each in _parameters(value):
                    yield from walk(within, f"{label}.parameters", table, each, names.get(name, owner), depth)
            value = table
        if isinstance(value, dict):
            inside = [(each, within) for each, within in value.items() if not _is_text(each, "defaults")]
        else:
            inside = list(enumerate(value))
        for each, within in inside:
            whose = id(each) if id(each) in ids else names.get(each) if isinstance(within, Tensor) else None
            named = f"{label}.{each}" if isinstance(each, str) and whose is None else label
            yield from walk(within, named, value, each, owner if whose is None else whose, depth)

    yield from walk(optimizer, "", None, None, None, 0)


def _parameters(module: torch.nn.Module) -> Iterator[tuple[str, Tensor | None, dict[str, Any], str]]:
    """Of a copy of the trained module: its name there, itself, and where it lies."""
    for path, part in module.named_modules():
        for key, each in part._parameters.items():
            name = f"{path}.{key}" if path else key
            yield name.removeprefix("module.").removeprefix("_orig_mod."), each, part._parameters, key


def _attributes(value: Any) -> dict[str, Any]:
    """Those of an object; its own table of them, unless some are in slots."""
    named = (getattr(kind, "__slots__", ()) for kind in type(value).__mro__)
    slots = [name for names in named for name in ((names,) if isinstance(names, str) else names)]
    table: dict[str, Any] = getattr(value, "__dict__", {})
    found = {name: getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)}
    return {**table, **found} if found else table


def _is_text(value: Any, text: str) -> bool:
    return isinstance(value, str) and value == text  # a tensor compares by its numbers


class _Memory:
    """Which memory was seen."""

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}  # of bytes, by where a storage begins

    def add(self, tensor: Tensor) -> bool:
        """Whether none of it was seen before."""
        if type(tensor.data) is not Tensor or not tensor.numel():
            return True
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        begin = tensor.data_ptr()
        end = begin + (reach + 1) * tensor.element_size()
        ranges = self._ranges.setdefault(tensor.untyped_storage().data_ptr(), [])
        if any(begin < other_end and other_begin < end for other_begin, other_end in ranges):
            return False
        ranges.append((begin, end))
        return True
