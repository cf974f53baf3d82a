"""Cards: descriptions of experts' files, signed by the peer that trained them, and checked before any use.

If a card is not signed by its author, or cannot belong to the family, the peer that shows it is blamed, not the author.
Loss and tokens on a card cannot be verified. A file is identified by its hash (BLAKE3 of the whole), and fetched by the
tree of hashes over its pieces, like a run's text (node/training/data/).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from shoal.node.experts.parts import PARTITION, SEED, experts_of, last_round, own_seeds
from shoal.node.manifest.experts import PartSpec
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.requirements import FLOAT, parameters
from shoal.node.training.data.fetch import DatasetRef
from shoal.node.training.data.store import Dataset
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId, RunId
from shoal.protocol.base.signing import Signer, check_signature, signed
from shoal.protocol.messages.directory import ExpertCard
from shoal.protocol.messages.genesis import Genesis

MAX_TOKENS = 2**52  # behind a file; training from it adds more, and a manifest has room for 2**53
PARTITION_MOST = 16 << 20  # bytes
HEADER_MOST = 8 << 20  # bytes of a file beside its numbers: names and shapes


def make_card(
    family: RunId, part: str, made: Dataset, round: int, steps: int, tokens: int, loss: float | None, signer: Signer
) -> ExpertCard:
    """A signed card of a file that we have made."""
    file = (made.index.size, made.digest, made.root)
    return signed(ExpertCard(family, part, round, steps, tokens, loss, *file, signer.peer, b""), signer)


def check_card(card: ExpertCard, family: Manifest, genesis: Genesis, signer: Signer, shown_by: PeerId) -> None:
    """RemoteError, which names `shown_by`, unless the card may belong to the family, whose genesis is given, too."""
    if card.family != genesis.run:
        raise RemoteError("shows a card of an expert of another family", shown_by)
    if fault := _fault(card, family, genesis.author):
        raise RemoteError(f"shows a card of an expert {fault}", shown_by)
    check_signature(card, card.author, signer, shown_by)


def _fault(card: ExpertCard, family: Manifest, author: PeerId) -> str:
    if card.part == PARTITION:
        return _fault_of_partition(card, family, author)
    part, first = experts_of(family).part(card.part), own_seeds(family).get(card.part)
    model = (part or first or family).model or family.model
    if part is not None:
        if not 0 < card.round <= last_round(family, part) or card.steps != card.round * family.method.inner_steps:
            return f"that has made {card.steps} steps in {card.round} rounds, which is not how it is trained"
    elif first is not None:
        if fault := _fault_of_seed(card, first, author):
            return fault
    elif card.part != SEED or family.origin is None or card.author != author:
        return f"of a part '{card.part[:32]}', which the family has not"
    if card.tokens > MAX_TOKENS:
        return f"that has seen {card.tokens} tokens, which nobody has"
    numbers = FLOAT * parameters(model)
    if not numbers < card.size <= numbers + HEADER_MOST:
        return f"of {card.size} bytes, which its model has not"
    return ""


def _fault_of_seed(card: ExpertCard, first: PartSpec, author: PeerId) -> str:
    assert first.seed is not None
    if (card.file.hex(), card.tokens, card.author) != (first.seed.file, first.seed.tokens, author):
        return "that is a seed, but not the one that the family's manifest names"
    return "that is a seed, and says that it was trained as an expert" if card.round or card.steps else ""


def _fault_of_partition(card: ExpertCard, family: Manifest, author: PeerId) -> str:
    clusters = experts_of(family).clusters
    if clusters is None or card.file.hex() != clusters.file or card.author != author:
        return "that is a partition, but not the one that the family's manifest names"
    if card.round or card.steps or card.tokens or card.size > PARTITION_MOST:
        return "that is a partition, but says what none can be"
    return ""


def wanted(card: ExpertCard) -> DatasetRef:
    """The card's file, as it is asked for from peers."""
    return DatasetRef(card.file, card.root, card.size)


def hash_file(path: Path) -> Digest:
    """The BLAKE3 hash of a file's bytes, as the program b3sum prints it."""
    return Digest(blake3(max_threads=blake3.AUTO).update_mmap(path).digest())


WriteFile = Callable[[Path], object]
"""Writes a file at a path; it is on disk when this returns."""
