"""Derives the manifest of one part's run from the family's manifest; and names the family's common files.

The run is an ordinary one: DiLoCo with a rate of 1 and no momentum, which for a single peer is plain AdamW from round
to round. Its origin is added when it is founded, so that two peers that claim a part at the same time never found the
same run.

Common files belong to no part: the seeds with which experts begin, and the partition of the data. The family's author
makes them, and every member keeps them, as experts cannot begin without them. Their records are beside the records of
parts, under names that no part can have.
"""

from __future__ import annotations

from pydantic import ValidationError

from shoal.node.base.explain import explain
from shoal.node.manifest.experts import ExpertsSpec, PartSpec
from shoal.node.manifest.manifest import CodecSpec, Manifest
from shoal.node.manifest.method import MethodSpec
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest


def experts_of(family: Manifest) -> ExpertsSpec:
    """The experts table of a family's manifest."""
    assert family.experts is not None
    return family.experts


def part_manifest(family: Manifest, part: PartSpec) -> Manifest:
    """The manifest of the part's run, without its origin; LocalError if it would not be valid."""
    method = family.method.model_dump() | {"name": "diloco"}
    table = family.model_dump() | {
        "name": f"{family.name}.{part.name}",
        "model": (part.model or family.model).model_dump(),
        "data": experts_of(family).data_of(part, family.data).model_dump(),
        "method": MethodSpec.model_validate(method).model_dump(),
        "rounds": family.rounds.model_dump() | {"min_members": 1, "start_members": 1, "last": last_round(family, part)},
        "codec": CodecSpec().model_dump(),  # without loss, as nothing is sent
        "origin": None,
        "experts": None,
        "public": False,
    }
    try:
        return Manifest.model_validate(table)
    except ValidationError as error:
        raise LocalError(
            f"the part {part.name} of {family.name}: {explain(error, Manifest)}", code="manifest-wrong"
        ) from error


def last_round(family: Manifest, part: PartSpec) -> int:
    """The round after which the part's expert is finished."""
    return experts_of(family).steps_of(part) // family.method.inner_steps


# -- common files ------------------------------------------------------------------------------------------


SEED = ""  # the family's, in its manifest's [origin]
PARTITION = "."
OWN = "+"  # followed by a number: the seed of a model that is not the family's


def common(family: Manifest) -> tuple[str, ...]:
    """The names that common files may have in a family."""
    return (SEED, PARTITION, *own_seeds(family))


def own_seeds(family: Manifest) -> dict[str, PartSpec]:
    """The names of seeds of models that are not the family's; for each, a part that begins with it."""
    return {f"{OWN}{number}": part for number, part in enumerate(experts_of(family).seeded)}


def named(family: Manifest) -> list[tuple[str, Digest, int]]:
    """(name, file, tokens behind it) of the common files that the manifest names, which the founder has made."""
    clusters = experts_of(family).clusters
    files = [(PARTITION, clusters.file, 0)] if clusters is not None and clusters.file else []
    files += [(name, part.seed.file, part.seed.tokens) for name, part in own_seeds(family).items() if part.seed]
    return [(name, Digest(bytes.fromhex(file)), tokens) for name, file, tokens in files]


def seed_of(family: Manifest, part: PartSpec) -> str | None:
    """The name of the seed that the part's expert begins with; None: the manifest's seed gives its parameters."""
    if part.seed is not None:
        return next(name for name, first in own_seeds(family).items() if first.seed == part.seed)
    is_familys = part.model is None or part.model == family.model
    return SEED if family.origin is not None and is_familys else None


def words(name: str, round: int) -> str:
    """What a file is called in messages to people."""
    if name == PARTITION:
        return "the partition of the data"
    return "the family's seed" if name.startswith(OWN) or name == SEED else f"round {round} of the expert '{name}'"
