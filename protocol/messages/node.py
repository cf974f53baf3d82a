"""Calls between nodes outside of runs: fetching a manifest."""

from __future__ import annotations

from shoal.protocol.base.ids import Digest, PeerId, RunId
from shoal.protocol.base.wire import Message, message
from shoal.protocol.messages.genesis import Genesis


@message(70)
class GetManifest(Message):
    """Call: the manifest of the run with this id, or of this beginning of it. An empty `run_prefix` is refused."""

    run_prefix: str  # hex; at least 8 characters, so that people can type it


@message(71)
class ManifestIs(Message):
    """Answer: the run's genesis, and the run's state as the answering node sees it."""

    genesis: Genesis
    members: tuple[tuple[PeerId, tuple[str, ...]], ...]  # some members and their addresses
    present: int  # number of all members
    round: int  # the last committed one
    pace: float  # seconds from one round to the next; 0: not known yet
    end: int  # number of the last entry of its log; 0: it has none
    branch: Digest  # of the log that this is


@message(106)
class GetRuns(Message):
    """Call: which runs of the manifest with this digest are you in?"""

    manifest: Digest


@message(107)
class RunsAre(Message):
    """Answer: these."""

    runs: tuple[RunId, ...]


@message(72)
class Refused(Message):
    """Answer to a call that the node does not serve."""

    reason: str
