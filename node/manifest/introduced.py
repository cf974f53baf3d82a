"""What a newcomer is told of a run: its manifest, checked, and who is in it."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.node.manifest.manifest import Manifest
from shoal.protocol.base.ids import PeerId


@dataclass(frozen=True, slots=True)
class Introduction:
    """A manifest that was checked; members to begin with and where they are, the one who told us first.

    The rest is how the run goes, in the words of the one who told us: for people, and for nothing else.
    """

    manifest: Manifest
    author: PeerId
    signature: bytes
    members: dict[PeerId, tuple[str, ...]]
    present: int = 0
    round: int = 0
    pace: float = 0.0
