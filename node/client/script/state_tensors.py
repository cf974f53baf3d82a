"""Finds the tensors that an optimizer keeps: in its state, its attributes, and in optimizers and objects inside it.

Any kind of optimizer may come: a subclass of torch's, one around another, or any class with `param_groups` and a
`step`. The trained weights themselves are left out, as are tensors that share memory with them, or with others found
before.

`WeightMatcher` tells, from sizes and places alone, which of these tensors could be weights of the optimizer's own, and
to which of the module's weights each belongs; their values tell whether they are (state_weights.py).
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

DEPTH = 4  # nested objects that are searched; modules and optimizers among them do not count
OPAQUE = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, threading.Thread, str, bytes, int, float)


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor that an optimizer keeps, by where it lies; tensors of one label lie in places of the same kind."""

    label: str
    holder: Any  # a dict, or a sequence
    key: Any  # of the tensor there
    owner: int | None  # the id of the weight that it belongs to, where a key or a name says so

    @property
    def tensor(self) -> Tensor:
        """The tensor that lies there now."""
        found: Tensor = self.holder[self.key]
        return found


def state_tensors(optimizer: Any, weights: Mapping[str, Tensor], outside: Collection[int]) -> Iterator[StateTensor]:
    """All dense floating-point tensors; objects with an id in `outside`, such as module parts, are not searched."""
    ids, names = set(map(id, weights.values())), {name: id(weight) for name, weight in weights.items()}
    seen, memory = set(outside) | ids, _SeenMemory()
    for each in weights.values():
        memory.add(each)

    def walk(value: Any, label: str, holder: Any, key: Any, owner: int | None, depth: int) -> Iterator[StateTensor]:
        if id(value) in seen or isinstance(value, OPAQUE):
            return
        if isinstance(value, Tensor):
            seen.add(id(value))
            if value.is_floating_point() and value.layout == torch.strided and memory.add(value):
                yield StateTensor(label, holder, key, owner)
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
    """The parameters of a module that may be a copy of the trained one: (name in the original, itself, table, key)."""
    for path, part in module.named_modules():
        for key, each in part._parameters.items():
            name = f"{path}.{key}" if path else key
            yield name.removeprefix("module.").removeprefix("_orig_mod."), each, part._parameters, key


def _attributes(value: Any) -> dict[str, Any]:
    """An object's attributes; the object's own `__dict__`, unless some are in slots."""
    named = (getattr(kind, "__slots__", ()) for kind in type(value).__mro__)
    slots = [name for names in named for name in ((names,) if isinstance(names, str) else names)]
    table: dict[str, Any] = getattr(value, "__dict__", {})
    found = {name: getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)}
    return {**table, **found} if found else table


def _is_text(value: Any, text: str) -> bool:
    return isinstance(value, str) and value == text  # `==` of a tensor compares its elements


class _SeenMemory:
    """The memory of all tensors that were added."""

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}  # of bytes, by where a storage begins

    def add(self, tensor: Tensor) -> bool:
        """Add a tensor; False if it overlaps with one that was added before."""
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


# -- which of them could be weights ------------------------------------------------------------------------


PADDING = 4096  # numbers at the end of a row of weights, at most

TensorOf = Callable[[int], Tensor]  # a tensor of a weight's shape, for the weight's index


@dataclass(frozen=True, slots=True)
class MatchedTensor:
    """A state tensor with the weights that it could be a copy of.

    It corresponds to one weight, to every `every`-th number of one, or to several weights one behind the other.
    """

    found: StateTensor
    indices: Sequence[int]  # of the weights
    size: int  # of the corresponding numbers; the tensor may have padding behind them
    every: int = 1

    @property
    def tensor(self) -> Tensor:
        """The whole tensor, with padding."""
        return self.found.tensor

    @property
    def is_whole(self) -> bool:
        """Whether it has all numbers; if not it is a single zero that stands for all of them."""
        return self.tensor.numel() >= self.size and (self.every == 1 or self.tensor.dim() == 1)

    @property
    def numbers(self) -> Tensor:
        """The tensor's numbers (size,), without padding."""
        return self.tensor.flatten()[: self.size]

    def part(self, of: TensorOf) -> Tensor:
        """The corresponding numbers (size,) of tensors that have the weights' shapes."""
        parts = [of(index).flatten() for index in self.indices]
        return parts[0][:: self.every] if len(parts) == 1 else torch.cat([each.to(parts[0].device) for each in parts])

    def move(self, by: TensorOf, share: float) -> None:
        """Add this share of the weights' movement."""
        part = self.part(by).to(self.tensor.device) * share
        if self.is_whole:
            unpadded = self._unpadded(part)
            unpadded.add_(part.view(unpadded.shape))
        else:
            self.found.holder[self.found.key] = self.tensor + part

    def put(self, weights: TensorOf, share: float) -> None:
        """Set it to this share of the weights."""
        part = self.part(weights) * share
        unpadded = self._unpadded(part)
        unpadded.copy_(part.view(unpadded.shape))

    def _unpadded(self, part: Tensor) -> Tensor:
        tensor = self.tensor.detach()
        return tensor if tensor.numel() == part.numel() else tensor[: self.size]


class WeightMatcher:
    """Matches the tensors of `optimizer` with `weights`, by name, which are all trained parameters of `module`."""

    def __init__(self, optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor], module: nn.Module) -> None:
        self._optimizer, self._named, self._weights = optimizer, weights, tuple(weights.values())
        parts = module.modules(), module.parameters(), module.buffers()  # an optimizer may refer to the module
        self._outside = {id(each) for kind in parts for each in kind}

    def matched(self) -> dict[str, list[MatchedTensor]]:
        """By label, those labels of which every tensor could be a copy of weights."""
        by_label: dict[str, list[StateTensor]] = {}
        for each in state_tensors(self._optimizer, self._named, self._outside):
            by_label.setdefault(each.label, []).append(each)
        matched = ((label, self._match(group)) for label, group in by_label.items())
        return {label: group for label, group in matched if group is not None}

    def _match(self, group: Sequence[StateTensor]) -> list[MatchedTensor] | None:
        """Match the tensors of one label; None if they cannot all be copies of weights.

        Where no key or name gives the weight: if the sizes agree, all weights in order, or a tensor for each parameter
        group, or one for all weights; else the nearest weight.
        """
        indices = {id(weight): index for index, weight in enumerate(self._weights)}
        owned = [(each, -1 if each.owner is None else indices[each.owner]) for each in group]
        if all(index >= 0 for _, index in owned):
            return self._one_by_one(owned)
        rows = [[indices[id(each)] for each in table["params"]] for table in self._optimizer.param_groups]
        in_order = [index for row in rows for index in row]
        sizes, wanted = [each.tensor.numel() for each in group], [self._weights[index].numel() for index in in_order]
        copies, rest = divmod(len(sizes), len(wanted))
        if not rest and sizes == wanted * copies:
            return self._one_by_one(list(zip(group, in_order * copies, strict=True)))
        for cut in (rows, [in_order]):
            totals = [sum(self._weights[index].numel() for index in row) for row in cut]
            if len(cut) == len(group) and all(map(_is_row, (each.tensor for each in group), totals)):
                return [MatchedTensor(each, row, size) for each, row, size in zip(group, cut, totals, strict=True)]
        return self._one_by_one([(each, self._nearest(each.tensor) if index < 0 else index) for each, index in owned])

    def _one_by_one(self, group: Sequence[tuple[StateTensor, int]]) -> list[MatchedTensor] | None:
        """Match each tensor with the weight of its index: with all numbers of it, or with every n-th, one n for all."""
        fewest, most = 1, sys.maxsize  # bounds for n
        for found, index in group:
            if index < 0:
                return None
            tensor, size = found.tensor, self._weights[index].numel()
            if tensor.numel() == size:
                continue
            if tensor.dim() == 1 and 0 < tensor.numel() <= size:
                fewest = max(fewest, -(-size // tensor.numel()))
                most = min(most, (size - 1) // (tensor.numel() - 1) if tensor.numel() > 1 else sys.maxsize)
            elif tensor.dim() or float(tensor) or isinstance(found.holder, tuple):
                return None  # not a single zero in a place where `move` can put a tensor of full size
        if fewest > most:
            return None
        matched = []
        for found, index in group:
            size = self._weights[index].numel()
            every = 1 if found.tensor.numel() == size else fewest
            matched.append(MatchedTensor(found, (index,), -(-size // every), every))
        return matched

    def _nearest(self, tensor: Tensor) -> int:
        """The index of the weight with the nearest values among those of its shape, or else of its size; -1: none."""
        alike = [index for index, weight in enumerate(self._weights) if weight.numel() == tensor.numel()]
        alike = [index for index in alike if self._weights[index].shape == tensor.shape] or alike
        if len(alike) < 2:
            return alike[0] if alike else -1
        flat = tensor.flatten()
        return min(alike, key=lambda index: _squared_distance(flat, self._weights[index].flatten()))


def _squared_distance(one: Tensor, other: Tensor) -> float:
    return float((one.to(other.device) - other).double().square().sum())


def _is_row(tensor: Tensor, total: int) -> bool:
    """Whether it could hold `total` numbers of several weights, one behind the other, and padding."""
    return tensor.numel() == total or (tensor.dim() == 1 and 0 <= tensor.numel() - total <= PADDING)
