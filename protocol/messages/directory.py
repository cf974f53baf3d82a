"""What members put into the DHT about their run: the values of records, which travel within them only."""

from __future__ import annotations

from shoal.protocol.ids import Digest, RunId
from shoal.protocol.wire import Message, message


@message(94)
class MemberEntry(Message):
    """Under the run's key: I am in it, here, and stood on this state when I wrote this."""

    addresses: tuple[str, ...]
    round: int
    history: Digest  # after that round


@message(95)
class ManifestEntry(Message):
    """Under the manifest's key: ask me for it."""

    addresses: tuple[str, ...]


@message(96)
class RunNotice(Message):
    """Under the key of the public runs: this one takes anybody. `round` and `members` are as its author saw them."""

    run: RunId
    name: str
    round: int
    members: int
    addresses: tuple[str, ...]
