"""What members write into the DHT about their run: values of records, which travel within records only."""

from __future__ import annotations

from shoal.protocol.base.ids import Digest, PeerId, RunId
from shoal.protocol.base.wire import Message, message


@message(94)
class MemberEntry(Message):
    """Under the run's key: the author is a member, at these addresses, and stood on this state when it wrote this."""

    addresses: tuple[str, ...]
    round: int
    history: Digest  # after that round


@message(95)
class ManifestEntry(Message):
    """Under the manifest's key: the author can be asked for it."""

    addresses: tuple[str, ...]


@message(96)
class RunNotice(Message):
    """Under the key of the public runs: anybody may join this one. `round` and `members` are as its author saw them."""

    run: RunId
    name: str
    round: int
    members: int
    addresses: tuple[str, ...]


@message(97)
class ExpertCard(Message):
    """Describes an expert's file, by the peer that has trained it; a family's seed is of the part ""."""

    family: RunId
    part: str
    round: int
    steps: int  # that the expert has made
    tokens: int  # behind it, those of its seed with it
    loss: float | None  # the last one of training
    size: int  # bytes of the file
    file: Digest  # BLAKE3 of the file
    root: Digest  # of the tree of its pieces' hashes
    author: PeerId
    signature: bytes


@message(98)
class PartEntry(Message):
    """Under a family's run key, one for each part and author: the author trains it, or has its file, or both."""

    addresses: tuple[str, ...]
    term: int  # of the claim: one more than the last one's; 0: I do not claim it
    run: RunId | None  # in which I train it
    round: int  # that it has come to there
    loss: float | None
    card: ExpertCard | None  # of the file that I have
    answers: Digest | None  # the file of which I can be asked what follows a text
