"""Calls between nodes that belong to no run: fetching a manifest."""

from __future__ import annotations

from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message, message


@message(70)
class GetManifest(Message):
    """Call: who has the manifest of this run? An empty `run_prefix` is refused."""

    run_prefix: str  # hex; at least 8 characters, so that people can type it


@message(71)
class ManifestIs(Message):
    """Answer: the canonical manifest, its author and the author's signature; and the state of the run, as we see it."""

    manifest: bytes
    author: PeerId
    signature: bytes
    members: tuple[tuple[PeerId, tuple[str, ...]], ...]  # some members and their addresses
    present: int  # members in all
    round: int  # the last committed one
    pace: float  # seconds from one round to the next; 0: not known yet


@message(72)
class Refused(Message):
    """Answer to a call that this node does not serve."""

    reason: str
