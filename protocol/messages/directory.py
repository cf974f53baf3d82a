"""What members write into the DHT about their run: values of records, which travel only within records."""

from __future__ import annotations

from shoal.protocol.base.ids import Digest, PeerId, RunId
from shoal.protocol.base.wire import Message, message


@message(94)
class MemberEntry(Message):
    """Under the run's key: the author is a member, at these addresses, and had this state when it wrote the entry."""

    addresses: tuple[str, ...]
    round: int
    history: Digest  # after that round


@message(95)
class ManifestEntry(Message):
    """Under a manifest's key: the author is in this run of the manifest, at these addresses."""

    run: RunId
    addresses: tuple[str, ...]


@message(96)
class RunNotice(Message):
    """Under the key of public runs: anybody may join this run. `round` and `members` are as its author saw them."""

    run: RunId
    name: str
    round: int
    members: int
    addresses: tuple[str, ...]


@message(97)
class ExpertCard(Message):
    """Describes an expert's file, signed by the peer that trained it; the part of a family's seed is ""."""

    family: RunId
    part: str
    round: int
    steps: int  # of training
    tokens: int  # trained on, including those of its seed
    loss: float | None  # the last training loss
    size: int  # bytes of the file
    file: Digest  # BLAKE3 of the file
    root: Digest  # of the tree of its pieces' hashes
    author: PeerId
    signature: bytes


@message(98)
class PartEntry(Message):
    """Under a family's run key, by part and author: the author trains the part, or has its file, or both."""

    addresses: tuple[str, ...]
    term: int  # of the author's claim, one more than that of the last claim; 0: no claim
    run: RunId | None  # in which the author trains it
    round: int  # reached in that run
    loss: float | None
    card: ExpertCard | None  # of the file that the author has
    answers: Digest | None  # the file of the expert with which the author answers AskExpert
