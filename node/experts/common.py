"""The files of a family that are of no one part: the seeds with which experts begin, and the partition of the data.

They are by the family's author, and every member keeps them: experts cannot begin without. Their records lie beside the
parts', under names that no part can have.
"""

from __future__ import annotations

from shoal.node.experts.parts import experts_of
from shoal.node.experts.spec import PartSpec
from shoal.node.spec.manifest import Manifest
from shoal.protocol.ids import Digest

SEED = ""  # the family's, in its manifest's [origin]
PARTITION = "."
OWN = "+"  # and a number: of experts of one model that is not the family's


def common(family: Manifest) -> tuple[str, ...]:
    """The names under which a family may have such files."""
    return (SEED, PARTITION, *own_seeds(family))


def own_seeds(family: Manifest) -> dict[str, PartSpec]:
    """The seeds of models that are not the family's; for each, one of the parts that begin with it."""
    return {f"{OWN}{number}": part for number, part in enumerate(experts_of(family).seeded)}


def named(family: Manifest) -> list[tuple[str, Digest, int]]:
    """Those that the manifest names by their files, which its founder has made; and the tokens behind each."""
    clusters = experts_of(family).clusters
    files = [(PARTITION, clusters.file, 0)] if clusters is not None and clusters.file else []
    files += [(name, part.seed.file, part.seed.tokens) for name, part in own_seeds(family).items() if part.seed]
    return [(name, Digest(bytes.fromhex(file)), tokens) for name, file, tokens in files]


def seed_of(family: Manifest, part: PartSpec) -> str | None:
    """The name of the seed with which the part's expert begins; None: with what the manifest's seed gives."""
    if part.seed is not None:
        return next(name for name, first in own_seeds(family).items() if first.seed == part.seed)
    is_familys = part.model is None or part.model == family.model
    return SEED if family.origin is not None and is_familys else None


def words(name: str, round: int) -> str:
    """What a file is called where people read it."""
    if name == PARTITION:
        return "the partition of the data"
    return "the family's seed" if name.startswith(OWN) or name == SEED else f"round {round} of the expert '{name}'"
