"""All tensors that an optimizer keeps, in its state, its attributes, and in optimizers and objects inside it.

Any kind of optimizer may come: a subclass of torch's, one around another, or any class with `param_groups` and a
`step`. The trained weights themselves are left out, as are tensors that share memory with them, or with others found
before.

Which of them could be weights of the optimizer's own, and of which of the module's, follows from sizes and places alone
(`Matching`); what they hold says whether they are (state_weights.py).
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


# -- which of them could be weights ------------------------------------------------------------------------


PADDING = 4096  # numbers at the end of a row of weights, at most

Numbers = Callable[[int], Tensor]  # like those of a weight, by its place


@dataclass(frozen=True, slots=True)
class Spot:
    """A tensor that an optimizer keeps, like a weight, or each `every`-th number of it, or several weights in a row."""

    kept: Kept
    places: Sequence[int]  # of the weights, one behind the other
    size: int  # how many numbers they stand for
    every: int = 1

    @property
    def tensor(self) -> Tensor:
        """All of it."""
        return self.kept.tensor

    @property
    def is_whole(self) -> bool:
        """Whether it has a number for each; else it is one zero in the place of all."""
        return self.tensor.numel() >= self.size and (self.every == 1 or self.tensor.dim() == 1)

    @property
    def numbers(self) -> Tensor:
        """Those of its own, flat, without padding."""
        return self.tensor.flatten()[: self.size]

    def part(self, of: Numbers) -> Tensor:
        """The numbers of tensors like the weights that it stands for, flat."""
        parts = [of(place).flatten() for place in self.places]
        return parts[0][:: self.every] if len(parts) == 1 else torch.cat([each.to(parts[0].device) for each in parts])

    def move(self, by: Numbers, share: float) -> None:
        """Go along with the weights, by so much of their way."""
        part = self.part(by).to(self.tensor.device) * share
        if self.is_whole:
            like = self._like(part)
            like.add_(part.view(like.shape))
        else:
            self.kept.holder[self.kept.key] = self.tensor + part

    def put(self, weights: Numbers, share: float) -> None:
        """Become the same, or that share of them."""
        part = self.part(weights) * share
        like = self._like(part)
        like.copy_(part.view(like.shape))

    def _like(self, part: Tensor) -> Tensor:
        tensor = self.tensor.detach()
        return tensor if tensor.numel() == part.numel() else tensor[: self.size]


class Matching:
    """Of what `optimizer` keeps with `weights`, by name, which are all that is trained of `module`."""

    def __init__(self, optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor], module: nn.Module) -> None:
        self._optimizer, self._named, self._weights = optimizer, weights, tuple(weights.values())
        parts = module.modules(), module.parameters(), module.buffers()  # an optimizer may know the module, too
        self._outside = {id(each) for kind in parts for each in kind}

    def spots(self) -> dict[str, list[Spot]]:
        """By label: of each label all tensors are like the weights that they belong to."""
        kept: dict[str, list[Kept]] = {}
        for each in kept_tensors(self._optimizer, self._named, self._outside):
            kept.setdefault(each.label, []).append(each)
        matched = ((label, self._matched(group)) for label, group in kept.items())
        return {label: group for label, group in matched if group is not None}

    def _matched(self, group: Sequence[Kept]) -> list[Spot] | None:
        """The same, as what they stand for; None if they cannot all be weights.

        Where nothing says whose they are: of all weights in order, or of rows of them, or each of the nearest one.
        """
        places = {id(weight): place for place, weight in enumerate(self._weights)}
        owned = [(each, -1 if each.owner is None else places[each.owner]) for each in group]
        if all(place >= 0 for _, place in owned):
            return self._alike(owned)
        rows = [[places[id(each)] for each in table["params"]] for table in self._optimizer.param_groups]
        in_order = [place for row in rows for place in row]
        sizes, wanted = [each.tensor.numel() for each in group], [self._weights[place].numel() for place in in_order]
        copies, rest = divmod(len(sizes), len(wanted))
        if not rest and sizes == wanted * copies:
            return self._alike(list(zip(group, in_order * copies, strict=True)))
        for cut in (rows, [in_order]):
            totals = [sum(self._weights[place].numel() for place in row) for row in cut]
            if len(cut) == len(group) and all(map(_is_row, (each.tensor for each in group), totals)):
                return [Spot(each, row, size) for each, row, size in zip(group, cut, totals, strict=True)]
        return self._alike([(each, self._nearest(each.tensor) if place < 0 else place) for each, place in owned])

    def _alike(self, group: Sequence[tuple[Kept, int]]) -> list[Spot] | None:
        """Each of one weight, at its place: all numbers of it, or each of so many."""
        fewest, most = 1, sys.maxsize
        for kept, place in group:
            if place < 0:
                return None
            tensor, size = kept.tensor, self._weights[place].numel()
            if tensor.numel() == size:
                continue
            if tensor.dim() == 1 and 0 < tensor.numel() <= size:
                fewest = max(fewest, -(-size // tensor.numel()))
                most = min(most, (size - 1) // (tensor.numel() - 1) if tensor.numel() > 1 else sys.maxsize)
            elif tensor.dim() or float(tensor) or isinstance(kept.holder, tuple):
                return None  # else it is one zero in the place of all, which the tensor that it becomes replaces there
        if fewest > most:
            return None
        spots = []
        for kept, place in group:
            size = self._weights[place].numel()
            every = 1 if kept.tensor.numel() == size else fewest
            spots.append(Spot(kept, (place,), -(-size // every), every))
        return spots

    def _nearest(self, tensor: Tensor) -> int:
        """The weight of its shape, or at least its size, that a tensor is nearest to; -1 if there is none."""
        alike = [place for place, weight in enumerate(self._weights) if weight.numel() == tensor.numel()]
        alike = [place for place in alike if self._weights[place].shape == tensor.shape] or alike
        if len(alike) < 2:
            return alike[0] if alike else -1
        flat = tensor.flatten()
        return min(alike, key=lambda at: _apart(flat, self._weights[at].flatten()))


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one.to(other.device) - other).double().square().sum())


def _is_row(tensor: Tensor, total: int) -> bool:
    """Whether it could be that many numbers of several weights, one behind the other."""
    return tensor.numel() == total or (tensor.dim() == 1 and 0 <= tensor.numel() - total <= PADDING)
