"""Names and shapes of a model's tensors in a manifest, where layers that are alike are written once.

    names   = ["model.layers.#.mlp.up_proj.weight", "model.layers.#.mlp.down_proj.weight"]
    shapes  = [[384, 128], [128, 384]]
    times   = 32

stands for 64 tensors, layer by layer: `#` is the counter, and `##` stands for a # in the name itself. A number with
leading zeros, such as 07, is not replaced by a counter. So any name is restored exactly, and a model of any depth fits
in a manifest. A node that only keeps a run's state knows its tensors without torch and without the model's library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from math import prod
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from shoal.node.base.keys import Help
from shoal.node.manifest.base import Spec
from shoal.protocol.base.errors import LocalError

MAX_TENSORS = 100_000
MAX_ELEMENTS = 1 << 40
COUNTER = "#"
MAX_NAME = 1000  # characters
MAX_COUNTER = 4096
RESERVED = "__metadata__"  # a name that safetensors files use themselves

_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|blocks|block|h)\.([0-9]+)\.")  # the usual names of the list of layers
_NUMBER = re.compile(r"(?<=\.)(?:0|[1-9][0-9]{0,3})(?=\.)")
_MARKS = re.compile(f"{COUNTER}{COUNTER}?")


def problem_of(name: str) -> str:
    """Why a tensor cannot have this name, in words; empty if it can."""
    if not name.isprintable():
        return "has characters that cannot be shown"
    if len(name) > MAX_NAME:
        return f"is longer than {MAX_NAME} characters"
    return "means something else in safetensors files" if name == RESERVED else ""


def _checked(name: str) -> str:
    if not name or (problem := problem_of(name.replace(COUNTER * 2, COUNTER))):
        raise ValueError(f"a tensor's name {problem if name else 'is not empty'}")
    return name


Dimension = Annotated[int, Field(ge=0, le=1 << 32)]
Name = Annotated[str, Field(max_length=2 * MAX_NAME), AfterValidator(_checked)]
Shapes = Mapping[str, tuple[int, ...]]


class TensorGroup(Spec):
    """A sequence of tensors in the order of the flat vector, repeated `times` times with numbers from `first` on."""

    names: Annotated[
        tuple[Name, ...],
        Field(min_length=1),
        Help("The tensors' names, in which # stands for the counter.", is_filled_in=True),
    ]
    shapes: Annotated[
        tuple[Annotated[tuple[Dimension, ...], Field(max_length=64)], ...],
        Help("Their shapes, in the same order.", is_filled_in=True),
    ]
    times: Annotated[
        int,
        Field(ge=1, le=MAX_COUNTER),
        Help("How often the group comes: how many layers are alike.", unit="layers", is_filled_in=True),
    ] = 1
    first: Annotated[int, Field(ge=0, le=MAX_COUNTER), Help("The first number of the counter.", is_filled_in=True)] = 0

    @model_validator(mode="after")
    def _belong_together(self) -> TensorGroup:
        if len(self.names) != len(self.shapes):
            raise ValueError("each name of a group of tensors has one shape")
        if self.times > 1 and not all(COUNTER in _MARKS.findall(name) for name in self.names):
            raise ValueError(f"the names of a group that comes {self.times} times need a {COUNTER}, which counts")
        return self

    @property
    def size(self) -> int:
        """How many elements the tensors have."""
        return self.times * sum(map(prod, self.shapes))


def check_size(groups: Iterable[TensorGroup]) -> None:
    """ValueError if there are more tensors or elements than any machine could hold, or if a name occurs twice."""
    groups = tuple(groups)
    if sum(each.times * len(each.names) for each in groups) > MAX_TENSORS or total(groups) > MAX_ELEMENTS:
        raise ValueError(f"a model has at most {MAX_TENSORS:,} tensors and 2**40 parameters")
    names = [name for name, _ in expand(groups)]
    if len(set(names)) < len(names):
        raise ValueError("a tensor is named twice")


def total(groups: Iterable[TensorGroup]) -> int:
    """How many elements the tensors of all groups have."""
    return sum(each.size for each in groups)


def expand(groups: Iterable[TensorGroup]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each tensor's name and shape, in order."""
    for group in groups:
        for number in range(group.first, group.first + group.times):
            for name, shape in zip(group.names, group.shapes, strict=True):
                yield _filled(name, str(number)), shape


def fold(shapes: Shapes) -> tuple[TensorGroup, ...]:
    """Groups that stand for these tensors, in this order; consecutive layers that are alike become one group.

    Raises LocalError if a tensor has a name that a manifest cannot hold.
    """
    groups: list[TensorGroup] = []
    for (pattern, number), members in groupby(shapes.items(), key=lambda item: _place(item[0])):
        named = list(members)
        names = tuple(_pattern(name) for name, _ in named)
        group = TensorGroup(names=names, shapes=tuple(tuple(shape) for _, shape in named), first=number)
        last = groups[-1] if groups else None
        is_next = last is not None and last.times < MAX_COUNTER and last.first + last.times == number
        if last and pattern and is_next and (last.names, last.shapes) == (names, group.shapes):
            groups[-1] = last.model_copy(update={"times": last.times + 1})
        else:
            groups.append(group)
    return tuple(groups)


def first_difference(ours: Shapes, theirs: Shapes) -> str:
    """The first difference between two models, in words about `ours`; empty if they are alike, in order too."""
    for (name, shape), (other, wanted) in zip(ours.items(), theirs.items(), strict=False):
        if name != other:
            return f"{name} stands where the run has {other}"
        if tuple(shape) != tuple(wanted):
            return f"{name} has shape {tuple(shape)}, and {tuple(wanted)} in the run"
    if len(ours) != len(theirs):
        longer, whose = (ours, "the run lacks") if len(ours) > len(theirs) else (theirs, "only the run has")
        return f"{whose} {list(longer)[min(len(ours), len(theirs))]}"
    return ""


def layer_of(name: str) -> int | None:
    """The number of the layer that a tensor belongs to, from 0; None if it belongs to none."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def _place(name: str) -> tuple[str, int]:
    """The counted number in a name and the text before it, as (text, number); ("", 0) if there is none."""
    if not name or (problem := problem_of(name)):
        raise LocalError(
            f"the tensor {name!r} {problem if name else 'has no name'}: give it another one", code="manifest-wrong"
        )
    found = _counted(name)
    return (name[: found.start()], int(found[0])) if found else ("", 0)


def _counted(name: str) -> re.Match[str] | None:
    """The first number in a name that can be counted."""
    return next((each for each in _NUMBER.finditer(name) if int(each[0]) <= MAX_COUNTER), None)


def _pattern(name: str) -> str:
    """The pattern of a name in a group, with the counter in the place of its number."""
    found, escaped = _counted(name), COUNTER * 2
    if found is None:
        return name.replace(COUNTER, escaped)
    before, after = name[: found.start()], name[found.end() :]
    return f"{before.replace(COUNTER, escaped)}{COUNTER}{after.replace(COUNTER, escaped)}"


def _filled(pattern: str, number: str) -> str:
    return _MARKS.sub(lambda mark: number if mark[0] == COUNTER else COUNTER, pattern)
