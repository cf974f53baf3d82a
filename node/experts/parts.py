"""The run of one part: what follows from a family's manifest for the peer that trains the part's expert.

It is an ordinary run: DiLoCo with a rate of 1 and no momentum, so a peer alone steps by plain AdamW, from round to
round. What is added when it is founded is its origin (beginning.py), so each founding is a run of its own: no two
peers that claim a part at once ever found the same run.
"""

from __future__ import annotations

from pydantic import ValidationError

from shoal.node.experts.spec import ExpertsSpec, PartSpec
from shoal.node.explain import explain
from shoal.node.spec.manifest import CodecSpec, Manifest
from shoal.node.spec.method import MethodSpec
from shoal.protocol.errors import LocalError


def experts_of(family: Manifest) -> ExpertsSpec:
    """The experts of a manifest that is a family's."""
    assert family.experts is not None
    return family.experts


def part_manifest(family: Manifest, part: PartSpec) -> Manifest:
    """The part's run, without its origin; LocalError if there can be none."""
    method = family.method.model_dump() | {"name": "diloco"}
    table = family.model_dump() | {
        "name": f"{family.name}.{part.name}",
        "model": (part.model or family.model).model_dump(),
        "data": experts_of(family).data_of(part, family.data).model_dump(),
        "method": MethodSpec.model_validate(method).model_dump(),
        "rounds": family.rounds.model_dump() | {"min_members": 1, "start_members": 1, "last": last_round(family, part)},
        "codec": CodecSpec().model_dump(),  # nothing is lost on the way to oneself
        "origin": None,
        "experts": None,
        "public": False,
    }
    try:
        return Manifest.model_validate(table)
    except ValidationError as error:
        raise LocalError(f"the part {part.name} of {family.name}: {explain(error, Manifest)}") from error


def last_round(family: Manifest, part: PartSpec) -> int:
    """After which the part's expert is finished."""
    return experts_of(family).steps_of(part) // family.method.inner_steps
