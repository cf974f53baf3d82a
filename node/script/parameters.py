"""Whether a module's parameters can be a run's: each is a whole tensor of its own, with numbers that can be exchanged.

All is looked at before a run is founded or entered. The words name the parameter, and say what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shoal.node.spec.tensors import problem_of
from shoal.protocol.errors import LocalError


def check_parameters(module: nn.Module) -> None:
    """LocalError for the first parameter that cannot be."""
    named: dict[str, nn.Parameter] = {}
    for name, weight in module.named_parameters():
        if name in named:
            raise LocalError(f"two parameters are named {name}: a name with a dot in it is that of a part's part, too")
        named[name] = weight
    for name, weight in named.items():
        if problem := _problem(name, weight):
            raise LocalError(f"the parameter {name if name.isprintable() else repr(name)} {problem}")
    _check_apart(named)


def _problem(name: str, weight: nn.Parameter) -> str:
    """Why it cannot be, and what to do; empty if it can."""
    if isinstance(weight, nn.UninitializedParameter):
        return "has no shape yet: give the module a batch before `wrap`"
    if weight.is_meta:
        return "is on the meta device, without numbers: load the weights before `wrap` (to_empty, load_state_dict)"
    if not weight.requires_grad:
        return ""
    if name_problem := problem_of(name):
        return f"{name_problem}: register it under another name"
    if (kind := type(weight.data)) is not Tensor:
        return (
            f"is a {kind.__name__}: what is trained in a run are plain tensors, whole ones (no shards, not quantised)"
        )
    if weight.layout != torch.strided:
        return f"is {weight.layout}: make it dense (to_dense)"
    if weight.is_inference():
        return "was made in inference mode, and nothing may change it: make the module outside of it"
    if weight.is_complex():
        return f"is {weight.dtype}: keep torch.view_as_real of it as the parameter, and view_as_complex to compute"
    if weight.dtype != torch.float32:
        return f"is {weight.dtype}: keep the weights in fp32, and compute under torch.autocast"
    if any(size > 1 and not stride for size, stride in zip(weight.shape, weight.stride(), strict=True)):
        return "is expanded, so that several of its numbers are one: use a clone() of it"
    return ""


def _check_apart(named: dict[str, nn.Parameter]) -> None:
    """LocalError if a trained parameter has numbers in common with another one.

    Who steps and averages both does so twice; and a frozen one would move.
    """
    by_storage: dict[int, list[tuple[str, nn.Parameter]]] = {}
    for name, weight in sorted(named.items(), key=lambda each: not each[1].requires_grad):
        is_plain = type(weight.data) is Tensor and weight.layout == torch.strided
        if is_plain and weight.numel():
            by_storage.setdefault(weight.untyped_storage().data_ptr(), []).append((name, weight))
    for sharing in by_storage.values():
        if len(sharing) > 1 and sharing[0][1].requires_grad and (pair := _overlapping(sharing)):
            raise LocalError(
                f"the parameters {pair[0]} and {pair[1]} have numbers in common: make them one parameter, under both "
                "names if need be, or give each its own (clone)"
            )


def _overlapping(sharing: Sequence[tuple[str, nn.Parameter]]) -> tuple[str, str] | None:
    """The first trained one that overlaps with another, and that, in one storage; the trained ones come first."""
    unit = min(weight.element_size() for _, weight in sharing)  # in bytes; sizes of types are multiples of each other
    owners = torch.zeros(sharing[0][1].untyped_storage().nbytes() // unit, dtype=torch.int32)
    names: list[str] = []
    for name, weight in sharing:
        each = weight.element_size() // unit
        strides = [each * stride for stride in weight.stride()]
        place = owners.as_strided((*weight.shape, each), (*strides, 1), each * weight.storage_offset())
        if earlier := int(place.max()):
            return names[earlier - 1], name
        if weight.requires_grad:
            names.append(name)
            place.fill_(len(names))
    return None
